"""Limits per key and per model: refused with the limit's name, held without holding others, shown to the caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import ConfigError, from_mapping
from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import Answer, Client, World, chat

CI, DEV = {"authorization": "Bearer pk-ci"}, {"authorization": "Bearer pk-dev"}


def team(ci: dict[str, Any] | None = None, **limits: Any) -> dict[str, Any]:
    keys = [{"hash": key_hash("pk-ci"), "name": "ci", "limits": ci or {}}, {"hash": key_hash("pk-dev"), "name": "dev"}]
    return {"tenants": [{"name": "team", "keys": keys, "limits": limits}]}


async def one_runs_one_waits(world: World) -> tuple[Client, asyncio.Task[Answer]]:
    """Two requests of a key whose limit is one running request."""
    await world.engine(step_s=0.01)
    await world.gateway(slots=4, **team({"running": 1}))
    first = await world.client_for(chat(tokens=3000, stream=True), CI)
    await first.begun()
    waiter = world.soon(world.chat_with(CI, tokens=1))
    await world.until(lambda: world.picture().waiting == 1)
    return first, waiter


async def test_a_keys_rate_refuses_that_key_only_and_names_the_limit(world: World) -> None:
    await world.engine()
    await world.gateway(**team({"requests_per_minute": 1}, requests_per_minute=9))
    served = await world.chat_with(CI)
    assert served.header("x-ratelimit-limit-requests") == "1", "the tightest"
    refused = await world.chat_with(CI)
    assert (refused.status, refused.header("x-penstock-limit")) == (429, "keys.requests_per_minute")
    assert 59 <= int(refused.header("retry-after") or 0) <= 76, "a minute, and some, so that not all come back at once"
    assert refused.error()["message"] == (
        "The key `ci` of the tenant `team` may send 1 request a minute (its limit `keys.requests_per_minute`). "
        "Please try again later."
    )
    other = await world.chat_with(DEV)
    assert (other.status, other.header("x-ratelimit-remaining-requests")) == (200, "7")


async def test_a_models_rate_refuses_that_model_only(world: World) -> None:
    await world.engine()
    await world.engine(model="big")
    await world.gateway(models={"alias": {"to": "big"}}, **team(models={"big": {"requests_per_minute": 1}}))
    assert (await world.chat_with(DEV, model="alias")).status == 200
    refused = await world.chat_with(CI, model="big")
    assert (refused.status, refused.header("x-penstock-limit")) == (429, "models.requests_per_minute")
    assert "The tenant `team` may send 1 request a minute of the model `big`" in refused.error()["message"]
    assert (await world.chat_with(CI)).status == 200


async def test_a_key_at_its_running_limit_waits_and_others_of_its_tenant_do_not(world: World) -> None:
    first, waiter = await one_runs_one_waits(world)
    assert (await world.chat_with(DEV, tokens=1)).status == 200
    row = (await world.ask("GET", "/admin/state")).json()["requests"]["waiting"][0]
    assert row["cause"] == "tenant_cap"
    assert not waiter.done()
    first.hang_up()
    assert (await waiter).status == 200


@pytest.mark.parametrize("limited", ["keys", "models"])
@pytest.mark.parametrize(
    "limit",
    [
        {"running": 1},
        {"queued": 1},
        {"queued_bytes": 700},
        {"queued_tokens": 150},
        {"requests_per_minute": 2},
        {"tokens_per_minute": 400},
        {"tokens_per_day": 400},
    ],
    ids=lambda limit: next(iter(limit)),
)
async def test_every_limit_of_a_key_and_of_a_model_is_held(world: World, limited: str, limit: dict[str, int]) -> None:
    """One runs, one waits, and a third is too much; of running ones, the second waits and nothing is refused."""
    await world.engine(step_s=0.01)
    settings = team(limit) if limited == "keys" else team(models={"sim": limit})
    await world.gateway(slots=2 if "running" in limit else 1, **settings)
    body = chat("x" * 400, tokens=150, stream=True)
    runs, waits = [await world.client_for(body, CI) for _ in range(2)]
    await runs.begun()
    await world.until(lambda: world.picture().waiting == 1)
    if "running" not in limit:
        refused = await world.ask(body=body, headers=CI)
        assert (refused.status, refused.header("x-penstock-limit")) == (429, f"{limited}.{next(iter(limit))}")
    runs.hang_up()
    assert (await waits.begun()).status == 200
    waits.hang_up()


async def test_a_reload_changes_the_limit_of_a_key_that_is_here(world: World) -> None:
    first, waiter = await one_runs_one_waits(world)
    world.document |= team({"running": 2})
    assert (await world.ask("POST", "/admin/reload")).status == 200
    assert (await waiter).status == 200
    first.hang_up()


async def test_a_caller_sees_the_limits_and_the_use_of_its_own_key(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    settings = team({"running": 2, "requests_per_minute": 5}, models={"sim": {"tokens_per_day": 9_000}})
    await world.gateway(slots=1, batch={"data": str(tmp_path)}, **settings)
    answered = [await world.chat_with(headers, tokens=4) for headers in (CI, DEV, DEV)]
    used = [answer.json()["usage"]["prompt_tokens"] for answer in answered]
    runs = await world.client_for(chat(tokens=500, stream=True), CI)
    await runs.begun()
    told = (await world.ask("GET", "/queue?usage=today", headers=CI)).json()
    assert told["key"]["running"] == 1
    assert told["key"]["limits"]["running"] == 2
    assert told["key"]["limits"]["requests_per_minute"]["remaining"] == 3
    assert told["models"]["sim"]["limits"]["tokens_per_day"]["limit"] == 9_000
    use = told["usage"]
    assert (use["of"], use["requests"], use["completion_tokens"], use["prompt_tokens"]) == ("the key", 1, 4, used[0])
    assert use["answered"] == 1
    told = (await world.ask("GET", "/queue?usage=today", headers=DEV)).json()
    assert "key" not in told
    assert (told["usage"]["requests"], told["usage"]["prompt_tokens"]) == (2, used[1] + used[2])
    told = (await world.ask("GET", "/queue?usage=today")).json()
    assert (told["tenant"], told["usage"]) == ("client:127.0.0.1", None)
    assert "models" not in told
    runs.hang_up()


async def test_the_page_is_for_browsers_and_json_for_programs(world: World) -> None:
    await world.engine()
    await world.gateway()
    shown = await world.ask("GET", "/queue", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (shown.header("content-type"), shown.header("vary")) == ("text/html; charset=utf-8", "accept")
    assert "script-src 'sha256-" in (shown.header("content-security-policy") or "")
    told = await world.ask("GET", "/queue", headers={"accept": "*/*"})
    assert told.header("content-type") == "application/json"
    assert "usage" not in told.json()


async def test_all_without_a_key_together_have_limits_per_model(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "anonymous", "limits": {"models": {"sim": {"requests_per_minute": 1}}}}])
    assert (await world.chat_with({"x-tenant-id": "a"})).status == 200
    refused = await world.chat_with({"x-tenant-id": "b"})
    assert refused.status == 429
    assert (
        "All clients without a key together may send 1 request a minute of the model `sim`"
        in (refused.error()["message"])
    )


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (team({"requests_per_minute": 0}), "tenants[0].keys[0].limits.requests_per_minute"),
        (team({"models": {}}), "tenants[0].keys[0].limits.models"),
        (team(models={"big": {"runing": 1}}), "tenants[0].limits.models.big.runing"),
        (
            team(models={"big": {"tokens_per_minute": 9, "tokens_per_day": 8}}),
            "tenants[0].limits.models.big.tokens_per_minute",
        ),
        (
            team(models={"alias": {"running": 1}}) | {"models": {"alias": {"to": "big"}}},
            "tenants[0].limits.models.alias",
        ),
    ],
)
def test_wrong_limits_are_named(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(settings)
    assert [problem.path for problem in error.value.problems] == [path]
