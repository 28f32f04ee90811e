"""Elections in virtual time: the electors that run in gateways, on a loop that does not wait, with a store and links
between gateways that are slow, lose, break and lie. Each gateway has a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from penstock.gateway.elect.elector import Elector
from penstock.share.election import Claim, ElectionError, Record, Standing
from tests.virtual_loop import VirtualLoop

TICK_S = 0.01  # how often who leads is looked at
BEAT_S = 0.25  # between two words of a decider to its edges
KNOWN_S = 10.0  # a gateway that died counts for so long


def virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


class TheStore:
    """What is in the store, and what it was before."""

    def __init__(self) -> None:
        self.record = Record()
        self.history: list[Record] = [self.record]
        self.down = False
        self.writes = 0

    def put(self, over: Record, claim: Claim) -> Record | None:
        if over.version != self.record.version:
            return None
        self.writes += 1
        self.record = Record(f"v{self.writes}", claim.id, claim.address, claim.epoch)
        self.history.append(self.record)
        return self.record


class Way:
    """One gateway's way to the store."""

    where = "the store"

    def __init__(self, store: TheStore, random: Random) -> None:
        self.store = store
        self.random = random
        self.cut = False
        self.delays_s = (0.001, 0.02)
        self.lost = 0.0  # of one word
        self.trips = 0

    async def _trip(self) -> None:
        self.trips += 1
        if self.cut or self.random.random() < self.lost:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.random.uniform(*self.delays_s))
        if self.store.down:
            raise ElectionError("refused")

    async def read(self) -> Record:
        await self._trip()
        record = self.store.record
        await self._trip()
        return record

    async def write(self, over: Record, claim: Claim) -> Record | None:
        await self._trip()
        written = self.store.put(over, claim)
        await self._trip()
        return written

    async def close(self) -> None: ...


class Node:
    """One gateway, or one life of it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.way = Way(world.store, world.random)
        begun_s, rate = world.random.uniform(0, 1e6), world.random.uniform(0.99, 1.01)

        def now() -> float:
            return begun_s + rate * world.time()

        self.now = now
        self.elector = Elector(self.way, address=name, now=self.now)
        self.told: list[Standing] = []
        self.died_s: float | None = None
        self.task = asyncio.ensure_future(self.elector.run(self.told.append))

    @property
    def alive(self) -> bool:
        return self.died_s is None

    async def die(self) -> None:
        self.died_s = self.world.time()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class World:
    """Some gateways with one store. What is asked of them all the time: that two never lead."""

    def __init__(self, seed: int = 0, *, nodes: int = 3, linked: bool = False) -> None:
        self.random = Random(seed)
        self.time: Callable[[], float] = asyncio.get_running_loop().time
        self.store = TheStore()
        self.linked = linked  # gateways talk to each other
        self.cut: set[frozenset[str]] = set()  # pairs that do not hear each other
        self.nodes: list[Node] = []
        self.led: list[tuple[float, str, int]] = []  # since when, who, in which epoch
        self.together_s = 0.0
        for number in range(nodes):
            self.add(f"g{number}")

    def add(self, name: str) -> Node:
        node = Node(self, name)
        self.nodes.append(node)
        return node

    def leaders(self) -> list[tuple[Node, int]]:
        found = [(node, node.elector.leads()) for node in self.nodes if node.alive]
        return [(node, epoch) for node, epoch in found if epoch is not None]

    @property
    def leader(self) -> Node | None:
        found = self.leaders()
        return found[0][0] if found else None

    async def passes(self, seconds: float) -> None:
        """Time passes, and is looked at."""
        end_s, beat_s = self.time() + seconds, 0.0
        while self.time() < end_s:
            await asyncio.sleep(TICK_S)
            leaders = self.leaders()
            if len(leaders) > 1:
                self.together_s += TICK_S
            for node, epoch in leaders:
                if not any(told[1:] == (node.name, epoch) for told in self.led):
                    self.led.append((self.time(), node.name, epoch))
            if self.linked and self.time() >= beat_s:
                beat_s = self.time() + BEAT_S
                self._beat(leaders)

    async def until(self, claim: Callable[[], object], within_s: float = 30.0) -> float:
        """How long it took."""
        begun_s = self.time()
        while not claim():
            assert self.time() < begun_s + within_s, "it did not come"
            await self.passes(TICK_S)
        return self.time() - begun_s

    def _beat(self, leaders: list[tuple[Node, int]]) -> None:
        for leader, epoch in leaders:
            answered = True
            for node in self.nodes:
                if node is leader or (node.died_s is not None and self.time() > node.died_s + KNOWN_S):
                    continue
                if not node.alive or frozenset((node.name, leader.name)) in self.cut:
                    answered = False
                elif epoch >= node.elector.floor:
                    node.elector.hears(node.now())
                else:
                    leader.elector.at_least(node.elector.floor)
                    answered = False
            if answered:
                leader.elector.followed(leader.now())

    async def end(self) -> None:
        for node in self.nodes:
            if node.alive:
                await node.die()
