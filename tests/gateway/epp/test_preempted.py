"""Batch work that a proxy carries gives its slots to people: its client hears 429 and may come again."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.gateway.conftest import World, chat
from tests.gateway.epp.conftest import Envoy, behind

BATCH = {"x-penstock-band": "batch"}


@pytest.mark.parametrize("bodies", ["envoy", "blind_envoy"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_person_takes_the_slot_of_batch_work(
    world: World, request: pytest.FixtureRequest, bodies: str, *, stream: bool
) -> None:
    envoy: Envoy = request.getfixturevalue(bodies)
    engine = await world.engine(step_s=0.02, max_num_seqs=4, max_num_batched_tokens=4)
    await behind(world, envoy, slots=1)
    batch = world.soon(world.chat_with(BATCH, content="word " * 400, tokens=400, stream=stream))
    await world.until(lambda: engine.service.load == 1)
    person = await world.chat("now", tokens=3)
    assert person.status == 200
    displaced = await batch
    assert (displaced.status, displaced.header("x-penstock-reason")) == (429, "displaced")
    assert int(displaced.header("retry-after") or "0") >= 1
    await world.idle()
    assert [entry.outcome for entry in engine.log.entries] == ["aborted", "finished"]
    world.port = world.gate.port
    assert await world.metric("penstock_requests_total", outcome="evicted", reason="displaced") == 1
    assert await world.metric("penstock_preempted_slot_seconds_total") > 0


async def test_openais_client_comes_again_by_itself(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.01)
    await behind(world, envoy, slots=1)
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=2) as client:
        batch = asyncio.create_task(
            client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": "x"}], max_tokens=100, extra_headers=BATCH
            )
        )
        await world.until(lambda: engine.service.load == 1)
        assert (await world.chat("now", tokens=3)).status == 200
        usage = (await batch).usage
        assert usage is not None
        assert usage.completion_tokens == 100
    assert [entry.outcome for entry in engine.log.entries] == ["aborted", "finished", "finished"]


async def test_a_stream_that_its_client_has_seen_goes_on(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.01)
    await behind(world, envoy, slots=1)
    stream = await world.client_for(chat(tokens=60, stream=True), BATCH)
    await stream.begun()
    assert (await world.chat("now")).status == 200
    await stream.reader.readuntil(b"data: [DONE]\n\n")
    assert [entry.outcome for entry in engine.log.entries] == ["finished", "finished"]
