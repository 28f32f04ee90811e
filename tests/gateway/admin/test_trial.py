"""A test request that an operator sends as a tenant, and the search of the last thousand requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.gateway.admin.own_token import for_wall
from penstock.gateway.builtin import trial
from penstock.gateway.identity.callers import key_hash
from tests.gateway.admin.test_admin_state import crowded, let_go, state, verb
from tests.gateway.conftest import World

TENANTS: list[dict[str, Any]] = [
    {"name": "team", "keys": [key_hash("pk-team")], "weight": 3, "limits": {"requests_per_minute": 2}},
    {"name": "open"},
]
TOKEN = "of-the-operator"


async def found(world: World, words: str) -> tuple[list[str], int, int]:
    headers = {"authorization": f"Bearer {world.gate.own_token.token}"}
    told = (await world.ask("GET", f"/admin/requests?find={words}", headers=headers)).json()
    return [row["id"] for row in told["requests"]], told["found"], told["searched"]


async def test_a_test_request_goes_the_way_of_its_tenants_requests(world: World) -> None:
    engine = await world.engine()
    await world.gateway(tenants=TENANTS)
    told = await verb(world, "try", {"tenant": "team", "model": "sim", "prompt": "secret words", "max_tokens": 3})
    assert (told["status"], told["reason"], told["tenant"]) == (200, None, "team")
    assert told["text"]
    name = engine.url.removeprefix("http://")
    explanation = told["explanation"]
    assert (explanation["tenant"], explanation["flow"], explanation["band"]) == ("team", ["team"], "standard")
    assert explanation["sent"]["endpoint"] == name
    assert any(f"to {name}, one of 1 open" in line for line in told["story"])
    assert told["story"][-1].startswith("Ended completed after ")
    again = (await world.ask("GET", f"/admin/requests/{told['id']}")).json()
    assert again["explanation"]["id"] == told["id"]
    seen = await state(world)
    assert "try model=sim tenant=team (by 127.0.0.1)" in [event["text"] for event in seen["events"]]
    assert "secret words" not in str(seen)


async def test_its_tenants_limits_hold_for_it_and_what_refuses_it_is_told(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    body = {"tenant": "team", "model": "sim"}
    for _ in range(2):
        assert (await verb(world, "try", body))["status"] == 200
    refused = await verb(world, "try", body)
    assert (refused["status"], refused["reason"]) == (429, "tenant_limit")
    assert "requests_per_minute" in refused["story"][-1]
    unknown = await verb(world, "try", {"tenant": "open", "model": "nothing"})
    assert (unknown["status"], unknown["reason"]) == (404, "model_not_found")
    assert "nothing" in unknown["text"]


async def test_one_that_waits_longer_is_answered_with_the_story_so_far(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "WAITED_S", 0.05)
    monkeypatch.setattr(trial, "UNDER_WAY_MAX", 1)
    await world.engine()
    await world.gateway(slots=1, tenants=TENANTS)
    running = await world.streaming(tokens=4_000)
    await running.begun()
    told = await verb(world, "try", {"tenant": "open", "model": "sim", "max_tokens": 1})
    assert told["status"] is None
    assert told["explanation"]["waits_for"] == "slots_full"
    assert (await verb(world, "try", {"tenant": "open", "model": "sim"}, status=409))["error"]["code"] == "conflict"
    running.hang_up()

    async def ended() -> bool:
        answer = await world.ask("GET", f"/admin/requests/{told['id']}")
        return bool(answer.json()["explanation"]["state"] == "completed")

    async with asyncio.timeout(20):
        while not await ended():
            await asyncio.sleep(0)


async def test_a_test_request_that_can_not_be_is_refused_in_words(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    wrongs: list[dict[str, Any]] = [
        {},
        {"tenant": "team"},
        {"tenant": "team", "model": 3},
        {"tenant": "team", "model": "sim", "max_tokens": 0},
        {"tenant": "team", "model": "sim", "max_tokens": True},
        {"tenant": "team", "model": "sim", "max_tokens": 1_001},
        {"tenant": "team", "model": "sim", "stream": True},
        {"tenant": "team", "model": "sim", "prompt": ""},
    ]
    for wrong in wrongs:
        assert (await verb(world, "try", wrong, status=400))["error"]["code"] == "bad_request", wrong
    unknown = await verb(world, "try", {"tenant": "nobody", "model": "sim"}, status=404)
    assert unknown["error"]["code"] == "tenant_not_found"


async def test_requests_are_found_by_words_of_any_field(world: World) -> None:
    clients = await crowded(world)
    assert (await found(world, "team-b"))[0] == ["w1"]
    assert (await found(world, "TEAM-A+waiting"))[0] == ["w2", "w0"], "the newest first"
    assert (await found(world, "slots_full"))[1] == 3
    assert (await found(world, "team-a+team-b")) == ([], 0, 4)
    assert (await found(world, ""))[1:] == (4, 4)
    await let_go(clients)


async def test_who_may_only_look_does_none_of_it(world: World) -> None:
    await world.engine()
    await world.gateway(
        admin={"token": TOKEN, "read_token": "only-look", "operators": [{"name": "anna", "token": "token-of-anna"}]},
        tenants=TENANTS,
    )
    acts: list[tuple[str, str, dict[str, Any] | bytes]] = [
        ("GET", "requests?find=team", b""),
        ("POST", "try", {"tenant": "open", "model": "sim"}),
        ("POST", "keys", {"tenant": "team", "name": "ci"}),
        ("POST", "keys/ci/limit", {"running": 2}),
        ("DELETE", "keys/ci/limit", b""),
        ("DELETE", "keys/ci", b""),
        ("POST", "tenants/open/weight", {"weight": 2}),
        ("DELETE", "tenants/open/weight", b""),
        ("POST", "tenants/open/limit", {"running": 2}),
    ]
    for token, status in (("only-look", 403), (for_wall(TOKEN), 403), ("wrong", 401)):
        for method, path, body in acts:
            answer = await world.ask(method, f"/admin/{path}", body, {"authorization": f"Bearer {token}"})
            assert (answer.status, path) == (status, path)
    anna = {"authorization": "Bearer token-of-anna"}
    assert (await world.ask("POST", "/admin/try", {"tenant": "open", "model": "sim"}, anna)).json()["status"] == 200
    events = (await world.ask("GET", "/admin/state", headers=anna)).json()["events"]
    assert any(event["text"].startswith("try model=sim tenant=open (by anna, 127") for event in events)
