"""An engine of unknown size is sent too much once: what waits inside it then comes back, and is served in turn."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import World, chat, request

SURPLUS_MIN = 2

SLOTS = 64
CALLERS = 96
LONG = 200
STEP_S = 0.05


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_requests_queued_inside_an_engine_are_recalled(world: World) -> None:
    engine = await world.engine(max_num_seqs=SLOTS, step_s=STEP_S)
    await world.gateway(slots="auto")
    most = [0]

    async def watch() -> None:
        while True:
            await asyncio.sleep(STEP_S)
            most.append(engine.engine.waiting_now)

    watching = asyncio.create_task(watch())
    asked = [asyncio.create_task(world.chat(tokens=LONG, stream=True)) for _ in range(CALLERS)]
    await asyncio.sleep(STEP_S * LONG / 2)
    watching.cancel()
    assert max(most) > SURPLUS_MIN, "nothing was in question"
    assert most[-1] <= SURPLUS_MIN
    answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [200] * CALLERS
    assert {len(answer.events()) for answer in answers} == {len(answers[0].events())}, "nobody is told twice"
    recalled = await world.metric("penstock_requeues_total", reason="engine_queue")
    assert recalled > 0
    stories = [(await world.ask("GET", f"/admin/requests/{a.header('x-request-id')}")).json()["story"] for a in answers]
    assert sum("(engine_queue). Back in the queue." in line for story in stories for line in story) == recalled


@pytest.mark.virtual_time
async def test_a_recalled_request_waits_again(world: World) -> None:
    """It is listed in `/queue`, and a client that hangs up then cancels a queued request: nothing has failed."""
    await world.engine(max_num_seqs=SLOTS, step_s=STEP_S)
    await world.gateway(slots="auto")
    clients = [await world.client(request(body=chat(tokens=LONG, stream=True))) for _ in range(CALLERS)]
    await asyncio.sleep(STEP_S * LONG / 2)
    assert await world.metric("penstock_requeues_total", reason="engine_queue") > 0
    waiting = world.picture().waiting
    listed = (await world.ask("GET", "/queue")).json()
    assert (len(listed["requests"]), listed["waiting"]) == (waiting, waiting)
    for client in clients:
        client.hang_up()
    await world.idle()
    assert await world.metric("penstock_requests_total", outcome="evicted", reason="cancelled") == waiting
    assert await world.metric("penstock_requests_total", outcome="failed", reason="client_gone") == CALLERS - waiting
