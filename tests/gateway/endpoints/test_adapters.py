"""Models that an engine no longer has: an adapter is unloaded, and the gateway finds out by a request.

Probes are far apart here, so nobody but the request itself can have told.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World, chat

ADAPTER = "law"
UNSEEN: dict[str, Any] = {"health": {"probe_interval": 60}}
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


async def adapted(world: World, count: int = 2, **settings: Any) -> list[EngineServer]:
    """Engines with an adapter each; with nothing running, the first one is chosen first."""
    engines = [await world.engine() for _ in range(count)]
    for engine in engines:
        await load(world, engine)
    await world.gateway(**UNSEEN | settings)
    await world.until(lambda: all(ADAPTER in (e.models or ()) for e in world.picture().endpoints))
    return engines


async def load(world: World, engine: EngineServer, verb: str = "load") -> None:
    world.port, own = int(engine.url.rpartition(":")[2]), world.port
    answer = await world.ask(path=f"/v1/{verb}_lora_adapter", body={"lora_name": ADAPTER, "lora_path": "/law"})
    assert answer.status == 200
    world.port = own


def at(engine: EngineServer) -> str:
    return engine.url.removeprefix("http://")


def served(world: World) -> list[bool]:
    return [ADAPTER in (endpoint.models or ()) for endpoint in world.picture().endpoints]


@STREAMED
async def test_what_one_engine_has_unloaded_another_serves(world: World, stream: bool) -> None:
    without, has = await adapted(world)
    await load(world, without, "unload")
    answer = await world.chat(model=ADAPTER, stream=stream)
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(has))
    assert await world.metric("penstock_requeues_total", reason="model_gone") == 1
    await world.until(lambda: served(world) == [False, True])  # asked at once, not with the next probe
    await world.chat(model=ADAPTER, stream=stream)
    assert [len(engine.log.entries) for engine in (without, has)] == [1, 2]
    assert [endpoint.state for endpoint in world.picture().endpoints] == ["up", "up"]
    assert (await world.chat(model="sim")).status == 200


@STREAMED
async def test_what_every_engine_has_unloaded_is_a_404_of_our_own(world: World, stream: bool) -> None:
    engines = await adapted(world)
    for engine in engines:
        await load(world, engine, "unload")
    answer = await world.chat(model=ADAPTER, stream=stream)
    assert (answer.status, answer.header("x-penstock-reason")) == (404, "model_not_found")
    error = answer.error()
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert f"`{ADAPTER}`" in error["message"]
    assert answer.header("retry-after") is None
    assert [len(engine.log.entries) for engine in engines] == [1, 1], "each was asked once"
    await world.until(lambda: served(world) == [False, False])
    listed = (await world.ask("GET", "/v1/models")).json()["data"]
    assert [entry["id"] for entry in listed] == ["sim"]
    assert await world.metric("penstock_requests_total", outcome="failed", reason="model_not_found") == 1


async def test_who_waits_for_an_unloaded_adapter_hears_it_too(world: World) -> None:
    (engine,) = await adapted(world, 1)
    await world.gate.close()
    await world.gateway(slots=1, **UNSEEN)
    await world.until(lambda: served(world) == [True])
    busy = world.soon(world.chat(tokens=50))
    await world.until(lambda: engine.engine.in_engine == 1)
    await load(world, engine, "unload")
    waiting = [world.soon(world.chat(model=ADAPTER)) for _ in range(3)]
    assert [(await task).status for task in (busy, *waiting)] == [200, 404, 404, 404]
    assert len(engine.log.entries) <= 1 + 3


async def test_the_caller_has_it_in_the_shape_of_its_api(world: World) -> None:
    (engine,) = await adapted(world, 1)
    await load(world, engine, "unload")
    answer = await world.ask(path="/v1/messages", body=chat(model=ADAPTER))
    assert (answer.status, answer.json()["type"]) == (404, "error")
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_one_that_was_told_that_it_waits_has_it_as_an_event(world: World) -> None:
    (engine,) = await adapted(world, 1)
    await world.gate.close()
    await world.gateway(slots=1, queue={"heartbeat_after": 0.01}, **UNSEEN)
    await world.until(lambda: served(world) == [True])
    busy = world.soon(world.chat(tokens=100))
    await world.until(lambda: engine.engine.in_engine == 1)
    await load(world, engine, "unload")
    answer = await world.chat(model=ADAPTER, stream=True)
    assert answer.status == 200
    assert b": queued" in answer.body
    assert answer.events()[-1]["error"]["code"] == "model_not_found"
    assert (await busy).status == 200


async def test_a_pinned_request_is_not_tried_elsewhere(world: World) -> None:
    without, has = await adapted(world)
    await load(world, without, "unload")
    answer = await world.ask(path=f"/v1/chat/completions?id={at(without)}", body=chat(model=ADAPTER))
    assert (answer.status, answer.error()["code"]) == (404, "model_not_found")
    assert len(has.log.entries) == 0


async def test_a_tokenizer_call_goes_to_an_endpoint_with_the_model(world: World) -> None:
    without, has = await adapted(world)
    await load(world, without, "unload")
    answer = await world.ask(path="/tokenize", body={"model": ADAPTER, "prompt": "x"})
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(has))
    await world.until(lambda: served(world) == [False, True])
    await load(world, has, "unload")
    answer = await world.ask(path="/tokenize", body={"model": ADAPTER, "prompt": "x"})
    assert (answer.status, answer.error()["code"]) == (404, "model_not_found")


async def test_a_404_of_the_path_that_all_engines_give_passes_as_it_is(world: World) -> None:
    _, second = await adapted(world)
    answer = await world.ask(path="/v1/audio/speech", body={"model": ADAPTER, "input": "x"})
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})
    assert answer.header("x-penstock-endpoint") == at(second)
    assert answer.header("x-penstock-reason") is None
    assert await world.metric("penstock_requeues_total", reason="no_path") == 1
    assert served(world) == [True, True]
    assert await world.metric("penstock_requests_total", outcome="completed") == 1


async def test_a_model_that_the_settings_name_stays_theirs_to_name(world: World) -> None:
    """Where nobody else has it, it is a 404; the next request asks the engine again, for it may be loaded by then."""
    engine = await world.engine()
    await world.gateway(endpoints=[{"url": engine.url, "models": [ADAPTER]}], **UNSEEN)
    assert (await world.chat(model=ADAPTER)).error()["code"] == "model_not_found"
    await load(world, engine)
    assert (await world.chat(model=ADAPTER)).status == 200
