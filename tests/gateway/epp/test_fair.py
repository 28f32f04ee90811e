"""Fairness through Envoy: equal tenants get equal service, however many requests each one sends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from tests.gateway.conftest import World
from tests.gateway.epp.conftest import Envoy, behind
from tests.gateway.raw_engine import RawEngine, answering_when

SENT = {"a": 8, "b": 12, "c": 16, "d": 24, "e": 32}  # requests of each that are always under way
SERVED = 200
SLOTS = 4  # a tenant may lead by so many at the start, and by so many that run at the end
BODY = json.dumps({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.slow
async def test_equal_tenants_get_equal_service_through_envoy(world: World, envoy: Envoy) -> None:
    """The engine answers when all requests are at the picker, so each choice is between all tenants, on any machine."""
    over = asyncio.Event()

    def all_asked() -> bool:
        return over.is_set() or world.picture().waiting + world.picture().running == sum(SENT.values())

    raw = await world.beside(RawEngine(answering_when(lambda: world.until(all_asked), ANSWER)))
    engine = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": SLOTS}
    await behind(world, envoy, endpoints=[engine], tenants=[{"name": name} for name in SENT])
    served: Counter[str] = Counter()

    async def asks(tenant: str) -> None:
        while not over.is_set():
            assert (await world.chat_with({"x-tenant-id": tenant})).status == 200
            if not over.is_set():
                served[tenant] += 1
            if served.total() == SERVED:
                over.set()

    async with asyncio.TaskGroup() as group:
        for tenant, count in SENT.items():
            for _ in range(count):
                group.create_task(asks(tenant))
    assert max(served.values()) - min(served.values()) <= 2 * SLOTS, served
