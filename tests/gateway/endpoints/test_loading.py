"""Engines that answer and list no model while they load one: requests wait as for one that does not answer yet."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.gateway.endpoints import observer
from tests.gateway.conftest import World, chat
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.raw_engine import Peer, RawEngine

OK = whole({"id": "c", "choices": [{"index": 0, "text": "a", "message": {"role": "assistant", "content": "a"}}]})


class Loader:
    """An engine whose list of models a test sets."""

    def __init__(self, *models: str) -> None:
        self.models = list(models)
        self.asked = self.listed = 0
        self.url = ""

    async def script(self, peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"POST "):
                self.asked += 1
                await peer.send(OK)
            elif b"/v1/models" in data[:20]:
                self.listed += 1
                listed: list[dict[str, Any]] = [{"id": model, "owned_by": "vllm"} for model in self.models]
                await peer.send(whole({"object": "list", "data": listed}))
            else:
                await peer.send(whole({}))


async def before(world: World, *engines: Loader, **settings: Any) -> None:
    for engine in engines:
        engine.url = (await world.beside(RawEngine(engine.script))).url
    await world.gateway(endpoints=[{"url": engine.url} for engine in engines], **settings)
    await world.until(lambda: all(engine.listed for engine in engines))


@pytest.mark.parametrize("named", [True, False])
async def test_a_request_waits_for_the_model_that_an_engine_loads(world: World, named: bool) -> None:
    engine = Loader()
    await before(world, engine)
    body = {"prompt": "x"} | ({"model": "sim"} if named else {})
    asked = world.soon(world.ask(path="/v1/completions", body=body))
    looks = engine.listed
    await world.until(lambda: engine.listed >= looks + 2)
    assert not asked.done()
    engine.models = ["sim"]
    assert (await asked).status == 200


@pytest.mark.parametrize(("body", "refused"), [(chat(), "model_not_found"), ({"messages": []}, "bad_request")])
async def test_an_engine_that_goes_on_listing_none_has_none(
    world: World, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], refused: str
) -> None:
    monkeypatch.setattr(observer, "LOADING_S", 0.2)
    await before(world, Loader(), queue={"max_wait": "50s"})
    assert (await world.ask(body=body)).error()["code"] == refused
    assert (await world.ask(body=body)).error()["code"] == refused, "and at once from now on"


async def test_beside_one_that_lists_a_model_that_one_is_used_and_others_are_waited_for(world: World) -> None:
    ready, loading = Loader("sim"), Loader()
    await before(world, ready, loading)
    assert (await world.ask(path="/v1/completions", body={"prompt": "x"})).status == 200
    asked = world.soon(world.ask(body=chat(model="other")))
    looks = loading.listed
    await world.until(lambda: loading.listed >= looks + 2)
    assert not asked.done()
    loading.models = ["other"]
    assert (await asked).status == 200
    assert (ready.asked, loading.asked) == (1, 1)


async def test_an_engine_whose_list_becomes_empty_loads_its_models_again(world: World) -> None:
    engine = Loader("sim")
    await before(world, engine, health={"probe_interval": "100ms"})
    assert (await world.chat()).status == 200
    engine.models = []
    await world.until(lambda: not world.picture().endpoints[0].models)
    asked = world.soon(world.chat())
    looks = engine.listed
    await world.until(lambda: engine.listed >= looks + 2)
    assert not asked.done()
    engine.models = ["sim"]
    assert (await asked).status == 200
    assert (await world.ask(body=chat(model="other"))).error()["code"] == "model_not_found"
