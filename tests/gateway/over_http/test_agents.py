"""Sessions of agents are known over HTTP, whatever their client: by names, and by prompts alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.scheduler import Scheduler
from penstock.core.sessions.recognition import SessionNames
from penstock.core.values.request import Request, Turn
from tests.gateway.conftest import World, chat
from tests.gateway.epp.test_messages import pool

pytestmark = pytest.mark.interpreted  # the scheduler is looked at

LONG = "You are an agent that mends programs. " * 200
KEY = {"x-tenant-id": "team"}


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that the scheduler got."""
    requests: list[Request] = []
    arrived = Scheduler.arrived

    def spy(scheduler: Scheduler, request: Request, **more: Any) -> Any:
        requests.append(request)
        return arrived(scheduler, request, **more)

    monkeypatch.setattr(Scheduler, "arrived", spy)
    return requests


def body(*results: str, task: str = "mend it") -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": LONG}, {"role": "user", "content": task}]
    for result in results:
        messages += [{"role": "assistant", "content": "I run it."}, {"role": "tool", "content": result}]
    return {**chat(), "messages": messages}


async def test_turns_of_two_sessions_are_told_apart_by_their_prompts(world: World, came: list[Request]) -> None:
    await world.engine()
    await world.gateway()
    for turn in (body(), body(task="break it"), body("a"), body("a", task="break it"), body("a", "x" * 400_000)):
        await world.ask(body=turn)
    names = SessionNames()
    found = [names.find(request, 0.0) for request in came]
    assert found[0] == found[2] == found[4]
    assert found[1] == found[3]
    assert found[0] != found[1]


async def test_a_small_chat_is_no_turn(world: World, came: list[Request]) -> None:
    await world.engine()
    await world.gateway()
    await world.ask(body=chat())
    assert [request.turn for request in came] == [None]


async def test_a_session_is_known_by_names_of_the_settings(world: World, came: list[Request]) -> None:
    await world.engine()
    names = [{"header": "x-job", "parent": "x-root-job"}, {"body": "job", "parent": "root"}]
    await world.gateway(routing={"session": {"names": names}})
    await world.chat_with({"x-job": "j"})
    await world.chat_with({"x-job": "j", "x-root-job": "r"})
    await world.chat_with({}, job="j")
    await world.chat_with({}, job="j", root="r")
    assert [request.turn for request in came] == [Turn("j"), Turn("r", "j"), Turn("j"), Turn("r", "j")]


async def test_clients_names_need_no_settings(world: World, came: list[Request]) -> None:
    await world.engine()
    await world.gateway()
    await world.chat_with({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"})
    await world.chat_with({}, session_id="s")
    assert [request.turn for request in came] == [Turn("s", "a"), Turn("s")]


async def test_an_answer_that_goes_on_stays_in_its_session(world: World, came: list[Request]) -> None:

    def answering(name: str) -> bytes:
        answer = json.dumps({"id": f"resp_{name}", "object": "response", "status": "completed", "output": []}).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer

    endpoint, _ = await world.scripted(answering("one"), then=answering("two"))
    await world.gateway(endpoints=[endpoint])
    asked = {"model": "sim", "input": "hello"}
    for more in ({}, {"previous_response_id": "resp_one"}, {"previous_response_id": "resp_two"}):
        assert (await world.ask(path="/v1/responses", body={**asked, **more})).status == 200
    long = [{"role": "user", "content": LONG}]  # and more before it, which only the engine knows
    await world.ask(path="/v1/responses", body={**asked, "input": long, "previous_response_id": "of another gateway"})
    assert [request.turn for request in came] == [None, Turn("resp_one"), Turn("resp_one"), None]


async def test_users_may_be_named_as_newer_clients_do(world: World, came: list[Request]) -> None:
    await world.engine()
    await world.gateway(fairness={"levels": ["tenant", "user"]}, tenants=[{"name": "team"}])
    told: list[dict[str, Any]] = [
        {"user": "a", "safety_identifier": "b"},
        {"safety_identifier": "b"},
        {"metadata": {"user_id": "c"}},
        {},
    ]
    for more in told:
        await world.chat_with({**KEY, "x-user-id": ""}, **more)
    await world.chat_with({**KEY, "x-user-id": "d"}, safety_identifier="b")
    assert [request.flow[-1] for request in came[:3]] == ["a", "b", "c"]
    assert came[4].flow[-1] == "d"


async def test_a_request_that_a_proxy_carries_is_known_in_the_same_way(world: World, came: list[Request]) -> None:
    async with pool(world) as its:
        for turn, named in ((body(), {}), (body("a"), {}), (body("b"), {"x_session_affinity": b"s"})):
            stream = its.stream()
            await stream.head(**named)  # type: ignore[arg-type]
            await stream.body(json.dumps(turn).encode())
            await stream.picked()
            stream.call.cancel()
    names = SessionNames()
    found = [names.find(request, 0.0) for request in came]
    assert found[0] == found[1]
    assert found[2] == ("s", "")
