"""Elections as processes of their own, with real stores: killed, stopped, and with a store that goes and comes back.

Each process writes down the moments at which it may decide, by the clock that all have in common; so whether two ever
might is seen from outside. All spans are a third of a gateway's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from penstock.share.election import LOOK_S, TTL_S
from tests.gateway.elect.stores import KINDS, store

SPAN = 1 / 3
SLACK_S = 1.5  # for processes that wait for a processor
WAIT_S = 30.0


class Holder:
    """One process, and what it has written so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.moments: list[tuple[float, int]] = []  # when it might decide, in which epoch
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.startswith(b"#"):
                moment, epoch = line.split()
                self.moments.append((float(moment), int(epoch)))

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.process.pid, which)

    @property
    def leads(self) -> bool:
        return bool(self.moments) and self.moments[-1][0] > time.monotonic() - 0.1


@asynccontextmanager
async def holders(settings: dict[str, Any]) -> AsyncIterator[list[Holder]]:
    made: list[Holder] = []
    try:
        for name in ("one:1", "two:1", "three:1"):
            given = [name, str(SPAN), json.dumps(settings)]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.gateway.elect.holder", *given, stdout=asyncio.subprocess.PIPE
            )
            made.append(Holder(name, process))
        yield made
    finally:
        for holder in made:
            if holder.process.returncode is None:
                holder.signal(signal.SIGKILL)
            await holder.process.wait()
            await holder.reading


async def leader(running: list[Holder], but: Holder | None = None) -> Holder:
    async with asyncio.timeout(WAIT_S):
        while True:
            for holder in running:
                if holder is not but and holder.leads:
                    return holder
            await asyncio.sleep(0.005)


def never_two(running: list[Holder]) -> list[int]:
    """The epochs, in their order. In each, one gateway decided, and it had ended when the next began."""
    spans: dict[int, tuple[str, float, float]] = {}
    for holder in running:
        for moment, epoch in holder.moments:
            name, first, last = spans.get(epoch, (holder.name, moment, moment))
            assert name == holder.name, f"{name} and {holder.name} in epoch {epoch}"
            spans[epoch] = (name, min(first, moment), max(last, moment))
    epochs = sorted(spans)
    for before, after in pairwise(epochs):
        assert spans[before][2] < spans[after][1], (spans[before], spans[after])
    return epochs


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_stopped_and_with_a_store_that_goes(kind: str) -> None:
    with store(kind) as stores:
        async with holders(stores.settings) as running:
            first = await leader(running)

            first.signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            second = await leader(running, but=first)
            assert time.monotonic() - stopped_s <= (TTL_S + LOOK_S) * SPAN + SLACK_S
            woken_s = time.monotonic()
            first.signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
            assert not [moment for moment, _ in first.moments if moment > woken_s], "it looks at the clock first"
            assert second.leads

            second.signal(signal.SIGKILL)
            third = await leader(running, but=second)
            assert third is not second

            # Others have to see the election: what nobody saw and the store forgot is the one epoch that comes twice,
            # until an edge tells of it (docs/decisions/0073).
            await asyncio.sleep(2 * LOOK_S * SPAN + 0.1)
            stores.stop()
            await asyncio.sleep(TTL_S * SPAN + 0.2)
            assert not [holder for holder in running if holder.leads], "nobody follows here, so nobody goes on"
            stores.start()
            await leader(running)
            await asyncio.sleep(0.2)
            epochs = never_two(running)
            assert len(epochs) >= 4
            assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))
