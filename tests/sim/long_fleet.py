"""The worlds of `fleets`, as many seeds as it takes: a million requests at four gateways, an hour or two of CPU.

    python -m tests.sim.long_fleet [--requests 1000000] [--jobs 2] [--first-seed 1000] [--checked-every 1]
    python -m tests.sim.long_fleet --seed 1234

The world is looked at after every event, and each scheduler after every fact, which is most of the time it takes: with
`--checked-every 10` that is done in one world of ten. A seed that fails is printed with what was wrong; the second form
runs it again, the same to the last event.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from time import monotonic

from tests.sim.fleets import fleet, prove

TOLD_EVERY_S = 30.0


def run_one(seed: int, checked: bool = True) -> tuple[int, str | None]:
    """How many requests a world had, and what went wrong in it."""
    world = fleet(seed, checked=checked)
    try:
        prove(world)
    except Exception:  # any at all is what is looked for
        return len(world.done), f"at {world.now:.6f} s\n{traceback.format_exc(limit=-6)}"
    return len(world.done), None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.long_fleet", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--checked-every", type=int, default=1)
    parser.add_argument("--seed", type=int, help="run this one alone")
    args = parser.parse_args(argv)
    if args.seed is not None:
        requests, wrong = run_one(args.seed)
        print(wrong or f"{requests} requests, all is well")
        return 1 if wrong else 0
    done, failed, told_s, last_seed = 0, 0, monotonic(), args.first_seed
    seeds = itertools.count(args.first_seed)
    with ProcessPoolExecutor(args.jobs) as pool:
        while done < args.requests:
            some = list(itertools.islice(seeds, 20 * (args.jobs or 1)))
            checked = [seed % args.checked_every == 0 for seed in some]
            for seed, (requests, wrong) in zip(some, pool.map(run_one, some, checked), strict=True):
                done, last_seed = done + requests, seed
                if wrong is not None:
                    failed += 1
                    print(f"FAILED: seed {seed}, {wrong}", flush=True)
            if monotonic() - told_s > TOLD_EVERY_S:
                told_s = monotonic()
                print(f"{done} requests, seeds to {last_seed}, {failed} failed", flush=True)
    print(f"{done} requests, seeds {args.first_seed} to {last_seed}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
