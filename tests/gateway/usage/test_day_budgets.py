"""Budgets for a day after a restart: what was spent is spent, by the ledger of use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import Limits
from penstock.gateway.identity.callers import key_hash
from penstock.gateway.usage.day_budgets import left_by
from tests.core.drive import request as asked
from tests.core.drive import scheduler, the_lease
from tests.gateway.conftest import World
from tests.gateway.usage.test_usage import until_used

DAY = 2_400  # tokens: 100 an hour
KEY = {"authorization": "Bearer pk-alpha"}


# --- by the ledger ----------------------------------------------------------------------------------------------------


def test_who_used_nothing_has_all_of_it() -> None:
    assert left_by({}, DAY, 1_000.0) == 1.0


def test_what_was_spent_this_hour_is_spent() -> None:
    assert left_by({1_000: 1_800}, DAY, 1_000.5) == pytest.approx(0.25)


def test_it_refills_evenly() -> None:
    assert left_by({990: 1_800}, DAY, 1_000.0) == pytest.approx((600 + 9 * 100) / DAY)


def test_a_day_without_use_fills_it() -> None:
    assert left_by({970: 50_000}, DAY, 1_000.0) == 1.0


def test_who_always_uses_all_that_comes_gets_no_full_one_by_a_restart() -> None:
    steady = dict.fromkeys(range(700, 1_001), 100)
    assert left_by(steady, DAY, 1_000.99) == pytest.approx(0.0, abs=0.01)


def test_who_uses_half_of_it_has_all_but_the_last_hours() -> None:
    each_day = {hour: 1_200 for hour in range(500, 1_001) if hour % 24 == 0}  # the last at 984
    assert left_by(each_day, DAY, 990.0) == pytest.approx((1_200 + 500) / DAY, abs=0.05)


def test_a_larger_use_under_an_earlier_limit_leaves_no_debt() -> None:
    assert left_by({1_000: 1_000_000}, DAY, 1_001.0) == pytest.approx(0.0, abs=0.05)
    assert left_by({1_000: 1_000_000}, DAY, 1_012.0) == pytest.approx(0.46, abs=0.05)


# --- in the scheduler -------------------------------------------------------------------------------------------------


def left(made: Any, account: str, now: float = 0.0) -> int:
    told = made.allowance((account,), now=now)
    assert told is not None
    assert told.tokens_day is not None
    remaining: int = told.tokens_day.remaining
    return remaining


def test_a_budget_is_lowered_and_never_raised_and_present_requests_count_beside_it() -> None:
    made = scheduler(SchedulerSettings(tenants={"a": Limits(tokens_per_day=DAY), "b": Limits(running=1)}), a=2)
    lease = the_lease(made.arrived(asked("r", tenant="a", output_tokens=99), now=0.0))
    reserved = DAY - left(made, "a")
    assert reserved >= 99
    made.budgets_left({"a": 0.5, "b": 0.0, "unknown": 0.0}, now=0.0)
    assert left(made, "a") == DAY // 2 - reserved
    made.budgets_left({"a": 0.5}, now=0.0)
    made.budgets_left({"a": 1.0}, now=0.0)
    assert left(made, "a") == DAY // 2 - reserved
    made.cancelled("r", unsent=True, now=0.0)
    assert lease
    assert left(made, "a") == DAY // 2


# --- restarts ---------------------------------------------------------------------------------------------------------


def tenants(**limits: Any) -> list[dict[str, Any]]:
    return [{"name": "alpha", "keys": [{"hash": key_hash("pk-alpha"), "name": "ci"}], "limits": limits}]


@pytest.mark.parametrize("where", ["tenant", "key", "model"])
async def test_a_restart_fills_no_budget(world: World, tmp_path: Path, workers: int, where: str) -> None:
    limit = {"tokens_per_day": 10_000}
    written = tenants(**(limit if where == "tenant" else {"models": {"sim": limit}} if where == "model" else {}))
    if where == "key":
        written[0]["keys"][0]["limits"] = limit
    settings: dict[str, Any] = {"store": str(tmp_path), "tenants": written, "workers": workers}
    await world.engine()
    await world.gateway(**settings)
    answer = await world.chat_with(KEY, tokens=50)
    used = answer.json()["usage"]["total_tokens"]
    await until_used(world, 1)
    await world.end_gateway()
    await world.gateway(**settings)
    told = world.gate.driver.scheduler
    account = {"tenant": "alpha", "key": "alpha\nkey\nci", "model": "alpha\nmodel\nsim"}[where]
    await world.until(lambda: left(told, account, world.gate.driver.now()) <= 10_000 - used + 5)
    assert left(told, account, world.gate.driver.now()) >= 10_000 - used


async def test_without_a_ledger_a_restart_fills_it(world: World) -> None:
    settings: dict[str, Any] = {"store": False, "tenants": tenants(tokens_per_day=10_000)}
    await world.engine()
    for _ in range(2):
        await world.gateway(**settings)
        assert left(world.gate.driver.scheduler, "alpha", world.gate.driver.now()) == 10_000
        await world.chat_with(KEY, tokens=50)
        await world.end_gateway()


async def test_a_budget_that_a_reload_sets_counts_what_was_spent_before(world: World, tmp_path: Path) -> None:
    await world.engine()
    gate = await world.gateway(store=str(tmp_path), tenants=tenants())
    used = (await world.chat_with(KEY, tokens=50)).json()["usage"]["total_tokens"]
    await until_used(world, 1)
    world.document["tenants"] = tenants(tokens_per_day=10_000)
    await gate.reload()
    await world.until(lambda: left(gate.driver.scheduler, "alpha", gate.driver.now()) <= 10_000 - used + 5)
