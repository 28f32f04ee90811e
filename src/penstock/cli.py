"""`penstock …`: one program, one subcommand per chore."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import penstock
from penstock import batch_cli, config_cli, endpoint_cli, keys_cli, operator_cli
from penstock.build import kind


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock", description="A flow-control gateway for LLM inference.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__} ({kind()})")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway. Settings: defaults, -c FILE, PENSTOCK__… variables, flags; the last wins.",
        allow_abbrev=False,
    )
    serve.add_argument(
        "-c", "--config", metavar="FILE", default=os.environ.get("PENSTOCK_CONFIG"), help="settings (YAML)"
    )
    serve.add_argument(
        "--endpoint",
        metavar="URL",
        action="append",
        default=[],
        help="an engine's base URL; may be given several times",
    )
    serve.add_argument("--listen", metavar="HOST:PORT", help="where to listen (default 127.0.0.1:8080)")
    serve.add_argument(
        "--slots",
        metavar="N",
        type=int,
        help="requests an endpoint is sent at a time, where it is not set or known",
    )
    serve.add_argument("--routing", metavar="NAME", help="routing policy (default predicted_ttft)")
    serve.add_argument("--no-queue", action="store_true", help="let nothing wait: requests go straight through")
    serve.add_argument(
        "--log-level",
        metavar="LEVEL",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="default: info",
    )
    serve.set_defaults(run=_serve)

    check = commands.add_parser(
        "check",
        help="check a settings file",
        description="Say whether `serve` would accept a settings file, and what is wrong.",
    )
    config_cli.add_arguments(check)
    check.set_defaults(run=config_cli.run_check)

    schema = commands.add_parser(
        "schema",
        help="print the settings' JSON Schema, for editors",
        description="Print the settings' JSON Schema. Editors complete and check a file whose first line is "
        "`# yaml-language-server: $schema=FILE`.",
    )
    schema.set_defaults(run=config_cli.run_schema)

    keys = commands.add_parser(
        "keys",
        help="make an API key, or hash one",
        description="API keys of tenants: make one, or tell the hash of one for the settings.",
    )
    keys_cli.add_arguments(keys)
    keys.set_defaults(run=keys_cli.run)

    endpoint = commands.add_parser(
        "endpoint",
        help="add, drain, resume or remove endpoints of a running gateway",
        description="Change the endpoints of a running gateway. The settings stay as they are.",
    )
    endpoint_cli.add_arguments(endpoint)
    endpoint.set_defaults(run=endpoint_cli.run)

    operator_cli.add_commands(commands)

    batch = commands.add_parser(
        "batch",
        help="run files of requests when nothing else does",
        description="List, show, cancel or run batches at a running gateway (its `batch.data` switches them on).",
    )
    batch_cli.add_arguments(batch)
    batch.set_defaults(run=batch_cli.run)

    engine = commands.add_parser(
        "engine",
        help="run a simulated engine",
        description="Run a simulated engine that speaks vLLM's HTTP API: for trying things out and for tests.",
        allow_abbrev=False,
    )
    _add_engine(engine)

    demo = commands.add_parser(
        "demo",
        help="see it work, in a minute",
        description="Start two simulated engines and the gateway, run a short load with queueing off and on, compare.",
        allow_abbrev=False,
    )
    _add_demo(demo)

    doctor = commands.add_parser(
        "doctor",
        help="examine the engines",
        description="Ask every endpoint what it is and offers; say what is missing, which flag brings it, and what "
        "Penstock does without it. Exit code 1 when one can't serve what it should.",
        allow_abbrev=False,
    )
    _add_doctor(doctor)

    simulate = commands.add_parser(
        "simulate",
        help="run a scenario in virtual time",
        description="Run the scheduler against simulated engines in virtual time, and hold the figures against goals.",
        allow_abbrev=False,
    )
    _add_simulate(simulate)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    from penstock.sim import engine_server

    engine_server.add_arguments(parser)
    parser.set_defaults(run=engine_server.run)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    from penstock import demo

    demo.add_arguments(parser)
    parser.set_defaults(run=demo.run)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    from penstock import doctor_cli

    doctor_cli.add_arguments(parser)
    parser.set_defaults(run=doctor_cli.run)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    from penstock.sim import simulate_cli

    simulate_cli.add_arguments(parser)
    parser.set_defaults(run=simulate_cli.run)


def _serve(args: argparse.Namespace) -> int:
    from penstock import bootstrap, logs
    from penstock.config import ConfigError, Flags, Settings, load, require_endpoints
    from penstock.settings.roles import role_warnings

    flags = Flags(
        endpoints=tuple(args.endpoint),
        listen=args.listen,
        slots=args.slots,
        routing=args.routing,
        no_queue=args.no_queue,
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
    for warning in role_warnings(settings):
        print(f"penstock: warning: {warning}", file=sys.stderr)
    logs.configure(args.log_level)
    logs.use(settings.log.format)

    async def run() -> None:
        try:
            gateway = bootstrap.gateway(settings, read)
        except ConfigError as error:  # what only shows where it runs
            for problem in error.problems:
                print(f"penstock: {problem.line()}", file=sys.stderr)
            sys.exit(2)
        await gateway.run()

    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(run())
    except OSError as error:
        print(f"penstock: cannot listen on {settings.listen}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop where there is one, for its speed."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover - not available on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    sys.exit(main())
