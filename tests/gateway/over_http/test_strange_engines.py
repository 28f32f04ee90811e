"""Engines that are strange on the wire: what they say reaches the caller, and nothing stays held behind them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from bench.lab.pages import PAGES, fields_of
from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import CHAT, World, chat, fault
from tests.patience import WAIT_S

pytestmark = pytest.mark.virtual_time

SLOW = ("frozen-overloaded", "too-high")  # an engine of two slots is tried every second or so beside such a page
OWN = re.compile(rb'"(id|created)":("[^"]*"|\d+)')  # what differs between two answers of one engine


async def direct(engine: EngineServer, body: dict[str, Any]) -> bytes:
    """The answer without a gateway."""
    there = World()
    there.port = int(engine.url.rpartition(":")[2])
    answer = await there.ask(body=body)
    return answer.body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "lacks",
    [("no_done",), ("no_finish_reason",), ("no_usage",), ("no_stream",), ("no_stream", "no_usage", "no_finish_reason")],
    ids="+".join,
)
async def test_missing_fields_of_an_answer_stay_missing(world: World, lacks: tuple[str, ...], *, stream: bool) -> None:
    engine = await world.engine()
    await world.gateway()
    for kind in lacks:
        fault(engine, kind)
    body = chat(tokens=5, stream=stream)
    expected = OWN.sub(b"", await direct(engine, body))
    for _ in range(3):
        answer = await world.ask(body=body)
        assert answer.status == 200
        assert OWN.sub(b"", answer.body) == expected
    await world.idle()


@pytest.mark.parametrize("lacks", ["no_usage", "no_done", "no_stream", "no_finish_reason"])
async def test_a_slot_comes_back_whatever_an_answer_lacks(world: World, lacks: str) -> None:
    engine = await world.engine(max_num_seqs=1)
    fault(engine, lacks)
    await world.gateway(slots=1)
    asked = [world.soon(world.chat(stream=number % 2 == 0, tokens=4)) for number in range(6)]
    async with asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [200] * 6
    assert engine.log.in_engine_max == 1


@pytest.mark.parametrize("page", [name for name in PAGES if name not in SLOW])
async def test_all_requests_are_answered_whatever_the_metrics_page_shows(world: World, page: str) -> None:
    engine = await world.engine(max_num_seqs=2, step_s=0.005)
    fault(engine, "metrics_lie", value=fields_of(PAGES[page]))
    await world.gateway(slots="auto")
    async with asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*(world.chat(stream=True, tokens=4) for _ in range(12)))
    assert [answer.status for answer in answers] == [200] * 12


async def test_a_client_that_leaves_before_the_engine_has_its_request_frees_the_slot(world: World) -> None:
    engine = await world.engine()
    fault(engine, "door", seconds=600.0, count=1)
    await world.gateway(slots=1)
    client = await world.streaming()
    await world.until(lambda: world.picture().running == 1)
    next_one = world.soon(world.chat())
    client.hang_up()
    assert (await next_one).status == 200
    assert [entry.outcome for entry in engine.log.entries] == ["aborted", "finished"]


async def test_an_engine_that_quickens_and_slows_answers_all(world: World) -> None:
    engine = await world.engine(max_num_seqs=2)
    fault(engine, "slow", course=[(0.0, 20.0), (0.1, 1.0), (0.2, 10.0), (0.25, 1.0)])
    await world.gateway(slots="auto")
    answers = await asyncio.gather(*(world.ask("POST", CHAT, chat(tokens=5, stream=True)) for _ in range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    assert {len(answer.events()) for answer in answers} == {6}
