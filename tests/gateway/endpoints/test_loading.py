"""Engines that answer and list no model while they load one: requests wait as for one that does not answer yet."""

from __future__ import annotations

import math
from typing import Any

import pytest

from penstock.gateway.endpoints import early, observer
from tests.gateway.conftest import CHAT, Answer, World, chat
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.raw_engine import Peer, RawEngine
from tests.ports import free_port

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


# --- requests that never queue: for one endpoint (`?id=`), and of a direct path ------------------------------------


async def pinned(world: World, path: str = CHAT, body: dict[str, Any] | None = None) -> Answer:
    name = world.picture().endpoints[0].name
    return await world.ask(path=f"{path}?id={name}", body=chat() if body is None else body)


@pytest.mark.parametrize("body", [chat(), chat(model="small"), {"prompt": "x"}], ids=["model", "split", "no model"])
async def test_a_request_for_one_endpoint_waits_for_its_list_of_models(
    world: World, workers: int, body: dict[str, Any]
) -> None:
    engine = Loader()
    await before(world, engine, workers=workers, models={"small": {"split": {"other": 1, "sim": 1}}})
    asked = world.soon(pinned(world, body=body))
    looks = engine.listed
    await world.until(lambda: engine.listed >= looks + 2)
    assert not asked.done()
    engine.models = ["sim"]
    assert (await asked).status == 200
    assert world.picture().waiting == 0


async def test_a_request_of_a_direct_path_waits_while_an_engine_may_list_its_model(world: World, workers: int) -> None:
    ready, loading = Loader("other"), Loader()
    await before(world, ready, loading, workers=workers)
    assert (await world.ask(path="/tokenize", body={"model": "other", "prompt": "x"})).status == 200
    asked = world.soon(world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"}))
    looks = loading.listed
    await world.until(lambda: loading.listed >= looks + 2)
    assert not asked.done()
    loading.models = ["sim"]
    assert (await asked).status == 200
    assert (await world.ask(path="/tokenize", body={"model": "none", "prompt": "x"})).status == 404


@pytest.mark.parametrize(
    ("queue", "refused"),
    [
        ({"max_wait": "100ms"}, "no_endpoint"),
        ({"max_wait": "0s"}, "no_endpoint"),
        ({"max_requests": 0}, "queue_full"),
        ({"max_wait": "1h"}, "no_endpoint"),
    ],
)
async def test_it_waits_within_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch, queue: dict[str, Any], refused: str
) -> None:
    monkeypatch.setattr(early, "TELLING_S_MAX", 0.2)
    await before(world, Loader(), queue=queue)
    for answer in (await pinned(world), await world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"})):
        assert (answer.error()["code"], answer.header("retry-after")) == (refused, "1")


async def test_a_request_for_an_endpoint_that_is_down_or_unknown_does_not_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "TELLING_S_MAX", math.inf)
    await world.gateway(endpoints=[{"url": f"http://127.0.0.1:{free_port()}"}], queue={"max_wait": "1h"})
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    assert (await pinned(world)).error()["code"] == "no_endpoint"
    assert (await world.ask(path=f"{CHAT}?id=other", body=chat())).error()["code"] == "endpoint_not_found"
    assert (await world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"})).error()["code"] == "no_endpoint"
