"""An engine that accepts requests and stalls: they move to others, each is answered once, and the state shows it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World, chat, fault, request
from tests.patience import WAIT_S

ANSWERS_MIN = 8  # begun before an engine is judged
FEW = ANSWERS_MIN + 2
LATE_S = 2.0  # it takes 1.4 s; unnoticed it would take for ever


def at(engine: EngineServer) -> str:
    return engine.url.removeprefix("http://")


async def warmed(world: World, *endpoints: str) -> None:
    """Each engine has begun so many answers that what compiles would be compiled."""
    answers = await asyncio.gather(*(world.chat(stream=True) for _ in range(FEW * len(endpoints))))
    counts = [sum(answer.header("x-penstock-endpoint") == name for answer in answers) for name in endpoints]
    assert min(counts) >= ANSWERS_MIN, counts


async def pair(world: World, **settings: Any) -> tuple[EngineServer, EngineServer]:
    first, second = [await world.engine() for _ in range(2)]
    await world.gateway(slots=8, routing={"policy": "round_robin"}, **settings)
    await warmed(world, at(first), at(second))
    return first, second


@pytest.mark.virtual_time
async def test_requests_of_an_engine_that_begins_nothing_are_served_by_another(world: World) -> None:
    bad, good = await pair(world)
    fault(bad, "hang")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    answers = await asyncio.gather(*(world.chat(stream=True) for _ in range(6)), *(world.chat() for _ in range(2)))
    assert loop.time() - began_s < LATE_S
    assert [answer.status for answer in answers] == [200] * 8
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {at(good)}
    assert [len(answer.events()) for answer in answers[:6]] == [len(answers[0].events())] * 6, (
        "each client gets one answer"
    )
    hung = sum(entry.outcome == "hung" for entry in bad.log.entries)
    assert hung >= 3
    assert await world.metric("penstock_requeues_total", reason="stuck") == hung
    assert world.picture().endpoints[0].state == "stuck"
    await world.until(lambda: bad.service.load == 0)  # the calls there were aborted
    stories = [
        (await world.ask("GET", f"/admin/requests/{answer.header('x-request-id')}")).json()["story"]
        for answer in answers
    ]
    told = [line for story in stories for line in story if "(stuck)" in line]
    assert len(told) == hung
    seen = len(bad.log.entries)
    assert {(await world.chat(stream=True)).header("x-penstock-endpoint") for _ in range(3)} == {at(good)}
    assert len(bad.log.entries) == seen, "nothing new goes there"


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", ["hang", "door"])
async def test_eight_answers_show_how_soon_a_prompt_of_their_length_begins(world: World, kind: str) -> None:
    """Prompts of 110 tokens would take a second at the slowest engines in use; here they took a twentieth of that."""
    first, second = [await world.engine() for _ in range(2)]
    await world.gateway(slots=8, routing={"policy": "round_robin"})
    words = [" ".join(f"{number}-{word}" for word in range(110)) for number in range(4 * FEW)]
    warm, asked = words[: 2 * FEW], words[2 * FEW :]
    await asyncio.gather(*(world.ask(body=chat(content, stream=True)) for content in warm))
    assert await world.metric("penstock_requeues_total", reason="stuck") == 0
    fault(first, kind, seconds=60.0)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    answers = await asyncio.gather(*(world.ask(body=chat(content, stream=True)) for content in asked[:8]))
    assert loop.time() - began_s < LATE_S
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {at(second)}


@pytest.mark.virtual_time
async def test_whole_answers_move_when_the_page_stands_still(world: World) -> None:
    """By answers alone it would take twice as long as the longest of them."""
    bad, good = await pair(world)
    long_s = 2.0
    await asyncio.gather(*(world.chat(tokens=round(long_s / 0.002)) for _ in range(2)))
    fault(bad, "hang")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    answers = await asyncio.gather(*(world.chat() for _ in range(4)))
    assert loop.time() - began_s < 1.7 * long_s
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {at(good)}
    assert await world.metric("penstock_requeues_total", reason="stuck") >= 2


@pytest.mark.virtual_time
async def test_one_probe_at_a_time_finds_a_working_engine_again(world: World) -> None:
    bad, good = await pair(world)
    fault(bad, "hang")
    await asyncio.gather(*(world.chat(stream=True) for _ in range(2)))
    assert world.picture().endpoints[0].state == "stuck"
    fault(bad, "none")
    async with asyncio.timeout(WAIT_S):
        while (await world.chat(stream=True)).header("x-penstock-endpoint") != at(bad):
            pass
    assert world.picture().endpoints[0].state == "up"
    del good


@pytest.mark.virtual_time
async def test_requests_wait_for_the_only_engine_of_their_model(world: World) -> None:
    lonely = await world.engine()
    other = await world.engine(model="other")
    await world.gateway(slots=8)
    await asyncio.gather(*(world.chat(stream=True) for _ in range(FEW)))
    fault(lonely, "hang", count=1)
    client = await world.streaming()
    await world.until(lambda: lonely.log.entries[-1].outcome == "hung")
    asked = [world.soon(world.ask(body=chat() | {"model": "other"})) for _ in range(FEW)]
    assert {(await task).status for task in asked} == {200}
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 2.0
    await world.until(lambda: loop.time() > until_s)
    assert world.picture().endpoints[0].state == "up"
    assert (await world.chat(stream=True)).status == 200
    client.hang_up()
    del other


@contextlib.asynccontextmanager
async def engine_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock", "engine", "--port", "0", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found is not None, line
        yield process, found[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.communicate()


async def test_a_stopped_process_is_noticed_by_its_streams(world: World) -> None:
    good = await world.engine()
    process, url = await world.beside(engine_process("--step-ms", "20"))
    endpoints = [{"url": url, "slots": 8}, {"url": good.url, "slots": 8}]
    await world.gateway(endpoints=endpoints, routing={"policy": "round_robin"})
    name = url.removeprefix("http://")
    await world.until(lambda: all(endpoint.models for endpoint in world.picture().endpoints))
    await warmed(world, name, at(good))
    long = [await world.client(request(body=chat(tokens=150, stream=True))) for _ in range(4)]
    heads = [await client.begun() for client in long]
    there = [head.header("x-penstock-endpoint") == name for head in heads]
    assert any(there)
    os.kill(process.pid, signal.SIGSTOP)
    answers = await asyncio.gather(*(world.chat(stream=True) for _ in range(8)))
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {at(good)}
    await world.until(lambda: world.picture().endpoints[0].state == "stuck")
    os.kill(process.pid, signal.SIGCONT)
    for client in long:  # what had begun goes on where it was
        assert (await client.whole()).endswith(b"data: [DONE]\n\n")
    await world.until(lambda: world.picture().endpoints[0].state == "up")
