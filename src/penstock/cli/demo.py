"""What does it do for me? Two simulated engines, the gateway, and one short load with queueing off and on.

A greedy tenant keeps far more long answers in flight than the engines can run; four light tenants ask for a short
one now and then. Everything is real but the engines: processes, sockets, HTTP, the same `penstock serve` as anywhere.
Nothing that was started is left running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from penstock import clock
from penstock.http.client.pool import Headers, Upstream, UpstreamError

GREEDY, LIGHT = "greedy", ("ada", "bob", "cleo", "dan")
SLOTS = 8  # per engine
STEP_MS = 20  # per token
GREEDY_IN_FLIGHT = 64  # 4 times what both engines run at once
GREEDY_TOKENS = 100
LIGHT_TOKENS = 20
LIGHT_PER_S = 2.0  # each
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_LISTENING = re.compile(rb"listening on (http://\S+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `penstock demo`."""
    parser.add_argument("--once", action="store_true", help="end after the comparison instead of serving on")
    parser.add_argument("--seconds", type=float, default=12.0, metavar="S", help="length of each of the two loads")
    parser.add_argument("--port", type=int, default=8080, metavar="PORT", help="the gateway's port, if it is free")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when it went through."""
    if not 1.0 <= args.seconds <= 600.0:
        print("penstock demo: --seconds takes 1 to 600", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_demo(args.seconds, args.port, once=args.once))
    except DemoError as error:
        print(f"penstock demo: {error}", file=sys.stderr)
        return 1


class DemoError(Exception):
    """Something that was started did not come up."""


@dataclass
class Tally:
    """What one tenant saw."""

    sent: int = 0
    done: int = 0
    refused: int = 0
    waiting_since_s: dict[int, float] = field(default_factory=dict)
    ttft_s: list[float] = field(default_factory=list)

    def freeze(self) -> None:
        """The load ends: who still waits has waited that long, and hears no more."""
        self.ttft_s += [clock.now() - since_s for since_s in self.waiting_since_s.values()]
        self.waiting_since_s = {}

    def quantile_s(self, share: float) -> float | None:
        """Of the times to first token; who still waits counts with the time waited so far."""
        ordered = sorted(self.ttft_s + [clock.now() - since_s for since_s in self.waiting_since_s.values()])
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# --- the load -------------------------------------------------------------------------------------------------


class _Stream:
    """One streamed request: notes when its first byte came and whether it was answered."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._sent_s = clock.now()
        self._status = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tally.sent += 1
        self._number = tally.sent
        tally.waiting_since_s[self._number] = self._sent_s

    def on_response(self, status: int, headers: Headers, /) -> None:  # noqa: ARG002
        self._status = status
        waited = self._tally.waiting_since_s.pop(self._number, None)
        if status == 200 and waited is not None:
            self._tally.ttft_s.append(clock.now() - self._sent_s)

    def on_data(self, data: bytes, /) -> None: ...

    def on_end(self) -> None:
        self._finish(done=self._status == 200)

    def on_error(self, error: UpstreamError, /) -> None:  # noqa: ARG002
        self._tally.waiting_since_s.pop(self._number, None)
        self._finish(done=False)

    def _finish(self, *, done: bool) -> None:
        self._tally.done += done
        self._tally.refused += not done
        self.over.set_result(None)


async def _ask(client: Upstream, tenant: str, tokens: int, tally: Tally) -> None:
    body = json.dumps(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": f"Tell {tenant} about water. " * 8}],
            "max_tokens": tokens,
            "stream": True,
        }
    ).encode()
    stream = _Stream(tally)
    headers = [(b"content-type", b"application/json"), (b"x-tenant-id", tenant.encode())]
    call = client.send("POST", "/v1/chat/completions", headers, body, stream)
    try:
        await stream.over
    finally:
        call.abort()


async def _greedy(client: Upstream, tally: Tally) -> None:
    while True:
        await _ask(client, GREEDY, GREEDY_TOKENS, tally)


async def _light(client: Upstream, tenant: str, tally: Tally, random: Random) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(random.expovariate(LIGHT_PER_S))
            group.create_task(_ask(client, tenant, LIGHT_TOKENS, tally))


async def _load(url: str, seconds: float, title: str, console: Console) -> dict[str, Tally]:
    """The same load each time: same tenants, same sizes, same seed."""
    tallies = {tenant: Tally() for tenant in (GREEDY, *LIGHT)}
    client = Upstream(url)
    tasks = [asyncio.create_task(_greedy(client, tallies[GREEDY])) for _ in range(GREEDY_IN_FLIGHT)]
    tasks += [
        asyncio.create_task(_light(client, tenant, tallies[tenant], Random(seed))) for seed, tenant in enumerate(LIGHT)
    ]
    ends_s = clock.now() + seconds
    try:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while (left_s := ends_s - clock.now()) > 0:
                live.update(_live_table(title, tallies, left_s))
                await asyncio.sleep(min(0.25, left_s))
    finally:
        for tally in tallies.values():
            tally.freeze()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()
    return tallies


# --- tables ---------------------------------------------------------------------------------------------------


