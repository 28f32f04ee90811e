"""Gateways are replaced one by one under load, as by a Deployment: no request fails, by the proxy or by the picker.

A balancer stands before them that learns of a stopped gateway only from its readiness, some looks later, and keeps its
connections open.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.gateway.conftest import Client, World, chat, request
from tests.gateway.epp.conftest import Envoy
from tests.gateway.share.group import GatewayProcess, group
from tests.ports import free_port

pytestmark = pytest.mark.slow

REQUESTS = 2_000
CALLERS = 16
LOOK_S = 0.2  # between a balancer's checks
DELAY = "3s"  # many looks, of Envoy's health check (1 s), too


class Balancer:
    """Takes a kept connection to a ready gateway, in turn."""

    def __init__(self) -> None:
        self.members: dict[GatewayProcess, bool] = {}
        self.kept: dict[GatewayProcess, list[Client]] = {}
        self._turns = itertools.count()

    def add(self, gateway: GatewayProcess) -> None:
        self.members[gateway], self.kept[gateway] = False, []

    async def look(self) -> None:
        """Ask each for its readiness, for ever."""
        while True:
            for gateway in tuple(self.members):
                try:
                    self.members[gateway] = (await gateway.ask("GET", "/ready")).status == 200
                except OSError:
                    self.members[gateway] = False
            await asyncio.sleep(LOOK_S)

    async def chat(self) -> int:
        ready = [gateway for gateway, is_ready in self.members.items() if is_ready]
        gateway = ready[next(self._turns) % len(ready)]
        kept, data = self.kept[gateway], request(body=chat(tokens=1))
        client = kept.pop() if kept else await gateway.client(b"")
        client.send(data)
        answer = await client.answer()
        if answer.header("connection") == "keep-alive":
            kept.append(client)
        return answer.status


async def asked(chat: Callable[[], Awaitable[int]], go_on: asyncio.Event) -> Counter[int]:
    """The statuses of all requests: at least `REQUESTS`, and until the event."""
    statuses: Counter[int] = Counter()

    async def caller() -> None:
        while not go_on.is_set() or statuses.total() < REQUESTS:
            statuses[await chat()] += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return statuses


async def stopped(gateway: GatewayProcess) -> None:
    assert gateway.process is not None
    gateway.process.signal()
    assert await gateway.process.process.wait() == 0


async def test_no_request_by_the_proxy_fails_while_gateways_are_replaced(world: World, tmp_path: Path) -> None:
    await world.engine()
    async with group(world, tmp_path) as its:
        made = [its.made(name, queue={"drain_delay": DELAY}, workers=1 + at % 2) for at, name in enumerate("abcd")]
        balancer = Balancer()
        for gateway in made[:2]:
            await gateway.start()
            balancer.add(gateway)
        looks = asyncio.create_task(balancer.look())
        for gateway in made[:2]:
            await gateway.until(lambda state: len(state["endpoints"]) == 1)
        while not all(balancer.members.values()):
            await asyncio.sleep(LOOK_S)
        over = asyncio.Event()
        asking = asyncio.create_task(asked(balancer.chat, over))
        for old, new in zip(made[:2], made[2:], strict=True):
            await new.start()
            balancer.add(new)
            while not balancer.members[new]:
                await asyncio.sleep(LOOK_S)
            await stopped(old)
            del balancer.members[old]
        over.set()
        statuses = await asking
        looks.cancel()
    assert statuses.keys() == {200}, statuses
    assert statuses[200] >= REQUESTS


async def test_no_request_through_envoy_fails_while_pickers_are_replaced(world: World, tmp_path: Path) -> None:
    await world.engine()
    ports = free_port(), free_port()
    async with AsyncExitStack() as ending:
        its = await ending.enter_async_context(group(world, tmp_path))
        made = [
            its.made(name, queue={"drain_delay": DELAY}, epp={"listen": f"127.0.0.1:{port}"})
            for name, port in zip("ab", ports, strict=True)
        ]
        envoy = Envoy(picker=ports[0], also=ports[1])
        ending.callback(envoy.close)
        envoy.wait()
        await asyncio.gather(*(gateway.start() for gateway in made))
        world.port = envoy.port
        kept: list[Client] = []

        async def once() -> int:
            client = kept.pop() if kept else await world.client()
            client.send(request(body=chat(tokens=1)))
            status = (await client.answer()).status
            kept.append(client)
            return status

        while await once() != 200:
            pass
        over = asyncio.Event()
        asking = asyncio.create_task(asked(once, over))
        for gateway in made:
            await stopped(gateway)
            await gateway.start()
            while not await gateway.metric("penstock_requests_total"):  # until Envoy finds it well
                await asyncio.sleep(LOOK_S)
        over.set()
        statuses = await asking
    assert statuses.keys() == {200}, statuses
    assert statuses[200] >= REQUESTS
