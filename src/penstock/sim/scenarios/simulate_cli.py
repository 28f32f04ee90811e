"""`penstock simulate`: what would the gateway do, in virtual time?"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from rich.console import Console

from penstock import clock
from penstock.sim.lab import lab_cli
from penstock.sim.scenarios.registry import SCENARIOS, Scenario, Setup
from penstock.sim.traces import trace_cli
from penstock.sim.world.report import RunResult, show

EXIT_OK, EXIT_MISSED, EXIT_USAGE = 0, 1, 2
SEEDS_MAX = 100
DURATION_S_MIN, DURATION_S_MAX = 60.0, 36_000.0
LEFT_FROM_S = 1.0  # of a run; before, a guess at its end is worth nothing
WIDTH_MIN = 120  # without a terminal, a narrower table would be cut


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `penstock simulate`."""
    parser.add_argument("--scenario", metavar="NAME", help="which one; --list shows them; all: one after the other")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="where all chance comes from (default 1)")
    parser.add_argument("--seeds", metavar="N,N,…", help="several, side by side")
    parser.add_argument("--duration", metavar="S", type=float, help="simulated seconds, instead of the scenario's own")
    parser.add_argument("--check", action="store_true", help="check all invariants after every event (slow)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per seed; with a trace, one list")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--quiet", action="store_true", help="show no progress (it is shown on a terminal only)")
    trace_cli.add_arguments(parser)
    lab_cli.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all goals were met, 1 if one was missed (or a trace is broken), 2 for wrong flags."""
    if args.list and not args.lab:
        _list(json=args.json)
        return EXIT_OK
    problem = lab_cli.problem(args) or _problem(args)
    if problem is not None:
        print(f"penstock simulate: {problem}", file=sys.stderr)
        return EXIT_USAGE
    seeds = _seeds(args.seeds) if args.seeds else [args.seed]
    if args.lab:
        return lab_cli.list_cells(args) if args.list else lab_cli.run(args, seeds)
    if args.trace is not None:
        line = ProgressLine("trace", shown=_shown(args))
        code = trace_cli.simulate(args, seeds, line.say)
        line.clear()
        return code
    names = list(SCENARIOS) if args.scenario == "all" else [args.scenario]
    met = []
    for number, name in enumerate(names, start=1):
        which = name if len(names) == 1 else f"{name} ({number} of {len(names)})"
        met.append(_simulate(SCENARIOS[name], seeds, args, ProgressLine(which, shown=_shown(args))))
    return EXIT_OK if all(met) else EXIT_MISSED


def _shown(args: argparse.Namespace) -> bool:
    return sys.stderr.isatty() and not args.quiet


def _simulate(scenario: Scenario, seeds: list[int], args: argparse.Namespace, line: ProgressLine) -> bool:
    duration_s = args.duration if args.duration is not None else scenario.duration_s
    results: list[RunResult] = []
    for seed in seeds:
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
    if args.trace is not None and args.scenario is not None:
        return "--scenario and --trace are two different workloads; name one"
    if args.scenario is None and args.trace is None and not args.lab:
        return "--scenario (--list shows what there is), --trace or --lab is missing"
    if args.scenario is not None and args.scenario not in SCENARIOS and args.scenario != "all":
        near = difflib.get_close_matches(args.scenario, SCENARIOS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(SCENARIOS)}"
        return f"there is no scenario {args.scenario!r}; {hint}"
    if args.seeds and not _seeds(args.seeds):
        return f"--seeds takes up to {SEEDS_MAX} numbers with commas between them, like 1,2,3"
    if args.duration is not None and not DURATION_S_MIN <= args.duration <= DURATION_S_MAX:
        return f"--duration takes {DURATION_S_MIN:g} to {DURATION_S_MAX:g} seconds"
    return None


def _seeds(text: str) -> list[int]:
    """Returns the seeds that a text names; empty if it names none."""
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        return []
    return seeds if len(seeds) <= SEEDS_MAX else []


def _list(*, json: bool) -> None:
    if json:
        print(msgspec.json.encode({name: scenario.about for name, scenario in SCENARIOS.items()}).decode())
        return
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:18} {scenario.about}")


@dataclass
class ProgressLine:
    """One line on the terminal that shows the progress; nothing if stderr is no terminal."""

    scenario: str
    shown: bool
    seed: int = 0
    now: Callable[[], float] = clock.now
    _told: float = -math.inf
    _run: tuple[int, str] = (0, "")
    _began: float = 0.0

    def tell(self, variant: str, now_s: float, duration_s: float) -> None:
        """Say how far a run is, and how long it takes still if it goes on like this."""
        if not self.shown:
            return
        if (self.seed, variant) != self._run:
            self._run, self._began = (self.seed, variant), self.now()
        took_s = self.now() - self._began
        left = f", {took_s * (duration_s - now_s) / now_s:.0f} s left" if now_s > 0 and took_s >= LEFT_FROM_S else ""
        share = min(now_s / duration_s, 1.0)
        self.say(
            f"{self.scenario}, seed {self.seed}, {variant}: "
            f"{now_s:.0f} of {duration_s:.0f} simulated seconds, {share:.0%}{left}"
        )

    def say(self, done: str) -> None:
        if not self.shown or self.now() < self._told + 0.2:
            return
        self._told = self.now()
        print(f"\r\x1b[K{done}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
