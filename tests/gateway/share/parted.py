"""Three gateways that elect by a Valkey, with ways between them and to it that can be cut (`network.py`).

Callers ask at every gateway all the time, and nobody dies: so whatever fails, all of them are served, each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World
from tests.gateway.elect import valkey
from tests.gateway.share.group import GatewayProcess, Group, group
from tests.gateway.share.load import Callers
from tests.gateway.share.network import Network, network

NAMES = ("gw1", "gw2", "gw3")
SLOTS = 6
PART = SLOTS // len(NAMES)
ALONE_AFTER_S = 5.0
EDGES = 2 * len(NAMES) - 1  # a worker of each, and the first processes of those that do not decide


class Parted:
    """Three gateways, the network between them, and callers of each."""

    def __init__(self, world: World, engine: EngineServer, net: Network, callers: Callers) -> None:
        self.world = world
        self.engine = engine
        self.net = net
        self.callers = callers
        self.gateways = list(net.gateways.values())

    async def leader(self) -> GatewayProcess:
        """Whoever decides for all three."""
        state = await self.gateways[0].until(lambda state: len(state["edges"]) == EDGES)
        return self.net.gateways[state["share"]["name"]]

    async def one_queue(self) -> GatewayProcess:
        """Wait until one decides for all. Returns which."""
        names = set[str]()
        for one in self.gateways:
            state = await one.until(lambda state: len(state["edges"]) == EDGES and state["share"]["role"] == "leads")
            names.add(state["share"]["name"])
            assert await one.metric("penstock_share_alone") == 0
        assert len(names) == 1
        return self.net.gateways[names.pop()]

    async def all_are_served(self) -> None:
        """Each gateway has answers that came to their end from now on."""
        before = self.callers.whole.copy()
        await self.world.until(lambda: all(self.callers.whole[name] > before[name] + 3 for name in NAMES))
        assert self.callers.lost == []

    async def most_in_engine(self) -> int:
        """Since this was asked last."""
        most, self.engine.log.in_engine_max = self.engine.log.in_engine_max, 0
        return most


@asynccontextmanager
async def parted(world: World, folder: Path) -> AsyncIterator[Parted]:
    engine = await world.engine(step_s=0.05)
    with valkey.server() as server:
        async with group(world, folder) as made, network(NAMES, str(server.socket)) as net:
            for name in NAMES:
                net.gateways[name] = _made(made, net, name, engine)
                await net.gateways[name].start()
            callers, over = Callers(world), asyncio.Event()
            one = Parted(world, engine, net, callers)
            await one.one_queue()

            async def asks(gateway: GatewayProcess) -> None:
                while not over.is_set():
                    await callers.ask(gateway, tokens=12)

            load = [asyncio.create_task(asks(gateway)) for gateway in one.gateways for _ in range(4)]
            try:
                await one.all_are_served()
                yield one
            finally:
                net.mend()
                over.set()
                await asyncio.gather(*load)
            assert callers.lost == []
            ids = [entry.id for entry in engine.log.entries]
            assert len(ids) == len(set(ids)), "nothing was sent twice"


def _made(made: Group, net: Network, name: str, engine: EngineServer) -> GatewayProcess:
    url = f"valkey://{net.stores[name].address}"
    share = {
        "advertise": net.ways[name].address,
        "elect": {"valkey": {"url": url}},
        "alone_after": f"{ALONE_AFTER_S:g}s",
    }
    gateway = made.made(
        name, share=share, endpoints=[{"url": engine.url, "slots": SLOTS}], admission={"reserved_slots": 0}
    )
    net.ways[name].to = gateway.share
    return gateway