def _live_table(title: str, tallies: dict[str, Tally], left_s: float) -> Group:
    table = Table(title=f"{title}, {left_s:.0f} s to go", title_justify="left")
    for column in ("tenant", "sent", "answered", "refused", "waiting", "TTFT p50", "TTFT p99"):
        table.add_column(column, justify="left" if column == "tenant" else "right")
    for tenant, tally in tallies.items():
        numbers = (tally.sent, tally.done, tally.refused, len(tally.waiting_since_s))
        table.add_row(tenant, *map(str, numbers), _shown(tally.quantile_s(0.5)), _shown(tally.quantile_s(0.99)))
    return Group(table)


def _comparison(off: dict[str, Tally], on: dict[str, Tally]) -> Table:
    table = Table(title="Time to first token of the light tenants", title_justify="left")
    table.add_column("tenant")
    for column in ("p50 off", "p50 on", "p99 off", "p99 on", "answered off", "answered on"):
        table.add_column(column, justify="right")
    for tenant in LIGHT:
        _row(table, tenant, off[tenant], on[tenant])
    table.add_section()
    _row(table, "all light", _together(off, LIGHT), _together(on, LIGHT))
    _row(table, GREEDY, off[GREEDY], on[GREEDY])
    return table


def _row(table: Table, name: str, off: Tally, on: Tally) -> None:
    quantiles = [_shown(tally.quantile_s(share)) for share in (0.5, 0.99) for tally in (off, on)]
    table.add_row(name, *quantiles, str(off.done), str(on.done))


def _together(tallies: dict[str, Tally], tenants: Sequence[str]) -> Tally:
    return Tally(
        done=sum(tallies[tenant].done for tenant in tenants),
        ttft_s=[seconds for tenant in tenants for seconds in tallies[tenant].ttft_s],
    )


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# --- processes ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _penstock(*arguments: str) -> AsyncIterator[str]:
    """A `penstock …` process that listens; gives its URL, and stops it at the end."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock",
        *arguments,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for us: we stop them in order
    )
    assert process.stdout is not None
    reader = process.stdout
    drain: asyncio.Task[None] | None = None
    try:
        url = await _first_url(reader, f"penstock {arguments[0]}")
        drain = asyncio.create_task(_discard(reader))
        yield url
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        if drain is not None:
            await drain


async def _first_url(reader: asyncio.StreamReader, name: str) -> str:
    said = b""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := await reader.readline():
                said += line
                if found := _LISTENING.search(line):
                    return found[1].decode()
    except TimeoutError:
        pass
    raise DemoError(f"{name} did not start: {said.decode(errors='replace').strip()[-500:] or 'it said nothing'}")


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def _gateway(engines: Sequence[str], port: int, *flags: str) -> contextlib.AbstractAsyncContextManager[str]:
    endpoints = [word for url in engines for word in ("--endpoint", url)]
    return _penstock(
        "serve", *endpoints, "--listen", f"127.0.0.1:{port}", "--slots", str(SLOTS), "--log-level", "info", *flags
    )


async def _free_port(wanted: int) -> int:
    """The wanted port if nobody has it, else any."""
    try:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", wanted)
    except OSError:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def _demo(seconds: float, port: int, *, once: bool) -> int:
    console = Console()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, this.cancel)
    try:
        async with contextlib.AsyncExitStack() as stack:
            console.print("Starting two simulated engines …")
            engine = ("engine", "--port", "0", "--slots", str(SLOTS), "--step-ms", str(STEP_MS))
            engines = [await stack.enter_async_context(_penstock(*engine)) for _ in range(2)]
            console.print(
                f"Load: `{GREEDY}` keeps {GREEDY_IN_FLIGHT} answers of {GREEDY_TOKENS} tokens in flight, "
                f"{len(LIGHT)} light tenants ask for {LIGHT_TOKENS} tokens {LIGHT_PER_S:g} times a second each; "
                f"the engines run {2 * SLOTS} at once."
            )
            port = await _free_port(port)  # one for both, so that whoever watches the page sees both
            console.print(f"Watch it: http://127.0.0.1:{port}/admin/\n", soft_wrap=True, highlight=False)
            async with _gateway(engines, port, "--no-queue", "--routing", "round_robin") as url:
                off = await _load(url, seconds, "1 of 2: queueing off", console)
            on_url = await stack.enter_async_context(_gateway(engines, port))
            on = await _load(on_url, seconds, "2 of 2: queueing on", console)
            console.print(_comparison(off, on))
            if not any(tally.done for tally in on.values()):
                raise DemoError("nothing was answered")
            console.print("\nTry it:", style="bold")
            console.print(
                f"  curl {on_url}/v1/chat/completions -H 'content-type: application/json' "
                """-d '{"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "stream": true}' -N""",
                soft_wrap=True,
                highlight=False,
            )
            console.print(f"  curl {on_url}/metrics", soft_wrap=True, highlight=False)
            console.print(f"  penstock top --url {on_url}", soft_wrap=True, highlight=False)
            console.print(f"  {on_url}/admin/   (the live page, in a browser)\n", soft_wrap=True, highlight=False)
            if not once:
                console.print("Serving until Ctrl-C.")
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.add_signal_handler(number, stop.set)
                await stop.wait()
                console.print("Stopping.")
    except asyncio.CancelledError:
        console.print("Stopped.")
        return 130
    return 0
