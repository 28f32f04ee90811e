"""`penstock …`: one program, one subcommand per chore.

Only the modules that the chosen subcommand needs are imported: making the models of the settings alone takes half a
second.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import penstock
from penstock.build import kind, shadowed

_Load = Callable[[argparse.ArgumentParser], None]  # adds a command's arguments, and what runs it


class _Command(NamedTuple):
    help: str
    load: _Load
    description: str = ""  #: if the help says too little


def main(argv: list[str] | None = None) -> int:
    """Run the subcommand that `argv` names (None: the process' own arguments). Returns the exit code."""
    if wrong := shadowed():
        print(wrong, file=sys.stderr)
        return 1
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in (["serve"], ["vllm-router"]):
        from penstock.gateway import early_signals

        with early_signals.held():
            return _run(words)
    return _run(words)


def vllm_router() -> int:
    """The console script of that name."""
    return main(["vllm-router", *sys.argv[1:]])


def _run(words: list[str]) -> int:
    try:
        code = _command(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the last flush complains
        return 141
    return code


def _command(words: list[str]) -> int:
    if words[:1] == ["vllm-router"]:  # whose flags are not ours to parse
        from penstock.cli import vllm_router

        return vllm_router.run(words[1:])
    args = parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    return int(args.run(args))


def parser(asked: str | None) -> argparse.ArgumentParser:
    """The parser of all commands; only the one that is asked for has its arguments. None: all have."""
    whole = argparse.ArgumentParser(
        prog="penstock", description="A flow-control gateway for LLM inference.", allow_abbrev=False
    )
    whole.add_argument("--version", action="version", version=f"penstock {penstock.__version__} ({kind()})")
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        description = command.description or f"{command.help.capitalize()}."
        sub = commands.add_parser(name, help=command.help, description=description, allow_abbrev=False)
        if asked is None or name == asked:
            command.load(sub)
    return whole


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", default=os.environ.get("PENSTOCK_CONFIG"), help="settings (YAML)"
    )
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        action="append",
        default=[],
        help="an engine's base URL; may be given several times",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to listen (default 127.0.0.1:8080)")
    parser.add_argument(
        "--slots", metavar="N", type=int, help="requests an endpoint is sent at a time, where it is not set or known"
    )
    parser.add_argument(
        "--workers",
        metavar="N|auto",
        help="processes that carry requests and answers; from 2 on, one more decides (default 1)",
    )
    parser.add_argument("--routing", metavar="NAME", help="routing policy (default predicted_ttft)")
    parser.add_argument(
        "--imbalance-threshold",
        metavar="N",
        help="with --routing load_balanced_kv: from this difference between queues on, the least loaded endpoint "
        "(default inf: never)",
    )
    parser.add_argument("--no-queue", action="store_true", help="let nothing wait: requests go straight through")
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="default: info",
    )
    parser.set_defaults(run=_run_gateway)


