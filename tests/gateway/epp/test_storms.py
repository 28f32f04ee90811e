"""Real Envoy: hang-ups at every stage, filters in other modes, a picker that goes and comes back."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from penstock.gateway.epp.filters import TRAILERS_SKIPPED
from tests.gateway.conftest import World, chat, hurry, request
from tests.gateway.epp.conftest import Envoy, behind
from tests.patience import WAIT_S, looks


async def _hangs_up_somewhere(world: World, rng: random.Random) -> None:
    """A request whose client leaves at a random stage, or stays."""
    data = request(body=chat("x" * rng.choice((10, 30_000)), tokens=rng.choice((1, 8)), stream=rng.random() < 0.7))
    stage = rng.choice(("head", "body", "queue", "answer", "end"))
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    try:
        if stage in ("head", "body"):
            writer.write(data[: rng.randrange(1, data.index(b"\r\n\r\n") + (4 if stage == "head" else len(data) // 2))])
            await asyncio.sleep(0)
            return
        writer.write(data)
        if stage == "queue":
            await asyncio.sleep(rng.random() * 0.02)
        elif stage == "answer":
            await reader.read(rng.randrange(1, 500))
        else:
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.split()[1] in (b"200", b"429", b"502"), answer
    finally:
        writer.transport.abort()


async def _storm(world: World, requests: int) -> None:
    rng = random.Random(7)
    for _ in range(requests // 50):
        await asyncio.gather(*(_hangs_up_somewhere(world, rng) for _ in range(50)))
    await world.idle()
    assert (await world.chat()).status == 200
    await world.idle()
    assert world.gate.server.bodies_bytes == 0
    assert max(engine.log.running_max for engine in world.engines) <= 4


async def test_hang_ups_at_every_stage_leak_no_lease(world: World, envoy: Envoy) -> None:
    await world.engine()
    await world.engine()
    await behind(world, envoy)
    await _storm(world, 200)


@pytest.mark.slow
async def test_2000_hang_ups_leak_no_lease(world: World, envoy: Envoy) -> None:
    await world.engine()
    await world.engine()
    await behind(world, envoy)
    await _storm(world, 2_000)


async def test_hang_ups_leak_nothing_without_bodies_either(world: World, blind_envoy: Envoy) -> None:
    await world.engine()
    await world.engine()
    await behind(world, blind_envoy)
    await _storm(world, 200)


async def test_without_bodies_the_lease_lasts_as_long_as_the_answer(world: World, blind_envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.02)
    await behind(world, blind_envoy, slots=1)
    stream = await world.streaming(tokens=5_000)
    await stream.begun()
    waiting = await world.streaming()
    await world.until(lambda: world.picture().waiting == 1)
    assert world.picture().running == 1
    stream.hang_up()
    hurry(engine)
    assert (await waiting.answer()).status == 200


async def test_a_filter_that_skips_trailers_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    envoy = Envoy(bodies="NONE", response_trailer_mode="SKIP")
    try:
        envoy.wait()
        await world.engine(step_s=0.02)
        await behind(world, envoy)
        for _ in range(3):
            assert (await world.chat(tokens=5, stream=True)).status == 200
        world.port = world.gate.port
        assert TRAILERS_SKIPPED in json.loads((await world.ask("GET", "/admin/state")).body)["headline"]
        assert TRAILERS_SKIPPED in caplog.text
    finally:
        envoy.close()
    caplog.clear()


async def test_buffered_requests_work(world: World) -> None:
    envoy = Envoy(request_body_mode="BUFFERED", request_trailer_mode="SKIP")
    try:
        envoy.wait()
        engine = await world.engine()
        await behind(world, envoy)
        answer = await world.chat("x" * 100_000, tokens=4, stream=True)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert engine.log.entries[0].body_bytes > 100_000
    finally:
        envoy.close()


async def test_a_picker_that_restarts_is_used_again(world: World, envoy: Envoy) -> None:
    await world.engine()
    await behind(world, envoy)
    assert (await world.chat()).status == 200
    await world.end_gateway()
    assert (await world.chat()).status >= 500, "it fails closed"
    await behind(world, envoy)
    assert (await world.chat()).status == 200


async def test_a_drain_ends_queued_requests_with_503_and_lets_answers_end(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=0.02)
    await behind(world, envoy, slots=1, queue={"drain_timeout": 0.05, "stop_timeout": 60.0})
    stream = await world.streaming(tokens=300)
    await stream.begun()
    queued = await world.streaming()
    await world.until(lambda: world.picture().waiting == 1)
    draining = asyncio.ensure_future(world.gate.drain())
    async for _ in looks(WAIT_S):  # a GOAWAY sends Envoy elsewhere, and there is no other picker
        if (await world.chat()).status == 500:
            break
    refused = await queued.answer()
    assert (refused.status, refused.header("x-penstock-reason")) == (503, "draining")
    hurry(engine)
    while piece := await stream.piece():
        last = piece
    assert last.endswith(b"data: [DONE]\n\n")
    await draining
