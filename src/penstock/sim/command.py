"""Flags and progress of commands that simulate."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from penstock import clock

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
SEEDS_MAX = 100
DURATION_S_MIN, DURATION_S_MAX = 60.0, 36_000.0
LEFT_FROM_S = 1.0  # of a run; earlier estimates of the time left are worthless
CLEAR = "\r\x1b[K"  # the progress line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the common flags."""
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="seed of all randomness (default 1)")
    parser.add_argument("--seeds", metavar="N,N,…", help="several seeds, one run each")
    parser.add_argument("--check", action="store_true", help="check all invariants after every event (slow)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_duration(parser: argparse.ArgumentParser) -> None:
    """Add the flags of runs with a duration and progress."""
    parser.add_argument("--duration", metavar="S", type=float, help="simulated seconds, instead of the workload's own")
    parser.add_argument("--quiet", action="store_true", help="show no progress (shown only on a terminal)")


def problem(args: argparse.Namespace) -> str | None:
    """Returns the problem with these flags, or None."""
    if args.seeds and not seeds(args):
        return f"--seeds takes up to {SEEDS_MAX} numbers with commas between them, like 1,2,3"
    duration_s = getattr(args, "duration", None)
    if duration_s is not None and not DURATION_S_MIN <= duration_s <= DURATION_S_MAX:
        return f"--duration takes {DURATION_S_MIN:g} to {DURATION_S_MAX:g} seconds"
    return None


def seeds(args: argparse.Namespace) -> list[int]:
    """Returns the seeds to run; empty if `--seeds` is invalid."""
    if not args.seeds:
        return [args.seed]
    try:
        found = [int(word) for word in args.seeds.split(",")]
    except ValueError:
        return []
    return found if len(found) <= SEEDS_MAX else []


@dataclass
class ProgressLine:
    """A progress line; nothing if stderr is not a terminal."""

    scenario: str
    shown: bool
    seed: int = 0
    now: Callable[[], float] = clock.now
    _told: float = -math.inf
    _run: tuple[int, str] = (0, "")
    _began: float = 0.0

    def tell(self, variant: str, now_s: float, duration_s: float) -> None:
        """Show a run's progress and estimated time left."""
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
        print(f"{CLEAR}{done}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def shown(args: argparse.Namespace) -> bool:
    """Returns True if progress is to be shown."""
    return sys.stderr.isatty() and not args.quiet
