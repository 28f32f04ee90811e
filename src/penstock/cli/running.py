"""`penstock serve`: the gateway's loop, its log, and a file to follow if there is one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from penstock import logs
from penstock.config.address import cannot_listen
from penstock.config.effect import warnings
from penstock.config.load import ConfigError, Flags, Settings, load, require_endpoints
from penstock.config.sections.clients import EppSection, epp_problem
from penstock.config.source import FILE_BYTES_MAX
from penstock.gateway.process import event_loop
from penstock.gateway.serve import Gateway, StartError

EPP_LISTEN = ":9002"  # where gateways look for an endpoint picker
LOOK_S = 2.0  # production-stack's router looks every ten seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="settings (YAML); the same as -c FILE")
    parser.add_argument("-c", "--config", metavar="FILE", help="settings (YAML; default: PENSTOCK_CONFIG, if set)")
    parser.add_argument("--endpoint", metavar="URL", action="append", default=[], help="an engine's URL; repeatable")
    parser.add_argument("--endpoints", metavar="URL,…", action="append", default=[], help="several, by commas")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="address to listen on, or unix:/PATH (default 127.0.0.1:8080)"
    )
    parser.add_argument("--host", metavar="HOST", help="its host alone")
    parser.add_argument("-p", "--port", metavar="PORT", help="its port alone")
    parser.add_argument(
        "--slots", metavar="N", type=int, help="concurrent requests per endpoint, unless set or reported by the engine"
    )
    parser.add_argument(
        "--workers", metavar="N|auto", help="worker processes; from 2 on, one more schedules for them (default 1)"
    )
    parser.add_argument("--routing", metavar="NAME", help="routing policy (default predicted_ttft)")
    parser.add_argument(
        "--imbalance-threshold",
        metavar="N",
        help="with --routing load_balanced_kv: from this difference between queues on, use the least loaded endpoint "
        "(default inf: never)",
    )
    parser.add_argument("--no-queue", action="store_true", help="no queueing: requests go straight through")
    levels = ["debug", "info", "warning", "error"]
    parser.add_argument("--log-level", metavar="LEVEL", default="info", choices=levels, help="default: info")


def run(args: argparse.Namespace) -> int:
    """Serve with the settings of `args`; returns the exit code."""
    if wrong := _wrong_file(args.file, args.config):
        print(f"penstock serve: {wrong}", file=sys.stderr)
        return 2
    if args.command == "epp" and (missing := epp_problem()) is not None:
        print(f"penstock epp: {missing}", file=sys.stderr)
        return 2
    several = [url.strip() for urls in args.endpoints for url in urls.split(",") if url.strip()]
    flags = Flags(
        endpoints=(*args.endpoint, *several),
        listen=args.listen,
        host=args.host,
        port=args.port,
        slots=args.slots,
        routing=args.routing,
        imbalance_threshold=args.imbalance_threshold,
        no_queue=args.no_queue,
        workers=args.workers,
    )

    def read() -> Settings:
        settings = load(args.file or args.config or os.environ.get("PENSTOCK_CONFIG"), os.environ, flags)
        require_endpoints(settings)
        if args.command == "epp" and settings.epp.listen is None:
            settings = settings.model_copy(update={"epp": EppSection(listen=EPP_LISTEN)})
        return settings

    try:
        settings = read()
    except ConfigError as error:
        for problem in error.problems:
            print(f"penstock: {problem.line()}", file=sys.stderr)
        return 2
    return serve(settings, read, args.log_level)


def _wrong_file(file: str | None, config: str | None) -> str | None:
    """Returns why the settings' file is not one."""
    if file is not None and config is not None:
        return f"two settings files are given, {file} and {config}: one is allowed"
    if file is not None and file.startswith(("http://", "https://")):
        return f"`{file}` stands alone: did you mean `penstock serve --endpoint {file}`?"
    return None


def serve(
    settings: Settings,
    read: Callable[[], Settings],
    log_level: str,
    *,
    follows: Path | None = None,
    command: str = "penstock",
) -> int:
    """Run until stopped; returns the exit code.

    Every change of the file `follows` is a reload. `command` is the prefix of messages.
    """
    for warning in warnings(settings, os.environ):
        print(f"{command}: warning: {warning}", file=sys.stderr)
    logs.configure(log_level)
    logs.use(settings.log.format)

    async def run() -> None:
        gateway = Gateway(settings, read)
        async with _following(gateway, follows):
            await gateway.run()

    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(run())
    except ConfigError as error:  # visible only at runtime
        for problem in error.problems:
            print(f"{command}: {problem.line()}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{command}: {cannot_listen(settings.listen, error)}", file=sys.stderr)
        return 1
    except StartError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.asynccontextmanager
async def _following(gateway: Gateway, file: Path | None) -> AsyncIterator[None]:
    """Reload at every change of a file, like SIGHUP."""
    if file is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(changes(file, gateway.reload.on_signal))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def changes(file: Path, changed: Callable[[], None], *, look_s: float = LOOK_S) -> None:
    """Call back at every change of the content, because a mounted ConfigMap is a link that moves. Never returns."""
    before = await asyncio.to_thread(_content, file)
    while True:
        await asyncio.sleep(look_s)
        now = await asyncio.to_thread(_content, file)
        if now is not None and now != before:  # a missing file is being replaced
            before = now
            changed()


def _content(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except OSError:
        return None
