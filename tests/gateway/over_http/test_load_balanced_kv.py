"""S5 over HTTP, step by step as its author describes it: imbalance first, then the longest prefix by LMCache's word."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.sim.fake_engine.log import Fault
from penstock.sim.fake_engine.text import tokenize
from tests.gateway.conftest import CHAT, Answer, Client, World, chat, request
from tests.gateway.kv_cache.lmcache_services import FakeController

pytestmark = pytest.mark.virtual_time

PROMPT = "all the rivers run into the sea " * 150  # more than four chunks of 256 tokens
TOKENS = tokenize(json.dumps(chat(PROMPT)["messages"]).encode())


async def cluster(world: World, count: int = 3, **routing: Any) -> FakeController:
    """Engines gpu-0, gpu-1 …, each with an LMCache instance of its own (cache-0 …), and the controller of these."""
    controller = await world.beside(FakeController())
    engines = [await world.engine() for _ in range(count)]
    endpoints = [
        {"url": engine.url, "slots": 8, "name": f"gpu-{number}", "lmcache_instance": f"cache-{number}"}
        for number, engine in enumerate(engines)
    ]
    lmcache = {"controller": controller.url}
    policy = {"policy": "load_balanced_kv", "locality": "lmcache", "lmcache": lmcache, **routing}
    await world.gateway(endpoints=endpoints, routing=policy)
    return controller


async def busy(world: World, endpoint: str, count: int) -> list[Client]:
    """Requests that run there for as long as the test does."""
    path = f"{CHAT}?id={endpoint}"
    body = chat("something else", tokens=5_000, stream=True)
    clients = [await world.client(request(path=path, body=body)) for _ in range(count)]
    for client in clients:
        assert (await client.begun()).status == 200
    return clients


def went_to(answer: Answer) -> str | None:
    assert answer.status == 200, answer
    return answer.header("x-penstock-endpoint")


async def test_the_longest_prefix_wins_by_default_however_busy_its_endpoint_is(world: World) -> None:
    controller = await cluster(world)
    controller.holds("cache-0", TOKENS[:512])
    controller.holds("cache-1", TOKENS)
    clients = await busy(world, "gpu-1", 6)
    assert went_to(await world.chat(PROMPT)) == "gpu-1"
    assert controller.asked[0] == ("/lookup", {"tokens": TOKENS})
    hang_up(clients)


async def test_from_the_threshold_on_the_least_loaded_one_is_taken(world: World) -> None:
    controller = await cluster(world, imbalance_threshold=3)
    controller.holds("cache-1", TOKENS)
    clients = await busy(world, "gpu-0", 1) + await busy(world, "gpu-1", 2)
    assert went_to(await world.chat(PROMPT)) == "gpu-1"  # 2 − 0 is below it
    clients += await busy(world, "gpu-1", 1)
    assert went_to(await world.chat(PROMPT)) == "gpu-2"  # 3 − 0 reaches it
    hang_up(clients)


async def test_an_uncached_prompt_goes_to_an_endpoint_with_room(world: World) -> None:
    controller = await cluster(world)
    controller.holds("cache-1", TOKENS)
    clients = await busy(world, "gpu-0", 2) + await busy(world, "gpu-1", 1)
    assert went_to(await world.chat("never said before " * 200)) == "gpu-2"
    assert len(controller.asked) == 1
    hang_up(clients)


async def test_a_retry_goes_to_the_next_longest_prefix(world: World) -> None:
    controller = await cluster(world, 5)  # of which less than half hold any of it: else it would tell nothing
    controller.holds("cache-2", TOKENS[:512])
    controller.holds("cache-1", TOKENS)
    world.engines[1].set_fault(Fault(kind="error", count=1))
    clients = await busy(world, "gpu-2", 2)
    assert went_to(await world.chat(PROMPT)) == "gpu-2"
    assert [entry.outcome for entry in world.engines[1].log.entries] == ["error"]
    hang_up(clients)


async def test_a_dead_holder_is_passed_over_until_it_is_back(world: World) -> None:
    controller = await cluster(world)
    controller.holds("cache-1", TOKENS)
    assert went_to(await world.chat(PROMPT)) == "gpu-1"
    dead = world.engines[1]
    dead.set_fault(Fault(kind="die"))
    await world.until(lambda: world.picture().endpoints[1].state == "down")
    assert went_to(await world.chat(PROMPT)) in ("gpu-0", "gpu-2")
    back = await world.restart(dead)
    world.engines.insert(1, world.engines.pop(world.engines.index(back)))
    await world.until(lambda: world.picture().endpoints[1].state == "up")
    assert went_to(await world.chat(PROMPT)) == "gpu-1"


def hang_up(clients: list[Client]) -> None:
    for client in clients:
        client.hang_up()
