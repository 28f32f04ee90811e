"""The worlds of `fleets`, as many seeds as it takes: a million requests at four gateways, an hour or two of CPU.

    python -m tests.sim.long_fleet [--requests 1000000] [--jobs 2] [--first-seed 1000] [--checked-every 1]
    python -m tests.sim.long_fleet --seed 1234

The world is looked at after every event, and each scheduler after every fact, which is most of the time it takes: with
`--checked-every 10` that is done in one world of ten. The second form runs one world again, the same to the last event.
"""

from __future__ import annotations

import argparse
import sys

from tests import long_run
from tests.sim.fleets import fleet, prove


def tried(_: str, seed: int, args: argparse.Namespace) -> long_run.Tried:
    """Run one world, and check that each request ended once and nobody holds anything."""
    world = fleet(seed, checked=args.seed is not None or seed % args.checked_every == 0)
    try:
        prove(world)
    except Exception as error:
        error.add_note(f"at {world.now:.6f} s")
        raise
    return long_run.Tried(len(world.done))


if __name__ == "__main__":
    parser = long_run.parser("tests.sim.long_fleet", __doc__)
    parser.add_argument("--checked-every", type=int, default=1, metavar="WORLDS")
    sys.exit(long_run.run(tried, parser.parse_args()))
