"""`python -m bench scenarios NAME`: what would the gateway do, in virtual time?"""

from __future__ import annotations

import argparse
import difflib
import sys

import msgspec
from rich.console import Console

from bench.report import RunResult, show
from bench.scenarios.registry import SCENARIOS, Scenario, Setup
from penstock.sim import command
from penstock.sim.command import ProgressLine

EXIT_OK, EXIT_MISSED, EXIT_USAGE = 0, 1, 2
WIDTH_MIN = 120  # without a terminal, a narrower table would be cut


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `python -m bench scenarios`."""
    parser.add_argument("scenario", metavar="NAME", nargs="?", help="which one; all: one after the other")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    command.add_arguments(parser)
    command.add_duration(parser)


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all goals were met, 1 if one was missed, 2 for wrong flags."""
    if args.list:
        _list(json=args.json)
        return EXIT_OK
    if (problem := command.problem(args) or _problem(args)) is not None:
        print(f"bench scenarios: {problem}", file=sys.stderr)
        return EXIT_USAGE
    names = list(SCENARIOS) if args.scenario == "all" else [args.scenario]
    met = []
    for number, name in enumerate(names, start=1):
        which = name if len(names) == 1 else f"{name} ({number} of {len(names)})"
        met.append(_simulate(SCENARIOS[name], args, ProgressLine(which, shown=command.shown(args))))
    return EXIT_OK if all(met) else EXIT_MISSED


def _simulate(scenario: Scenario, args: argparse.Namespace, line: ProgressLine) -> bool:
    duration_s = args.duration if args.duration is not None else scenario.duration_s
    results: list[RunResult] = []
    for seed in command.seeds(args):
        line.seed = seed
        results.append(scenario.run(Setup(seed, duration_s, checked=args.check, progress=line.tell)))
        if args.json:
            line.clear()
            print(msgspec.json.encode(results[-1]).decode(), flush=True)
    line.clear()
    if not args.json:
        console = Console(width=None if sys.stdout.isatty() else WIDTH_MIN)
        show(results, console, about=scenario.about)
    return all(result.met for result in results)


def _problem(args: argparse.Namespace) -> str | None:
    if args.scenario is None:
        return "the name of a scenario is missing (--list shows them)"
    if args.scenario not in SCENARIOS and args.scenario != "all":
        near = difflib.get_close_matches(args.scenario, SCENARIOS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(SCENARIOS)}"
        return f"there is no scenario {args.scenario!r}; {hint}"
    return None


def _list(*, json: bool) -> None:
    if json:
        print(msgspec.json.encode({name: scenario.about for name, scenario in SCENARIOS.items()}).decode())
        return
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:18} {scenario.about}")
