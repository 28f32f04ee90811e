"""`python -m bench COMMAND`, in a checkout: scenarios, strange engines, unknown sizes, traces under other routers."""

from __future__ import annotations

import argparse
import signal
import sys

from bench import policies, slots
from bench.agents import chat, published
from bench.agents.rivals import RIVALS as GATES
from bench.lab import lab_cli
from bench.scenarios import scenarios_cli
from bench.traces.baselines import RIVALS
from penstock.sim.traces import trace_cli


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    whole = argparse.ArgumentParser(
        prog="python -m bench", description="Run the scheduler in virtual time.", allow_abbrev=False
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    scenarios = commands.add_parser("scenarios", help="run named situations against their goals")
    scenarios_cli.add_arguments(scenarios)
    scenarios.set_defaults(run=scenarios_cli.run)
    lab = commands.add_parser("lab", help="run the matrix of strange engines")
    lab_cli.add_arguments(lab)
    lab.set_defaults(run=lab_cli.run)
    size = commands.add_parser("slots", help="find the size of engines that report none, start by start")
    slots.add_arguments(size)
    size.set_defaults(run=slots.main)
    trace = commands.add_parser("trace", help="`penstock simulate`, with the routers of other projects")
    trace_cli.add_arguments(trace, {**RIVALS, **GATES})
    trace.set_defaults(run=trace_cli.run)
    curve = commands.add_parser("published", help="a measured curve of agents' sessions beside the simulated one")
    published.add_arguments(curve)
    curve.set_defaults(run=published.main)
    beside = commands.add_parser("chat", help="chat of single turns beside agents' sessions")
    chat.add_arguments(beside)
    beside.set_defaults(run=chat.main)
    return whole


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` names (None: the process' own arguments). Returns the exit code."""
    policies.register()
    args = parser().parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… | head` ends it quietly
    sys.exit(main())
