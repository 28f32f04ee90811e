"""The worlds of `test_scheduler_properties`, as many seeds as it takes: a million requests, some hours of CPU.

    python -m tests.core.long_chaos [--requests 1000000] [--jobs 2] [--first-seed 1000]

Every fact is followed by the checkers. A seed that fails is printed with its world, and fails the same way in
`WORLDS[world](seed).run()`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from time import monotonic

from tests.core.test_scheduler_properties import WORLDS, prove_nothing_is_left

TOLD_EVERY_S = 30.0


def run_one(world: str, seed: int) -> tuple[int, str | None]:
    """How many requests a world had, and what went wrong in it."""
    chaos = WORLDS[world](seed)
    try:
        chaos.run()
        prove_nothing_is_left(chaos)
    except Exception:  # any at all is what is looked for
        return chaos.requests, traceback.format_exc(limit=-6)
    return chaos.requests, None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.core.long_chaos", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--first-seed", type=int, default=1000)
    args = parser.parse_args(argv)
    done, failed, told_s = 0, 0, monotonic()
    cases = ((world, seed) for seed in itertools.count(args.first_seed) for world in WORLDS)
    with ProcessPoolExecutor(args.jobs) as pool:
        while done < args.requests:
            some = list(itertools.islice(cases, 4 * (args.jobs or 1)))
            for (world, seed), (requests, wrong) in zip(some, pool.map(run_one, *zip(*some, strict=True)), strict=True):
                done += requests
                if wrong is not None:
                    failed += 1
                    print(f"FAILED: world {world!r}, seed {seed}\n{wrong}", flush=True)
            if monotonic() - told_s > TOLD_EVERY_S:
                told_s = monotonic()
                print(f"{done} requests, {failed} worlds failed", flush=True)
    print(f"{done} requests, {failed} worlds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
