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
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import pytest

from tests.gateway.elect.stores import KINDS, store
from tests.patience import WAIT_S, looks

TTL_S = 3.0

pytestmark = pytest.mark.slow

SPAN = 1 / 3


class Moment(NamedTuple):
    """At some time between the two it might decide."""

    before_s: float
    after_s: float
    epoch: int


class Holder:
    """One process, and what it has written so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.moments: list[Moment] = []  # at which it might decide
        self.standing = ""  # as it said last
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                return  # it was killed while it wrote
            if line.startswith(b"#"):
                self.standing = line.decode()
            else:
                before, after, epoch = line.split()
                self.moments.append(Moment(float(before), float(after), int(epoch)))

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.process.pid, which)

    @property
    def leads(self) -> bool:
        return bool(self.moments) and self.moments[-1].after_s > time.monotonic() - 0.1


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
        for holder in made:
            await holder.process.wait()
            await holder.reading


async def leader(running: list[Holder], but: Holder | None = None) -> Holder:
    """Wait until one leads; how soon that is `test_election` shows, in virtual time."""
    async for _ in looks(WAIT_S, 0.005):
        for holder in running:
            if holder is not but and holder.leads:
                return holder
    raise AssertionError


async def follows(holder: Holder) -> None:
    """Wait until it says that another one decides."""
    async for _ in looks(WAIT_S):
        if "Follows" in holder.standing:
            return


async def one_follows_the_other(two: list[Holder]) -> None:
    """Wait until it does, whichever leads: on a busy machine an elected one may lose its place at once."""
    async for _ in looks(WAIT_S):
        for first, second in permutations(two):
            if first.leads and "Follows" in second.standing and first.name in second.standing:
                return


def never_two(running: list[Holder]) -> list[int]:
    """The epochs, in their order. In each, one gateway decided, and it had ended when the next began."""
    spans: dict[int, tuple[str, float, float]] = {}
    for holder in running:
        for moment in holder.moments:
            name, first_s, last_s = spans.get(moment.epoch, (holder.name, moment.after_s, moment.before_s))
            assert name == holder.name, f"{name} and {holder.name} in epoch {moment.epoch}"
            spans[moment.epoch] = (name, min(first_s, moment.after_s), max(last_s, moment.before_s))
    epochs = sorted(spans)
    for one, next_one in pairwise(epochs):
        assert spans[one][2] < spans[next_one][1], (spans[one], spans[next_one])
    return epochs


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_stopped_and_with_a_store_that_goes(kind: str) -> None:
    with store(kind) as stores:
        async with holders(stores.settings) as running:
            first = await leader(running)

            first.signal(signal.SIGSTOP)
            await leader(running, but=first)
            woken_s, led = time.monotonic(), first.moments[-1].epoch
            first.signal(signal.SIGCONT)
            await follows(first)
            late = [moment for moment in first.moments if moment.before_s > woken_s and moment.epoch == led]
            assert not late, "it looks at the clock first"
            second = await leader(running)

            second.signal(signal.SIGKILL)
            # Others have to see the election: what nobody saw and the store forgot is the one epoch that comes twice,
            # until an edge tells of it (docs/decisions/0073).
            await one_follows_the_other([holder for holder in running if holder is not second])
            stores.stop()
            await asyncio.sleep(TTL_S * SPAN + 0.2)
            assert not [holder for holder in running if holder.leads], "nobody follows here, so nobody goes on"
            stores.start()
            await leader(running)
            await asyncio.sleep(0.2)
            epochs = never_two(running)
            assert len(epochs) >= 4
            assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))
