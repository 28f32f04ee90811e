"""No engine ever sees more than it was said to take, and none takes less, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import Answer, World, chat, fault

pytestmark = pytest.mark.virtual_time


def tally(answers: list[Answer]) -> dict[int, int]:
    return {status: sum(answer.status == status for answer in answers) for status in {a.status for a in answers}}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_two_run_four_wait_and_four_are_refused_at_once(world: World, stream: bool) -> None:
    engine = await world.engine(step_s=0.02)
    await world.gateway(slots=2, queue={"max_requests": 4})
    running = [world.soon(world.chat(tokens=30, stream=stream)) for _ in range(2)]
    await world.until(lambda: len(engine.log.entries) == 2)
    waiting = [world.soon(world.chat(tokens=3, stream=stream)) for _ in range(4)]
    await world.until(lambda: world.picture().waiting == 4)

    for answer in await asyncio.gather(*(world.chat(stream=stream) for _ in range(4))):
        assert answer.status == 429
        error = answer.error()
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert error["message"]
        assert 1 <= int(answer.header("retry-after") or "") <= 60
    assert not any(task.done() for task in running), "they were refused at once, while others still run"

    assert tally(await asyncio.gather(*running, *waiting)) == {200: 6}
    assert engine.log.in_engine_max == 2
    assert len(engine.log.entries) == 6


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_ten_at_once_keep_within_the_same_limits(world: World, stream: bool) -> None:
    engine = await world.engine(step_s=0.02)
    await world.gateway(slots=2, queue={"max_requests": 4})
    answers = await asyncio.gather(*(world.chat(tokens=15, stream=stream) for _ in range(10)))
    assert tally(answers) == {200: 6, 429: 4}
    assert engine.log.in_engine_max == 2


async def test_64_whole_answers_on_64_slots_are_worked_on_all_at_once(world: World) -> None:
    engine = await world.engine(step_s=0.05, max_num_seqs=64)
    await world.gateway(slots=64)
    tasks = [world.soon(world.chat(tokens=20)) for _ in range(64)]
    await world.until(lambda: engine.log.running_max == 64)
    assert not any(task.done() for task in tasks)
    assert tally(await asyncio.gather(*tasks)) == {200: 64}


async def test_128_requests_never_put_more_than_64_on_64_slots(world: World) -> None:
    engine = await world.engine(step_s=0.05, max_num_seqs=64)
    await world.gateway(slots=64)
    tasks = [world.soon(world.chat(tokens=30, stream=n % 2 == 0)) for n in range(128)]
    await world.until(lambda: engine.log.in_engine_max == 64)
    assert tally(await asyncio.gather(*tasks)) == {200: 128}
    assert engine.log.in_engine_max == 64


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_burst_of_500_on_gauges_that_stand_at_0_is_no_herd(world: World, stream: bool) -> None:
    """The engine runs 4 at once, the gateway believes in 16 slots, and the page says that nothing ever waits."""
    engine = await world.engine(step_s=0.002, max_num_seqs=4)
    fault(engine, "metrics_freeze", value={"running": 0, "waiting": 0, "kv_usage": 0})
    await world.gateway(slots=16)
    answers = await asyncio.gather(*(world.chat(tokens=3, stream=stream) for _ in range(500)))
    assert tally(answers) == {200: 500}
    assert engine.log.in_engine_max <= 16, "slots"
    assert len(engine.log.entries) == 500


async def test_the_queue_is_bounded_in_bytes(world: World) -> None:
    await world.engine(step_s=0.02)
    await world.gateway(slots=1, queue={"max_bytes": "10KiB"})
    running = await world.streaming(tokens=500)
    await running.begun()
    waiter = await world.streaming("x" * 8000)
    await world.until(lambda: world.picture().waiting == 1)
    refused = await world.ask(body=chat("x" * 8000))
    assert (refused.status, refused.error()["code"]) == (429, "queue_full")
    running.hang_up()
    assert (await waiter.answer()).status == 200


async def test_a_band_with_no_patience_for_the_engines_queue_waits_for_it_to_be_empty(world: World) -> None:
    """A neighbour who does not come through the gateway keeps the engine's queue long: batch work stays back."""
    engine = await world.engine(step_s=0.01, max_num_seqs=1)
    await world.gateway(slots=8)
    fault(engine, "metrics_freeze", value={"running": 1, "waiting": 1})
    await world.until(lambda: world.picture().endpoints[0].engine_waiting == 1)
    batch = world.soon(world.ask(body=chat(), headers={"x-penstock-band": "batch"}))
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.chat()).status == 200, "the band above it allows one or two to wait inside"
    assert not batch.done()
    fault(engine, "none")
    assert (await batch).status == 200


async def test_first_come_first_served(world: World) -> None:
    engine = await world.engine()
    await world.gateway(slots=1)
    blocker = await world.streaming(tokens=2000)
    await blocker.begun()
    clients = []
    for n in range(8):
        clients.append(await world.streaming(f"number {n}"))
        await world.until(lambda n=n: world.picture().waiting == n + 1)  # type: ignore[misc]
    blocker.hang_up()
    for client in clients:
        assert (await client.answer()).status == 200
    bodies = [bytes(entry.body or b"") for entry in list(engine.log.entries)[1:]]
    assert [n for n, body in enumerate(bodies) if f"number {n}".encode() in body] == list(range(8))
