"""`queue.max_requests: 0` and `queue.max_wait: 0s`: what finds no slot is refused at once, all else is as ever."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import World
from tests.gateway.proxy.test_engine_paths import whole

OK = whole({"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]})
NOTHING_WAITS = pytest.mark.parametrize("queue", [{"max_requests": 0}, {"max_wait": "0s"}])


@NOTHING_WAITS
async def test_what_finds_no_slot_is_refused_at_once(world: World, queue: dict[str, Any]) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(queue=queue, slots=1)
    running = await world.streaming(tokens=10_000)
    await running.begun()
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (429, "queue_full")
    assert answer.header("retry-after") is not None
    running.hang_up()
    await world.idle()
    assert (await world.chat()).status == 200


@NOTHING_WAITS
async def test_a_failed_request_is_tried_elsewhere(world: World, queue: dict[str, Any]) -> None:
    failing, _ = await world.scripted(whole({"error": "boom"}, b"500 Internal Server Error"))
    good, _ = await world.scripted(OK)
    await world.gateway(endpoints=[failing, good], queue=queue, routing={"policy": "round_robin"})
    assert [(await world.chat()).status for _ in range(4)] == [200] * 4
    assert await world.metric("penstock_requeues_total", reason="server_error") >= 1


@NOTHING_WAITS
async def test_a_warm_endpoint_without_a_slot_is_not_waited_for(world: World, queue: dict[str, Any]) -> None:
    for _ in range(2):
        await world.engine(step_s=0.01)
    # A page shows a request for some steps after its end, so it is not read between them.
    await world.gateway(queue=queue, slots=1, observe={"interval": "60s", "fast_interval": "60s"})
    text = "a long text " * 2_000
    home = (await world.chat(text)).header("x-penstock-endpoint")
    running = await world.streaming(text, tokens=10_000)
    await running.begun()
    answer = await world.chat(text)
    assert answer.status == 200
    assert home is not None
    running.hang_up()


async def test_one_band_may_wait_and_another_not(world: World) -> None:
    await world.engine(step_s=0.01)
    bands = [{"name": "later"}, {"name": "now", "max_wait": "0s"}]
    await world.gateway(bands=bands, default_band="later", slots=1)
    running = await world.streaming(tokens=50)
    await running.begun()
    asked = world.soon(world.chat(tokens=1))
    refused = await world.chat_with({"x-penstock-band": "now"}, tokens=1)
    assert (refused.status, refused.error()["code"]) == (429, "queue_full")
    assert (await asked).status == 200
