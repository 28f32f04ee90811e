"""A split behind a proxy: a canary that goes gets nothing, its sessions move and come back, and nobody notices."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.gateway.conftest import World
from tests.gateway.epp.conftest import Envoy, behind
from tests.gateway.epp.test_messages import Pool, pool
from tests.gateway.over_http.test_split import SPLIT, body, name, under_load


async def _model(its: Pool, **named: bytes) -> str:
    """The model that a request goes to."""
    stream = its.stream()
    await stream.head(**named)  # type: ignore[arg-type]
    await stream.body(json.dumps(body()).encode())
    await stream.picked()
    model = str(json.loads(await stream.hears_body("request_body"))["model"])
    stream.call.cancel()
    return model


async def test_a_session_moves_when_its_model_goes_and_returns_with_it(world: World) -> None:
    await world.engine(model="old")
    await world.engine(model="new")
    async with pool(world, 0, models=SPLIT, routing={"session": {"header": "x-session-id"}}) as its:
        sessions = [b"s%d" % number for number in range(40)]
        of_new = [session for session in sessions if await _model(its, x_session_id=session) == "new"]
        assert 10 < len(of_new) < 30
        await world.ask("POST", f"/admin/endpoints/{name(world, 1)}/drain")
        assert {await _model(its, x_session_id=session) for session in of_new} == {"old"}
        await world.ask("POST", f"/admin/endpoints/{name(world, 1)}/resume")
        assert {await _model(its, x_session_id=session) for session in of_new} == {"new"}
        assert {await _model(its, x_session_id=session) for session in sessions if session not in of_new} == {"old"}


async def test_a_part_that_never_came_up_gets_nothing(world: World, envoy: Envoy) -> None:
    engine = await world.engine(model="old")
    never = {"url": "http://127.0.0.1:9", "models": ["new"], "slots": 4}
    await behind(world, envoy, endpoints=[{"url": engine.url, "slots": 4}, never], models=SPLIT)
    answers = [await world.ask(body=body()) for _ in range(10)]
    assert Counter((answer.status, answer.json()["model"]) for answer in answers) == {(200, "old"): 10}


@pytest.mark.slow
async def test_under_load_nobody_notices_that_a_model_dies_and_returns(world: World, envoy: Envoy) -> None:
    """What an engine held when it died is asked again by its client, as OpenAI's do after a 502."""
    await world.engine(model="old")
    await world.engine(model="new")
    await behind(world, envoy, slots=8, models=SPLIT)
    again = await under_load(world, 250, asks_again=2)
    assert again <= 2 * 8, "only what was there, or on its way"
