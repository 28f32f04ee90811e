"""What operators do to tenants over HTTP: pause, limit, take back, cancel; who said what, and how long it holds."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.queueing.quotas import Quotas
from penstock.core.values.settings import Limits
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.tenant_orders import Order, TenantOrders, TooManyOrderedError
from penstock.gateway.admin.tenant_verbs import budgets
from penstock.gateway.identity.callers import key_hash
from tests.gateway.admin.test_admin_state import crowded, let_go, state, verb
from tests.gateway.conftest import World, chat

ORDERED_MAX = 1000

KEY = "pk-nightly"
TENANTS: list[dict[str, Any]] = [
    {"name": "nightly", "keys": [key_hash(KEY)], "limits": {"running": 8, "queued": 50}},
    {"name": "open"},
]


async def show(world: World, name: str, status: int = 200) -> dict[str, Any]:
    answer = await world.ask("GET", f"/admin/tenants/{name}")
    assert answer.status == status
    found: dict[str, Any] = answer.json()
    return found


async def test_a_paused_tenant_waits_and_others_are_served(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    told = await verb(world, "tenants/open/pause")
    assert told["paused"] == {"by": "operator", "until": "restart"}
    waits = await world.client_for(chat(), {"x-tenant-id": "open"})
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.chat_with({"x-tenant-id": "somebody"})).status == 200
    seen = await state(world)
    assert seen["headline"].endswith("Paused by an operator: tenant open.")
    assert (seen["tone"], seen["paused_tenants"]) == ("busy", ["open"])
    assert [row["cause"] for row in seen["requests"]["waiting"]] == ["tenant_paused"]
    assert (await show(world, "open"))["waiting"] == 1
    assert (await verb(world, "tenants/open/resume"))["paused"] is None
    assert (await waits.answer()).status == 200
    assert any("tenants open pause (by 127.0.0.1)" in event["text"] for event in (await state(world))["events"])


async def test_an_operators_limit_stands_beside_that_of_the_settings(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    told = await verb(world, "tenants/nightly/limit", {"running": 2, "queued": None, "requests_per_minute": "60"})
    by = {"by": "operator", "until": "restart"}
    assert told["limits"] == {
        "running": {"value": 2, "settings": 8, **by},
        "queued": {"value": None, "settings": 50, **by},
        "requests_per_minute": {"value": 60, "settings": None, **by},
    }
    answer = await world.chat_with({"authorization": f"Bearer {KEY}"})
    assert (answer.status, answer.header("x-ratelimit-limit-requests")) == (200, "60")
    own = (await world.ask("GET", "/queue", headers={"authorization": f"Bearer {KEY}"})).json()
    assert own["limits"]["running"] == 2
    gone = (await world.ask("DELETE", "/admin/tenants/nightly/limit")).json()
    assert gone["limits"] == {
        "running": {"value": 8, "by": "settings"},
        "queued": {"value": 50, "by": "settings"},
    }


@pytest.mark.parametrize(
    ("taken", "used", "remaining", "next_s", "reset_s"),
    [(0, 0, 60, 0, 0), (20, 20, 40, 0, 20), (60, 60, 0, 1, 60), (90, 90, 0, 31, 90), (59.5, 60, 0, 0.5, 59.5)],
)
def test_a_budget_says_when_more_comes_back(
    taken: float, used: int, remaining: int, next_s: float, reset_s: float
) -> None:
    quotas = Quotas({"a": Limits(tokens_per_minute=60)})
    quotas.spent(("a",), requests=1, tokens=taken, now=0.0)
    told = budgets(quotas.allowance(("a",), 0.0))
    said = {"limit": 60, "used": used, "remaining": remaining, "next_s": next_s, "reset_s": reset_s}
    assert told == {"tokens_per_minute": said}
    assert budgets(quotas.allowance(("b",), 0.0)) == {}


async def test_another_limit_leaves_what_was_spent_spent(world: World) -> None:
    await world.engine()
    tenants = [{"name": "nightly", "keys": [key_hash(KEY)], "limits": {"tokens_per_day": 1000}}]
    await world.gateway(tenants=tenants, store=False)  # earlier tests spent, too
    mine = {"authorization": f"Bearer {KEY}"}
    assert (await world.chat_with(mine)).status == 200
    await world.until(lambda: not world.picture().running)

    async def left() -> int:
        remaining: int = (await world.ask("GET", "/queue", headers=mine)).json()["limits"]["tokens_per_day"][
            "remaining"
        ]
        return remaining

    spent = 1000 - await left()
    assert spent >= 3, "the tokens of the answer, at least"
    for limit, remaining in ((10_000, 10_000 - spent), (spent + 2, 2), (1, 0)):
        await verb(world, "tenants/nightly/limit", {"tokens_per_day": limit})
        assert await left() - remaining in (0, 1), "as it refills meanwhile"
    assert (await world.chat_with(mine)).status == 429
    await verb(world, "tenants/nightly/limit", {"tokens_per_day": 10_000})
    assert (await world.chat_with(mine)).status == 200


async def test_an_operators_weight_holds_until_it_is_taken_back(world: World) -> None:
    await world.engine()
    await world.gateway(slots=1, tenants=TENANTS)
    told = await verb(world, "tenants/open/weight", {"weight": "4"})
    assert (told["weight"], told["weight_by"]) == (4, {"by": "operator", "until": "restart", "settings": 1})
    assert [row["weight"] for row in (await state(world))["configured"] if row["tenant"] == "open"] == [4]
    running = await world.client_for(chat(tokens=4_000, stream=True), {"x-tenant-id": "other"})
    await running.begun()
    await world.client_for(chat(), {"x-tenant-id": "open"})
    await world.until(lambda: world.picture().waiting == 1)
    weights = {flow.tenant: flow.weight for flow in world.picture().flows}
    assert weights == {"open": 4.0, "other": 1.0}, "its requests bring the weight of the settings"
    await verb(world, "reload")
    assert (await show(world, "open"))["weight"] == 4
    events = [event["text"] for event in (await state(world))["events"]]
    assert "tenants open weight weight=4 (by 127.0.0.1)" in events
    await verb(world, "tenants/open/weight", {"weight": 2, "until_reload": True})
    await verb(world, "reload")
    assert (await show(world, "open"))["weight_by"] is None
    assert {flow.tenant: flow.weight for flow in world.picture().flows} == {"open": 1.0, "other": 1.0}
    for body in ({}, {"weight": 0}, {"weight": "much"}, {"weight": 2, "running": 3}, {"weight": None}):
        assert (await verb(world, "tenants/open/weight", body, status=400))["error"]["code"] == "bad_request"
    assert (await world.ask("DELETE", "/admin/tenants/open/weight")).status == 200
    running.hang_up()


async def test_without_a_level_of_tenants_a_weight_is_refused(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS, fairness={"levels": ["model"]})
    assert (
        "`fairness.levels`" in (await verb(world, "tenants/open/weight", {"weight": 2}, status=409))["error"]["message"]
    )


async def test_what_is_said_until_a_reload_ends_with_it_and_the_rest_stays(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    await verb(world, "tenants/nightly/limit", {"running": 2})
    await verb(world, "tenants/nightly/pause", {"until_reload": True})
    await verb(world, "tenants/open/limit", {"queued": 3, "until_reload": True})
    assert world.picture().paused_tenants == ["nightly"]
    await verb(world, "reload")
    told = await show(world, "nightly")
    assert (told["paused"], told["limits"]["running"]["value"]) == (None, 2)
    assert (await show(world, "open"))["limits"] == {}
    assert world.picture().paused_tenants == []
    assert any("ended with the reload" in event["text"] for event in (await state(world))["events"])


async def test_a_tenants_waiting_requests_are_cancelled_and_no_others(world: World) -> None:
    clients = await crowded(world)
    answer = await verb(world, "tenants/team-a/cancel")
    assert answer == {"name": "team-a", "cancelled": 2, "left": 0}
    await world.until(lambda: world.picture().waiting == 1)
    assert (await clients[1].answer()).header("x-penstock-reason") == "operator"
    assert world.picture().running == 1
    assert (await verb(world, "tenants/client:127.0.0.1/cancel", {"running_too": True}))["cancelled"] == 1
    await let_go(clients)


async def test_a_client_without_a_tenant_is_paused_by_its_address(world: World) -> None:
    await world.engine()
    await world.gateway()
    await world.chat_with({})
    await verb(world, "tenants/client:127.0.0.1/pause")
    assert world.picture().paused_tenants == ["client:127.0.0.1"]
    await verb(world, "tenants/client:127.0.0.9/pause", status=404)


async def test_a_thousand_requests_are_cancelled_at_a_time(world: World) -> None:
    clients = await crowded(world, tenants=("team-a",), waiting=1_001)
    assert await verb(world, "tenants/team-a/cancel") == {"name": "team-a", "cancelled": 1_000, "left": 1}
    await let_go(clients)


async def test_the_list_begins_with_waiting_tenants_and_has_all_of_the_settings(world: World) -> None:
    clients = await crowded(world)
    listed = (await world.ask("GET", "/admin/tenants")).json()
    assert [(row["name"], row["waiting"], row["in_settings"]) for row in listed["tenants"]][:2] == [
        ("team-a", 2, False),
        ("team-b", 1, False),
    ]
    assert listed["more"] == 0
    await let_go(clients)


async def test_a_verb_that_names_what_is_not_there_fails_in_words(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    assert (await show(world, "nobody", 404))["error"]["code"] == "tenant_not_found"
    for path in ("pause", "resume", "cancel"):
        assert (await verb(world, f"tenants/nobody/{path}", status=404))["error"]["code"] == "tenant_not_found"
    await world.chat_with({"x-tenant-id": "inside"})
    refused = await verb(world, "tenants/inside/pause", status=409)
    assert "a name inside `anonymous`" in refused["error"]["message"]
    models = {"models": {"sim": {"running": 2}}}
    for body in ({}, {"running": 0}, {"runing": 3}, {"running": 2, "until_reload": "yes"}, models):
        assert (await verb(world, "tenants/nightly/limit", body, status=400))["error"]["code"] == "bad_request"


async def test_who_may_only_look_is_told_so_before_a_button_is_shown(world: World) -> None:
    await world.engine()
    await world.gateway(admin={"token": "all-of-it", "read_token": "only-look"}, tenants=TENANTS)
    for token, writes in (("all-of-it", True), ("only-look", False)):
        headers = {"authorization": f"Bearer {token}"}
        assert (await world.ask("GET", "/admin/access", headers=headers)).json() == {"writes": writes, "name": ""}
        answer = await world.ask("POST", "/admin/tenants/open/pause", headers=headers)
        assert answer.status == (200 if writes else 403)
    assert (await world.ask("GET", "/admin/access", headers={"authorization": "Bearer wrong-one"})).status == 401


def test_so_many_tenants_and_no_more_may_be_spoken_of() -> None:
    orders = TenantOrders(EventLog())
    for at in range(ORDERED_MAX):
        orders.say(f"t{at}", {"paused": Order()})
    orders.say("t0", {"running": Order(3)})
    with pytest.raises(TooManyOrderedError, match=str(ORDERED_MAX)):
        orders.say("one-more", {"paused": Order()})
    orders.take_back("t1", "paused")
    orders.say("one-more", {"paused": Order()})
    assert orders.limits()["one-more"].running == 0
