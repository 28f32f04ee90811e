"""Random worlds by the thousand: seed after seed on all cores, until as many requests came as are wanted.

A module that has such worlds gives a function that tries one, by its kind and its seed; the function raises when
something is wrong. A world that fails is printed with the flags that run the same world again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

TOLD_EVERY_S = 30.0
WORLDS_AT_ONCE = 8  # that wait for each process
FAILED_MAX = 100  # worlds after which a run ends: more of them tell nothing more


@dataclass(frozen=True, slots=True)
class Tried:
    """What one world in which all was well came to."""

    requests: int
    seen: Counter[str] = field(default_factory=Counter)  # added up over all worlds
    most: Counter[str] = field(default_factory=Counter)  # the largest of all worlds


Try = Callable[[str, int, argparse.Namespace], Tried]


def parser(module: str, doc: str | None, *, kinds: Iterable[str] = ("",)) -> argparse.ArgumentParser:
    """The command line of a module with worlds of these kinds."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").partition("\n")[0])
    made.add_argument("--requests", type=int, default=1_000_000, help="in all worlds together")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    made.add_argument("--first-seed", type=int, default=1000)
    made.add_argument("--seed", type=int, help="this one alone")
    kinds = list(kinds)
    made.add_argument("--kind", choices=kinds, help="of worlds, this one alone")
    made.set_defaults(kinds=kinds)
    return made


def run(try_one: Try, args: argparse.Namespace) -> int:
    """Try worlds, tell how far it is, and return the exit status."""
    seeds = itertools.count(args.first_seed) if args.seed is None else [args.seed]
    kinds = args.kinds if args.kind is None else [args.kind]
    cases = ((kind, seed) for seed in seeds for kind in kinds)
    worlds, failed, requests = 0, 0, 0
    seen, most = Counter[str](), Counter[str]()
    told_s = monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        while requests < args.requests and failed < FAILED_MAX:
            some = list(itertools.islice(cases, WORLDS_AT_ONCE * args.jobs))
            if not some:
                break
            for (kind, seed), end in zip(some, pool.map(partial(_one, try_one, args), some), strict=True):
                worlds += 1
                if isinstance(end, str):
                    failed += 1
                    print(f"FAILED: --seed {seed}{kind and f' --kind {kind!r}'}\n{end}", flush=True)
                    continue
                requests += end.requests
                seen += end.seen
                most |= end.most
            if monotonic() - told_s > TOLD_EVERY_S:
                told_s = monotonic()
                print(f"{requests} requests, {worlds} worlds, {failed} failed", flush=True)
    print(f"{requests} requests, {worlds} worlds, {failed} failed")
    for name, counted in (("seen", seen), ("the most", most)):
        if counted:
            print(f"{name}: {dict(counted)}")
    return 1 if failed else 0


def _one(try_one: Try, args: argparse.Namespace, case: tuple[str, int]) -> Tried | str:
    """What a world came to, or what was wrong in it."""
    try:
        return try_one(*case, args)
    except Exception:  # any at all is what is looked for
        return traceback.format_exc(limit=-6)
