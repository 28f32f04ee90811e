"""Fairness through Envoy: equal tenants get equal service, however many requests each one sends."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.gateway.conftest import World
from tests.gateway.epp.conftest import Envoy, behind

SENT = {"a": 4, "b": 8, "c": 16, "d": 24, "e": 32}  # requests of each that are always under way


@pytest.mark.slow
async def test_equal_tenants_get_equal_service_through_envoy(world: World, envoy: Envoy) -> None:
    for _ in range(2):
        await world.engine(step_s=0.01)  # the engines are the bottleneck, not this process: each tenant always waits
    await behind(world, envoy, slots=2, tenants=[{"name": name} for name in SENT])
    served: Counter[str] = Counter()
    over = asyncio.Event()

    async def asks(tenant: str) -> None:
        while not over.is_set():
            answer = await world.chat_with({"x-tenant-id": tenant}, tokens=5)
            assert answer.status == 200
            served[tenant] += 1
            if served.total() >= 600:
                over.set()

    tasks = [asyncio.ensure_future(asks(tenant)) for tenant, count in SENT.items() for _ in range(count)]
    await over.wait()
    got = [served[tenant] for tenant in SENT]
    await asyncio.gather(*tasks)
    assert sum(got) ** 2 / (len(got) * sum(each * each for each in got)) >= 0.995, got
