"""A flood of long answers beside callers that ask for little: do these wait longer at two gateways than at one?

`python -m tests.gateway.share.flood --seconds 20 --rounds 3`: one gateway and two that share its queue by turns, as
processes before the same engine, with the same load, which comes to both alike. Told are times to the first token of
those that ask for little, and how much the engine answered; what counts is the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from tests.gateway.conftest import World
from tests.gateway.share.group import GatewayProcess, group
from tests.gateway.share.load import Callers

SLOTS: Final = 32
FLOOD: Final = 96  # requests of one tenant at a time
FLOOD_TOKENS: Final = 100
LIGHT: Final = ("a", "b", "c", "d")
LIGHT_TOKENS: Final = 5
LIGHT_PAUSE_S: Final = 0.2
SETTLES_S: Final = 3.0  # until the flood stands
RATIO_MAX: Final = 1.1


async def flooded(gateways: int, seconds: float, folder: Path) -> tuple[list[float], float]:
    """Returns the waits of those that ask for little, and the answers of the flood in a second."""
    world = World()
    engine = await world.engine(step_s=0.02, max_num_seqs=2 * SLOTS)
    settings: dict[str, Any] = {
        "endpoints": [{"url": engine.url, "slots": SLOTS}],
        "tenants": [{"name": name} for name in ("flood", *LIGHT)],
    }
    waits: list[float] = []
    over = asyncio.Event()
    callers = Callers(world)
    try:
        async with group(world, folder) as made:
            started = await made.start(*[f"gw{number}" for number in range(1, gateways + 1)], **settings)

            async def floods(one: GatewayProcess) -> None:
                while not over.is_set():
                    await callers.ask(one, tokens=FLOOD_TOKENS, tenant="flood")

            async def asks(number: int, tenant: str) -> None:
                while not over.is_set():
                    number += 1
                    one = started[number % len(started)]
                    wait_s = await callers.ask(one, tokens=LIGHT_TOKENS, tenant=tenant)
                    if wait_s is not None and counting.is_set():
                        waits.append(wait_s)
                    await asyncio.sleep(LIGHT_PAUSE_S)

            counting = asyncio.Event()
            load = [asyncio.create_task(floods(started[number % len(started)])) for number in range(FLOOD)]
            load += [asyncio.create_task(asks(number, tenant)) for number, tenant in enumerate(LIGHT)]
            await asyncio.sleep(SETTLES_S)
            counting.set()
            before, began_s = callers.whole.total(), time.monotonic()
            await asyncio.sleep(seconds)
            rate = (callers.whole.total() - before) / (time.monotonic() - began_s)
            over.set()
            await asyncio.gather(*load)
            assert callers.lost == []
            assert engine.log.in_engine_max <= SLOTS
    finally:
        await world.close()
    return waits, rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    waits: dict[int, list[float]] = {1: [], 2: []}
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(args.rounds):
        for gateways in waits:
            with tempfile.TemporaryDirectory(prefix="penstock-flood-") as folder:
                some, rate = asyncio.run(flooded(gateways, args.seconds, Path(folder)))
            waits[gateways] += some
            rates[gateways].append(rate)
            print(f"{gateways} gateways: {_told(some)}; {rate:.1f} answers/s", flush=True)
    one, two = (quantiles(waits[gateways], n=100) for gateways in waits)
    print(f"one: {_told(waits[1])}; {median(rates[1]):.1f} answers/s")
    print(f"two: {_told(waits[2])}; {median(rates[2]):.1f} answers/s")
    print(f"two / one: p50 {two[49] / one[49]:.3f}, p95 {two[94] / one[94]:.3f}, p99 {two[98] / one[98]:.3f}", end="")
    print(f", answers {median(rates[2]) / median(rates[1]):.3f}")
    return 0 if two[98] <= RATIO_MAX * one[98] else 1


def _told(waits: list[float]) -> str:
    cuts = quantiles(waits, n=100)
    return f"{len(waits)} times to the first token, p50 {cuts[49]:.3f}, p95 {cuts[94]:.3f}, p99 {cuts[98]:.3f} s"


if __name__ == "__main__":
    sys.exit(main())
