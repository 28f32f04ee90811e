"""Batch work gives its slots to people at once, and each of its requests is answered once all the same."""

from __future__ import annotations

import asyncio

from tests.gateway.conftest import World

BATCH = {"x-penstock-band": "batch"}


async def test_a_person_takes_the_slot_of_batch_work_which_runs_again(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    batch = world.soon(world.chat_with({**BATCH, "x-request-id": "b"}, tokens=400))
    await world.until(lambda: engine.service.load == 1)
    person = await world.chat("now", tokens=3)
    assert person.status == 200
    assert not batch.done(), "the person was served within the 4 s that the batch's answer takes"
    answer = await batch
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 400
    assert await world.metric("penstock_requeues_total", reason="preempted") == 1
    assert await world.metric("penstock_preempted_slot_seconds_total") > 0
    story = (await world.ask("GET", "/admin/requests/b")).json()["story"]
    assert any("its slot went to a request of a higher band (preempted)" in line for line in story), story
    assert sorted(entry.outcome for entry in engine.log.entries) == ["aborted", "finished", "finished"]


async def test_a_stream_that_its_client_has_seen_is_not_preempted(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    stream = await world.client_for({"model": "sim", "messages": [], "max_tokens": 40, "stream": True}, BATCH)
    await stream.begun()
    person = world.soon(world.chat("now"))
    await world.until(lambda: world.picture().waiting == 1)
    assert (await person).status == 200
    assert await world.metric("penstock_requeues_total", reason="preempted") == 0


async def test_bands_can_be_told_not_to_be_preemptible(world: World) -> None:
    engine = await world.engine(step_s=0.005)
    await world.gateway(slots=1, bands=[{"name": "standard"}, {"name": "batch", "max_engine_waiting": 0}])
    batch = world.soon(world.chat_with(BATCH, tokens=40))
    await world.until(lambda: engine.service.load == 1)
    answers = await asyncio.gather(batch, world.chat("later"))
    assert [answer.status for answer in answers] == [200, 200]
    assert [entry.outcome for entry in engine.log.entries] == ["finished", "finished"]
