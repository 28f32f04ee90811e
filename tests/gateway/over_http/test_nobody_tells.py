"""What a new user meets first: no size told, gauges that lag or stand still; over HTTP, with the simulated engine."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.endpoints.page import Standing
from tests.gateway.conftest import World, fault


@pytest.mark.virtual_time
@pytest.mark.interpreted  # it listens in the place of a method
async def test_fast_readings_begin_when_somebody_waits_however_long_the_interval(world: World) -> None:
    engine = await world.engine(max_num_seqs=1, step_s=0.05)
    await world.gateway(slots=1, observe={"interval": "30s", "fast_interval": "20ms"})
    gate = world.gate
    read: list[float] = []
    observed = gate.driver.scheduler.observed

    def note(*args: object, **more: object) -> object:
        read.append(gate.driver.now())
        return observed(*args, **more)  # type: ignore[arg-type]

    gate.driver.scheduler.observed = note  # type: ignore[method-assign,assignment]
    begun = await world.streaming(tokens=40)
    await begun.begun()
    assert not read, "nobody waits, so the next look is due in half a minute"
    waits = await world.streaming(tokens=1)
    await world.until(lambda: world.picture().waiting == 1)
    began_s = gate.driver.now()
    await world.until(lambda: len(read) >= 3, within_s=5.0)
    assert read[0] - began_s < 1.0
    for client in (begun, waits):
        client.hang_up()
    assert engine.log.in_engine_max == 1


@pytest.mark.virtual_time
async def test_an_unknown_size_is_found_by_answers_alone(world: World) -> None:
    engine = await world.engine(max_num_seqs=64, step_s=0.01)
    endpoint = {"url": engine.url, "engine": "openai", "slots": "auto"}
    await world.gateway(endpoints=[endpoint], bands=[{"name": "b"}], default_band="b")
    stop = asyncio.Event()

    async def again() -> None:
        while not stop.is_set():
            assert (await world.chat(stream=True, tokens=10)).status == 200

    clients = [asyncio.ensure_future(again()) for _ in range(48)]
    try:
        await world.until(lambda: engine.log.in_engine_max >= 44)
    finally:
        stop.set()
        await asyncio.gather(*clients)
    assert world.picture().endpoints[0].gauges == Standing.NONE


@pytest.mark.virtual_time
async def test_gauges_frozen_at_overloaded_close_an_endpoint_only_briefly(world: World) -> None:
    engine = await world.engine(max_num_seqs=8, step_s=0.01)
    fault(engine, "metrics_lie", value={"frozen": True, "frozen_running": 64, "frozen_waiting": 200})
    await world.gateway(slots=8)
    await world.until(lambda: world.picture().endpoints[0].engine_waiting)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    answers = await asyncio.gather(*(world.chat(stream=True, tokens=2) for _ in range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    assert loop.time() - began_s < 5.0
    shown = world.picture().endpoints[0]
    assert shown.gauges != Standing.BELIEVED
    assert shown.gauges_why
    status = (await world.ask("GET", "/admin/state")).json()
    assert status["endpoints"][0]["gauges_why"] == shown.gauges_why
