"""Gateways are killed one after the other, under streams that run and requests that wait: what is lost by it?

`python -m tests.gateway.share.kills --kills 20 --streams 200 --waiting 100`: three gateways of two workers each, as
processes, which elect by a real Valkey. In turn the gateway that decides is killed (SIGKILL), another gateway, the one
that decides, and one worker; what was killed is started again. A caller goes to another gateway where one is down, and
never sends a request twice.

*The engine counts itself*, what runs and what waits in it, and each request by its id. *An extra wait is measured as
it is*: beside the load a caller of the first band, which gets the next slot that is free, asks each gateway again and
again; while nobody dies it waits for a slot, some hundredths of a second, so what it waits for longer is all of it
extra. One that would have come between two of its questions is missed by at most one normal wait and `PROBE_S`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World
from tests.gateway.elect import valkey
from tests.gateway.share.group import GatewayProcess, group
from tests.gateway.share.load import Callers
from tests.gateway.workers.pids import workers_of

TURNS: Final = ("decider", "gateway", "decider", "worker")
STEP_S: Final = 0.05
# Six seconds on average, longer than an election. Slots that were all given at one moment come back one by one.
TOKENS: Final = (1, 239)
PROBE_S: Final = 0.05  # between two questions of a probe
CAME_MEANWHILE: Final = 10  # to what was killed, since it said what it carries
REST_S: Final = 1.5  # in which nobody dies: what a wait is then
EXTRA_WAIT_S_MAX: Final = 4.0
WAIT_S: Final = 60.0
LOG_ENTRIES: Final = 1_000_000


@dataclass
class Kill:
    """One of them, and the longest that a probe waited from then on until all was whole again."""

    kind: str
    name: str
    at_s: float
    running: int
    waiting: int
    carried: int  #: requests of what was killed, as it last said
    over_s: float = 0.0
    longest_s: float = 0.0
    cut: int = 0


@dataclass
class Tally:
    """What callers and the engine saw."""

    slots: int
    callers: Callers
    kills: list[Kill] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  #: of probes: when they were sent, and how long
    sent_twice: int = 0
    in_engine_max: int = 0
    leases_left: float = 0.0
    alone: int = 0  #: times that a gateway decided alone, which no death alone should bring about
    faults: int = 0  #: tracebacks in logs

    def longest(self, kind: str) -> float:
        return max([kill.longest_s for kill in self.kills if kill.kind == kind], default=0.0)

    @property
    def normal(self) -> list[float]:
        """Waits of probes while nobody was dead."""
        troubled = [(kill.at_s, kill.over_s) for kill in self.kills]
        return [
            wait_s
            for sent_s, wait_s in self.waits
            if not any(at_s <= sent_s + wait_s and sent_s <= over_s for at_s, over_s in troubled)
        ]

    def wrong(self, *, extra_wait_s_max: float = EXTRA_WAIT_S_MAX) -> list[str]:
        """What is not as it has to be, in words."""
        found = [f"lost: {words}" for words in self.callers.lost[:10]]
        for kill in self.kills:
            if kill.cut > kill.carried + CAME_MEANWHILE:
                found.append(f"{kill.cut} requests were cut with a {kill.kind} that carried {kill.carried}")
        if self.in_engine_max > self.slots:
            found.append(f"{self.in_engine_max} requests were in an engine of {self.slots} slots")
        if self.sent_twice:
            found.append(f"{self.sent_twice} requests came to the engine twice")
        if self.leases_left:
            found.append(f"{self.leases_left:g} leases were left at the end")
        if self.alone:
            found.append(f"a gateway decided alone {self.alone} times")
        if self.faults:
            found.append(f"{self.faults} tracebacks in logs")
        longest_s = max(kill.longest_s for kill in self.kills)
        if longest_s > extra_wait_s_max:
            found.append(f"a request waited for {longest_s:.2f} s")
        return found


class Killing:
    """The gateways, the load on them, and the killer."""

    def __init__(
        self, world: World, engine: EngineServer, gateways: list[GatewayProcess], *, streams: int, waiting: int
    ) -> None:
        self._world = world
        self._engine = engine
        self._gateways = gateways
        self._streams, self._waiting = streams, waiting
        self.callers = Callers(world)
        self._alone = sum(one.log.count("decides alone") for one in gateways)  # while no leader is elected yet
        self._over = asyncio.Event()
        self.tally = Tally(streams, self.callers)

    async def run(self, kills: int, edges: int, told: Callable[[Kill], None]) -> Tally:
        """Kill so many times. `edges`: how many there are when all is whole."""
        load = [asyncio.create_task(self._asks(number)) for number in range(self._streams + self._waiting)]
        load += [asyncio.create_task(self._probes(one)) for one in self._gateways]
        try:
            for number in range(kills):
                await self._full(edges)
                await asyncio.sleep(REST_S)
                cut = self.callers.cut
                kill = await self._kill(TURNS[number % len(TURNS)])
                await self._full(edges)
                kill.over_s = time.monotonic()
                kill.cut = self.callers.cut - cut
                kill.longest_s = self._longest(kill)
                told(kill)
            await asyncio.sleep(REST_S)
        finally:
            self._over.set()
            await asyncio.gather(*load)
        return await self._count()

    # --- the load ---------------------------------------------------------------------------------------------------

    async def _asks(self, number: int) -> None:
        """One request after the other, at each gateway in turn."""
        random = Random(number)
        while not self._over.is_set():
            number += 1
            one = self._gateways[number % len(self._gateways)]
            await self.callers.ask(one, tokens=random.randint(*TOKENS))

    async def _probes(self, one: GatewayProcess) -> None:
        while not self._over.is_set():
            sent_s = time.monotonic()
            wait_s = await self.callers.ask(one, tokens=1, band="first")
            if wait_s is not None:
                self.tally.waits.append((sent_s, wait_s))
            await asyncio.sleep(PROBE_S)

    # --- the killer -------------------------------------------------------------------------------------------------

    async def _full(self, edges: int) -> None:
        """Wait until all gateways and workers are there, the engine has all its slots taken, and the rest waits."""
        for one in self._gateways:
            await one.until(
                lambda state: len(state["edges"]) == edges and all(edge["up_s"] is not None for edge in state["edges"])
            )
        await self._gateways[0].until(lambda state: state["waiting"] >= 0.9 * self._waiting)
        await self._world.until(lambda: self._engine.engine.in_engine >= self._streams, within_s=WAIT_S)

    async def _kill(self, kind: str) -> Kill:
        roles = [(await one.state())["share"] for one in self._gateways]
        leads = next(one for one in self._gateways if one.share == roles[0]["decider"])
        others = [one for one in self._gateways if one is not leads]
        victim = leads if kind == "decider" else others[len(self.tally.kills) % len(others)]
        state = await self._gateways[0].state()
        assert victim.process is not None
        first = victim.process.process.pid
        held = {edge["name"]: edge["requests"] for edge in state["edges"] if edge["name"].startswith(f"{victim.name}/")}
        pid, its, carried = first, victim.name, sum(held.values())
        if kind == "worker":
            carried, its, pid = max((held[name], name, pid) for pid, name in workers_of(first).items())
        kill = Kill(kind, its, time.monotonic(), state["running"], state["waiting"], carried)
        self.tally.kills.append(kill)
        self.callers.died(victim.name)
        os.kill(pid, signal.SIGKILL)
        if kind == "worker":
            before = _where(state, its)
            await self._gateways[0].until(lambda state: _where(state, its) not in (None, before))
            self.callers.is_back(victim.name)
            return kill
        await victim.process.process.wait()
        if kind == "decider":
            for one in others:
                await one.until(lambda state: state["share"]["decider"] not in (None, leads.share))
        await victim.start()
        self.callers.is_back(victim.name)
        return kill

    def _longest(self, kill: Kill) -> float:
        """The longest that a probe waited which was under way after the kill, at whichever gateway."""
        return max(
            [wait_s for sent_s, wait_s in self.tally.waits if sent_s + wait_s >= kill.at_s and sent_s <= kill.over_s],
            default=0.0,
        )

    async def _count(self) -> Tally:
        tally, log = self.tally, self._engine.log
        tally.alone = -self._alone
        for one in self._gateways:
            await one.until(lambda state: state["running"] == state["waiting"] == 0)
            tally.leases_left += await one.metric("penstock_leases")
            whole_log = one.earlier + one.log
            tally.alone += whole_log.count("decides alone")
            tally.faults += whole_log.count("Traceback")
        seen = Counter(entry.id for entry in log.entries)
        assert len(log.entries) < LOG_ENTRIES
        assert len(seen) >= self.callers.whole.total(), "each answer was made by the engine, and it says whose it is"
        tally.sent_twice = sum(times > 1 for times in seen.values())
        tally.in_engine_max = log.in_engine_max
        return tally


def _where(state: dict[str, Any], name: str) -> str | None:
    """Where an edge is; None: it is not there."""
    return next((edge["where"] for edge in state["edges"] if edge["name"] == name and edge["up_s"] is not None), None)


async def killed(
    kills: int,
    *,
    streams: int,
    waiting: int,
    gateways: int = 3,
    workers: int = 2,
    folder: Path,
    told: Callable[[Kill], None] = lambda _: None,
) -> Tally:
    """Start all, kill so many times, and return what was seen."""
    world = World()
    # Room for twice as many: what is too much would run there, and be counted.
    engine = await world.engine(step_s=STEP_S, max_num_seqs=2 * streams)
    engine.log.entries = deque(maxlen=LOG_ENTRIES)
    settings: dict[str, Any] = {
        "endpoints": [{"url": engine.url, "slots": streams}],
        "bands": [{"name": "first"}, {"name": "load"}],
        "default_band": "load",
        "identity": {"max_band": "first"},
        "admission": {"reserved_slots": 0},  # all slots are to be taken
        "workers": workers,
    }
    try:
        with valkey.server() as store:
            share = {"alone_after": "5s", "elect": {"valkey": {"url": store.url}}}
            async with group(world, folder) as made:
                names = [f"gw{number}" for number in range(1, gateways + 1)]
                started = await made.start(*names, share=share, **settings)
                killing = Killing(world, engine, started, streams=streams, waiting=waiting)
                return await killing.run(kills, gateways * workers + gateways - 1, told)
    finally:
        await world.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=200, help="that run: the engine's slots")
    parser.add_argument("--waiting", type=int, default=100, help="requests that wait")
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of each gateway")
    args = parser.parse_args()

    def told(kill: Kill) -> None:
        print(
            f"{kill.kind} {kill.name}, with {kill.running} running and {kill.waiting} waiting: {kill.cut} cut of "
            f"{kill.carried} that it carried; a probe waited for {kill.longest_s:.2f} s at the most; all as before "
            f"after {kill.over_s - kill.at_s:.1f} s",
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as folder:
        work = killed(
            args.kills,
            streams=args.streams,
            waiting=args.waiting,
            gateways=args.gateways,
            workers=args.workers,
            folder=Path(folder),
            told=told,
        )
        tally = asyncio.run(work)
    normal = tally.normal
    callers = tally.callers
    print(f"requests: {callers.whole.total()} whole, {callers.cut} cut with their own gateway or worker, ", end="")
    print(f"{len(callers.lost)} lost")
    print(f"in the engine at most {tally.in_engine_max} of {tally.slots}; sent twice: {tally.sent_twice}")
    print(f"leases left: {tally.leases_left:g}; decided alone: {tally.alone}; tracebacks: {tally.faults}")
    print(f"a probe's wait while nobody is dead: median {median(normal):.3f} s, longest {max(normal):.3f} s")
    for kind in dict.fromkeys(TURNS):
        print(f"longest wait of a probe after a {kind} was killed: {tally.longest(kind):.2f} s")
    wrong = tally.wrong()
    print("\n".join(wrong) or "all as it has to be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
