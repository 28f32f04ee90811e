"""The worlds of `test_scheduler_properties`, as many seeds as it takes: a million requests, some hours of CPU.

    python -m tests.core.long_chaos [--requests 1000000] [--jobs 2] [--first-seed 1000] [--seed 1234] [--kind WORLD]

Every fact is followed by the checkers.
"""

from __future__ import annotations

import argparse
import sys

from tests import long_run
from tests.core.test_scheduler_properties import WORLDS, prove_nothing_is_left


def tried(world: str, seed: int, _: argparse.Namespace) -> long_run.Tried:
    """Run one world, and check that nothing is left in it."""
    chaos = WORLDS[world](seed)
    chaos.run()
    prove_nothing_is_left(chaos)
    return long_run.Tried(chaos.requests)


if __name__ == "__main__":
    parser = long_run.parser("tests.core.long_chaos", __doc__, kinds=WORLDS)
    sys.exit(long_run.run(tried, parser.parse_args()))
