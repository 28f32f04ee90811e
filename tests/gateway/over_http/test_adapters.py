"""Engines that list more LoRA adapters than they hold: requests go where their adapter is in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World, chat
from tests.gateway.epp.test_messages import pool, whole

LOAD_S = 0.5


async def engines(world: World, count: int, adapters: Sequence[str], *, held: int) -> list[EngineServer]:
    made = [await world.engine(step_s=0.01) for _ in range(count)]
    for engine in made:
        engine.service.adapters.serve(adapters, most=held, load_s=LOAD_S)
    return made


async def listed(world: World, adapters: Sequence[str]) -> None:
    await world.until(lambda: all(set(adapters) <= set(e.models or ()) for e in world.picture().endpoints))


async def asks(world: World, adapters: Sequence[str], count: int, *, clients: int, **more: Any) -> None:
    """So many requests in all, each for the next adapter in a mixed order, from as many clients at once."""
    order = iter([adapters[(7 * number + number // 3) % len(adapters)] for number in range(count)])

    async def client() -> None:
        for adapter in order:
            answer = await world.ask(body=chat(tokens=10, **more) | {"model": adapter})
            assert answer.status == 200

    await asyncio.gather(*(client() for _ in range(clients)))


def loads(made: list[EngineServer]) -> int:
    return sum(engine.service.adapters.loads for engine in made)


@pytest.mark.virtual_time
@pytest.mark.parametrize("clients", [1, 4, 8])
@pytest.mark.parametrize(("slots", "stream"), [(16, True), (4, False)])
async def test_adapters_stay_where_they_are_loaded(
    world: World, workers: int, clients: int, slots: int, *, stream: bool
) -> None:
    adapters = ["a", "b", "c", "d"]
    made = await engines(world, 2, adapters, held=2)
    await world.gateway(slots=slots)
    await listed(world, adapters)
    await asks(world, adapters, 80, clients=clients, stream=stream)
    assert loads(made) <= 8
    assert workers


@pytest.mark.virtual_time
async def test_without_affinity_they_are_loaded_again_and_again(world: World) -> None:
    adapters = ["a", "b", "c", "d"]
    made = await engines(world, 2, adapters, held=2)
    await world.gateway(slots=16, routing={"adapter_affinity": False, "prefix_chunk": 4096})
    await listed(world, adapters)
    await asks(world, adapters, 80, clients=4)
    assert loads(made) > 20


async def test_the_picker_goes_by_adapters_too(world: World) -> None:
    adapters = ["a", "b"]
    async with pool(world, 2, slots=8) as its:
        for engine in world.engines:
            engine.service.adapters.serve(adapters, most=1, load_s=LOAD_S)
        await listed(world, adapters)
        bodies = {name: json.dumps(chat() | {"model": name}).encode() for name in adapters}
        places = {name: {await whole(its.stream(), bodies[name]) for _ in range(4)} for name in adapters}
        assert [len(each) for each in places.values()] == [1, 1]
        assert places["a"] != places["b"]
