"""Sessions wait for KV memory over HTTP, with one process and with two workers, and through the picker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.values.rows import SessionsSnapshot
from penstock.gateway.cluster import supervisor, worker
from tests.gateway.conftest import Client, World, chat, request
from tests.gateway.epp.test_messages import pool
from tests.gateway.workers.beside import WorkerBeside

PROMPT = "word " * 400  # some 500 tokens
SMALL: dict[str, Any] = {"kv_blocks": 50, "block_size": 16, "step_s": 0.05}  # 800 tokens


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(supervisor, "WorkerProcess", WorkerBeside)
    monkeypatch.setattr(worker, "TICK_S", 0.02)
    return int(request.param)


async def turn(world: World, session: str, tokens: int = 3) -> Client:
    body = chat(PROMPT, tokens=tokens, stream=True)
    return await world.client(request(body=body, headers={"x-claude-code-session-id": session}))


def sessions(world: World) -> SessionsSnapshot:
    found = world.picture().sessions
    assert found is not None
    return found


async def memory_is_known(world: World) -> None:
    await world.until(lambda: all(row.kv_tokens == 800 for row in sessions(world).memory))


async def test_a_session_waits_until_another_is_idle_and_had_its_turn(world: World, workers: int) -> None:
    await world.engine(**SMALL)
    await world.gateway(slots=8, workers=workers, sessions={"wait": "1s"})
    await memory_is_known(world)
    assert (await world.ask("GET", "/admin/state")).json()["sessions"] is None
    first = await turn(world, "a", tokens=200)
    await first.begun()
    second = await turn(world, "b")
    await world.until(lambda: sessions(world).waiting == 1)
    (row,) = [x for x in world.picture().requests.waiting if x.cause == "session_memory"]
    told = await world.ask("GET", f"/admin/requests/{row.id}")
    assert "turn 1 of session b" in told.body.decode()
    assert "do not fit beside 1 session" in told.body.decode()
    assert await world.metric("penstock_sessions_waiting") == 1
    drawn = (await world.ask("GET", "/admin/state")).json()["sessions"]
    assert (drawn["resident"], drawn["idle"], drawn["waiting"]) == (1, 0, 1)
    (memory,) = drawn["memory"]
    assert (memory["usable_tokens"], memory["sessions"]) == (800, 1)
    assert list(memory["tenants"].values()) == [memory["held_tokens"]]
    world.gate.autoscale.look()
    scaled = (await world.ask("GET", "/autoscale/sim")).json()
    assert (scaled["waiting"], scaled["endpoints"], scaled["endpoints_wanted"]) == (1, 1, 2)
    assert await world.metric("penstock_endpoints_wanted", model="sim") == 2
    assert await world.metric("penstock_endpoint_sessions") == 1
    assert await world.metric("penstock_endpoint_sessions_idle") == 0
    assert 400 < await world.metric("penstock_endpoint_session_tokens") < 800
    assert await world.metric("penstock_endpoint_session_usable_tokens") == 800
    first.hang_up()
    assert (await second.answer()).status == 200
    assert (sessions(world).waiting, sessions(world).resident) == (0, 1)
    assert (await world.metric("penstock_sessions_waiting"), await world.metric("penstock_endpoint_sessions")) == (0, 1)
    assert await world.metric("penstock_session_pauses_total") == 1
    assert await world.metric("penstock_session_moves_total") == 0


async def test_a_client_that_hangs_up_while_its_session_waits_leaves_the_line(world: World, workers: int) -> None:
    await world.engine(**SMALL)
    await world.gateway(slots=8, workers=workers)
    await memory_is_known(world)
    first = await turn(world, "a", tokens=200)
    await first.begun()
    second = await turn(world, "b")
    await world.until(lambda: sessions(world).waiting == 1)
    second.hang_up()
    await world.until(lambda: sessions(world).waiting == 0)
    assert world.picture().waiting == 0
    first.hang_up()
    await world.idle()


async def test_no_session_waits_for_an_engine_that_keeps_no_prefixes(world: World) -> None:
    await world.engine(**SMALL, prefix_caching=False)
    await world.gateway(slots=8)
    await world.until(lambda: not sessions(world).memory[0].keeps_prefixes)
    for name in "ab":
        assert (await (await turn(world, name)).answer()).status == 200
    (row,) = sessions(world).memory
    assert (row.kv_tokens, row.sessions, sessions(world).waiting) == (None, 0, 0)


async def test_chat_of_single_turns_is_left_alone_beside_sessions_that_wait(world: World) -> None:
    await world.engine(**SMALL)
    await world.gateway(slots=8)
    await memory_is_known(world)
    first = await turn(world, "a", tokens=200)
    await first.begun()
    second = await turn(world, "b")
    await world.until(lambda: sessions(world).waiting == 1)
    assert (await world.chat()).status == 200
    first.hang_up()
    second.hang_up()
    await world.idle()


async def test_a_session_waits_at_the_picker_too(world: World) -> None:
    await world.engine(**SMALL)
    async with pool(world, engines=0, sessions={"wait": "1s"}) as its:
        await memory_is_known(world)
        body = json.dumps(chat(PROMPT)).encode()
        first, second = its.stream(), its.stream()
        await first.head(x_claude_code_session_id=b"a")
        await first.body(body)
        assert await first.picked()
        await second.head(x_claude_code_session_id=b"b")
        await second.body(body)
        await world.until(lambda: sessions(world).waiting == 1)
        first.call.cancel()
        assert await second.picked()
        second.call.cancel()
