"""Real Envoy before simulated engines, with the picker as its ext_proc server."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import openai
import pytest

from penstock.gateway.epp import unseen
from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World, chat, hurry
from tests.gateway.epp.conftest import Envoy, behind


def client(world: World) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)


async def test_the_openai_client_gets_whole_answers_and_streams(world: World, envoy: Envoy) -> None:
    await world.engine()
    await world.engine()
    await behind(world, envoy)
    async with client(world) as caller:
        whole = await caller.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "x"}], max_tokens=7
        )
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 7
        stream = await caller.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "x"}], max_tokens=7, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks), "what we asked for is taken out again"
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == 7
    await world.idle()
    world.port = world.gate.port
    assert await world.metric("penstock_tokens_total", kind="completion") == 14


async def test_a_request_goes_to_the_endpoint_that_has_a_slot(world: World, envoy: Envoy) -> None:
    first, second = await world.engine(step_s=0.02), await world.engine(step_s=0.02)
    await behind(world, envoy, slots=1)
    answers = await asyncio.gather(*(world.chat(tokens=20) for _ in range(6)))
    assert [answer.status for answer in answers] == [200] * 6
    assert len(first.log.entries) + len(second.log.entries) == 6
    assert max(first.log.running_max, second.log.running_max) == 1


async def test_a_client_that_hangs_up_frees_its_engine_and_its_lease(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.02)
    await behind(world, envoy, slots=1)
    stream = await world.streaming(tokens=5_000)
    await stream.begun()
    assert world.picture().running == 1
    stream.hang_up()
    await world.until(lambda: engine.log.entries[-1].outcome == "aborted")
    await world.idle()


async def test_a_client_that_hangs_up_in_the_queue_leaves_it(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.02)
    await behind(world, envoy, slots=1)
    first = await world.streaming(tokens=5_000)
    await first.begun()
    second = await world.streaming()
    await world.until(lambda: world.picture().waiting == 1)
    second.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    hurry(engine)
    first.hang_up()
    await world.idle()
    assert len(engine.log.entries) == 1


async def test_refusals_are_ours_with_reason_and_retry_after(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.02)
    await behind(world, envoy, slots=1, queue={"max_requests": 0})
    stream = await world.streaming(tokens=5_000)
    await stream.begun()
    refused = await world.chat()
    assert refused.status == 429
    assert refused.error()["code"] == "queue_full"
    assert int(refused.header("retry-after") or "0") >= 1
    assert refused.header("x-llm-d-request-dropped-reason") == "rejected-saturated"
    assert (await world.chat(model="other")).status == 404
    assert (await world.ask(body=b"{")).error()["code"] == "bad_request"
    stream.hang_up()
    hurry(engine)


async def test_an_engine_that_died_is_a_502_and_the_other_one_serves(world: World, envoy: Envoy) -> None:
    dead, alive = await world.engine(), await world.engine()
    await behind(world, envoy)
    await dead.close()
    world.engines.remove(dead)
    statuses = [(await world.chat()).status for _ in range(8)]
    assert set(statuses) <= {200, 502}
    assert statuses.count(502) <= 3
    assert statuses[-1] == 200
    assert len(alive.log.entries) >= 5


async def test_an_engine_that_dies_midway_breaks_the_stream_with_an_event(world: World, envoy: Envoy) -> None:
    engine: EngineServer = await world.engine(step_s=0.02)
    await behind(world, envoy)
    stream = await world.streaming(tokens=5_000)
    await stream.begun()
    await engine.close()
    world.engines.remove(engine)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await stream.answer()
    await world.idle()


async def test_keys_stay_here_and_limits_hold(world: World, envoy: Envoy) -> None:
    engine = await world.engine()
    key = "a-key-of-team-a-0123456789"
    tenants = [{"name": "team-a", "keys": ["sha256:" + hashlib.sha256(key.encode()).hexdigest()]}]
    await behind_with_key(world, envoy, key, tenants=tenants, identity={"require_key": True})
    assert (await world.ask(body=chat())).status == 401
    assert (await world.chat_with({"authorization": f"Bearer {key}"})).status == 200
    assert [entry.headers.get("authorization") for entry in engine.log.entries] == [None]


async def behind_with_key(world: World, envoy: Envoy, key: str, **settings: Any) -> None:
    await world.gateway(epp={"listen": f"127.0.0.1:{envoy.picker}"}, **settings)
    world.port = envoy.port
    while (await world.ask("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})).status != 200:
        await asyncio.sleep(0.01)


async def test_without_bodies_a_stream_is_charged_by_its_time(world: World, blind_envoy: Envoy) -> None:
    engine = await world.engine()
    await behind(world, blind_envoy, sample_every=1)  # this filter ignores it
    unseen.paces.learn(engine.url.removeprefix("http://"), 1_000_000.0, 2)  # so slow that it is one token
    answer = await world.chat(tokens=7, stream=True)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.header("x-penstock-endpoint") is not None
    await world.idle()
    assert (await world.chat(tokens=3)).json()["usage"]["completion_tokens"] == 3
    await world.idle()
    world.port = world.gate.port
    assert await world.metric("penstock_tokens_total", kind="completion") == 1
