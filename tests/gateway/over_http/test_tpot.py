"""A limit on the time per output token, over HTTP: held against the engine's own figure, whoever asks."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.values.catalogue import Cause
from tests.gateway.conftest import CHAT, World, chat, request

pytestmark = pytest.mark.virtual_time

LIMITS: list[dict[str, Any]] = [
    {"admission": {"max_time_per_output_token": "20ms"}},
    {"bands": [{"name": "standard", "max_time_per_output_token": "20ms"}]},
]


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_slow_engine_gets_nothing_more_even_where_all_it_runs_is_of_others(
    world: World, limit: dict[str, Any]
) -> None:
    engine = await world.engine(step_s=0.04)
    await world.gateway(slots=8, **limit)
    gateway_port, world.port = world.port, int(engine.url.rpartition(":")[2])
    others = [await world.client(request(path=CHAT, body=chat(tokens=1000, stream=True))) for _ in range(2)]
    world.port = gateway_port
    await world.until(lambda: world.picture().endpoints[0].engine_running == 2)
    await world.until(
        lambda: world.gate.driver.scheduler.inspect().pool[world.picture().endpoints[0].name].ledger.speed._page_s
    )
    waiting = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    assert world.picture().endpoints[0].closed is Cause.PACE
    for other in others:
        other.hang_up()
    assert (await waiting).status == 200


async def test_without_gauges_an_own_stream_shows_tpot_within_eight_tokens(world: World) -> None:
    await world.engine(step_s=0.04)
    endpoints = [{"url": world.engines[0].url, "engine": "openai", "models": ["sim"], "slots": 8}]
    await world.gateway(endpoints=endpoints, **LIMITS[0])
    slow = await world.streaming(tokens=1000)
    await slow.begun()
    while slow.seen.count(b"data:") < 12:
        await slow.piece()
    waiting = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    assert world.picture().endpoints[0].closed is Cause.PACE
    slow.hang_up()
    assert (await waiting).status == 200