def _check(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import check

    check.add_arguments(parser)
    parser.set_defaults(run=check.run_check)


def _schema(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import check

    parser.set_defaults(run=check.run_schema)


def _keys(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import keys

    keys.add_arguments(parser)
    parser.set_defaults(run=keys.run)


def _endpoint(parser: argparse.ArgumentParser) -> None:
    from penstock.cli.steering import endpoint as endpoint_cli

    endpoint_cli.add_arguments(parser)
    parser.set_defaults(run=endpoint_cli.run)


def _tenant(parser: argparse.ArgumentParser) -> None:
    from penstock.cli.steering import tenant as tenant_cli

    tenant_cli.add_arguments(parser)
    parser.set_defaults(run=tenant_cli.run)


def _decider(parser: argparse.ArgumentParser) -> None:
    from penstock.cli.steering import decider as decider_cli

    decider_cli.add_arguments(parser)
    parser.set_defaults(run=decider_cli.run)


def _operator(name: str) -> _Load:
    def load(parser: argparse.ArgumentParser) -> None:
        from penstock.cli import operator

        operator.add_arguments(name, parser)

    return load


def _batch(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import batch

    batch.add_arguments(parser)
    parser.set_defaults(run=batch.run)


def _engine(parser: argparse.ArgumentParser) -> None:
    from penstock.sim.fake_engine import server

    server.add_arguments(parser)
    parser.set_defaults(run=server.run)


def _demo(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import demo

    demo.add_arguments(parser)
    parser.set_defaults(run=demo.run)


def _doctor(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import doctor

    doctor.add_arguments(parser)
    parser.set_defaults(run=doctor.run)


def _simulate(parser: argparse.ArgumentParser) -> None:
    from penstock.sim.traces import trace_cli

    trace_cli.add_arguments(parser)
    parser.set_defaults(run=trace_cli.run)


def _completion(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import completion

    completion.add_arguments(parser)
    parser.set_defaults(run=completion.run)


_COMMANDS = {
    "serve": _Command(
        "run the gateway",
        _serve,
        "Run the gateway. Settings: defaults, -c FILE, PENSTOCK__… variables, flags; the last wins.",
    ),
    "vllm-router": _Command("run the gateway by the flags of production-stack's router", lambda _: None),
    "check": _Command(
        "check a settings file",
        _check,
        "Say whether `serve` would start with a settings file on this machine, and what is wrong. Not looked at: "
        "whether another program has the port, or another gateway the data folder of batches.",
    ),
    "schema": _Command(
        "print the settings' JSON Schema, for editors",
        _schema,
        "Print the settings' JSON Schema. Editors complete and check a file whose first line is "
        "`# yaml-language-server: $schema=FILE`.",
    ),
    "keys": _Command(
        "make, list or withdraw API keys",
        _keys,
        "API keys of tenants: make one for the settings or for a running gateway, list them, withdraw one, or tell the "
        "hash of one for the settings.",
    ),
    "endpoint": _Command(
        "add, drain, resume or remove endpoints of a running gateway",
        _endpoint,
        "Change the endpoints of a running gateway. The settings stay as they are.",
    ),
    "tenant": _Command(
        "pause, limit or clear a tenant of a running gateway",
        _tenant,
        "Show the tenants of a running gateway, pause or limit one, or cancel its requests. The settings file stays as "
        "it is; a restart ends what was changed.",
    ),
    "decider": _Command(
        "say which of several gateways decides, or let another one",
        _decider,
        "Among gateways that share one queue (docs/scale.md): which one decides, and let another one.",
    ),
    "edges": _Command("show the workers of all gateways that share", _operator("edges")),
    "status": _Command("say how it stands, in a sentence", _operator("status")),
    "queue": _Command("show who waits and why; bump or cancel a request", _operator("queue")),
    "explain": _Command("say why a request waits or waited", _operator("explain")),
    "pause": _Command("send nothing more; who comes waits", _operator("pause")),
    "drain": _Command("let nothing new in; who waits is served", _operator("drain")),
    "resume": _Command("take pauses and drains back", _operator("resume")),
    "reload": _Command("let it read its settings again", _operator("reload")),
    "top": _Command("watch it live in the terminal", _operator("top")),
    "batch": _Command(
        "run files of requests when nothing else does",
        _batch,
        "List, show, cancel or run batches at a running gateway (its `batch.data` switches them on).",
    ),
    "engine": _Command(
        "run a simulated engine",
        _engine,
        "Run a simulated engine that speaks vLLM's HTTP API: for trying things out and for tests.",
    ),
    "demo": _Command(
        "see it work, in a minute",
        _demo,
        "Start two simulated engines and the gateway, run a short load with queueing off and on, compare.",
    ),
    "doctor": _Command(
        "examine the engines",
        _doctor,
        "Ask every endpoint what it is and offers; say what is missing, which flag brings it, and what Penstock does "
        "without it. Exit code 1 when one can't serve what it should.",
    ),
    "simulate": _Command(
        "run a recorded workload in virtual time",
        _simulate,
        "Run a recorded workload through the scheduler and simulated engines in virtual time, once per routing policy.",
    ),
    "completion": _Command(
        "print what makes a shell complete these commands",
        _completion,
        "Print the script that makes a shell complete commands, flags and files: `penstock completion bash > "
        "~/.local/share/bash-completion/completions/penstock`, `… zsh > _penstock` in a folder of $fpath, or `… fish > "
        "~/.config/fish/completions/penstock.fish`.",
    ),
}


def _run_gateway(args: argparse.Namespace) -> int:
    from penstock.cli.running import serve
    from penstock.config.load import ConfigError, Flags, Settings, load, require_endpoints

    flags = Flags(
        endpoints=tuple(args.endpoint),
        listen=args.listen,
        slots=args.slots,
        routing=args.routing,
        imbalance_threshold=args.imbalance_threshold,
        no_queue=args.no_queue,
        workers=args.workers,
    )

    def read() -> Settings:
        settings = load(args.config, os.environ, flags)
        require_endpoints(settings)
        return settings

    try:
        settings = read()
    except ConfigError as error:
        for problem in error.problems:
            print(f"penstock: {problem.line()}", file=sys.stderr)
        return 2
    return serve(settings, read, args.log_level)


if __name__ == "__main__":
    sys.exit(main())
