"""What tenants have spent of their budgets is a series, for alerts before the first refusal."""

from __future__ import annotations

import pytest

from penstock.core.queueing.quotas import Quotas
from penstock.core.values.settings import Limits
from tests.gateway.conftest import World

T = 1000.0
SPENT = "penstock_tenant_budget_used_ratio"


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_tenants_spent_budget_is_on_the_metrics_page(world: World, workers: int) -> None:
    await world.engine()
    tenants = [
        {"name": "chat", "limits": {"tokens_per_day": 1000, "models": {"sim": {"tokens_per_minute": 900}}}},
        {"name": "free", "limits": {"running": 3}},
    ]
    await world.gateway(tenants=tenants, workers=workers, store=False)  # earlier tests spent, too
    assert await world.metric(SPENT, tenant="chat") == 0
    answer = await world.chat_with({"x-tenant-id": "chat"}, tokens=100)
    usage = answer.json()["usage"]
    spent = (usage["prompt_tokens"] + usage["completion_tokens"]) / 1000
    assert spent >= 0.1
    page = (await world.ask("GET", "/metrics")).body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith(SPENT)]
    name, value = line.rsplit(" ", 1)
    assert name == SPENT + '{limit="tokens_per_day",tenant="chat"}', "no key and no model, and no limit that is no rate"
    assert 0.95 * spent < float(value) <= spent


def test_a_debt_is_more_than_all_and_time_pays_it_off() -> None:
    quotas = Quotas(
        {"a": Limits(tokens_per_day=86_400, requests_per_minute=60), "a\nkey\nci": Limits(tokens_per_day=5)}
    )
    quotas.spent(("a",), requests=30, tokens=129_600, now=T)
    assert dict(quotas.budgets(T)) == {("a", "tokens_per_day"): 1.5, ("a", "requests_per_minute"): 0.5}
    assert dict(quotas.budgets(T + 43_200)) == {("a", "tokens_per_day"): 1.0, ("a", "requests_per_minute"): 0.0}


def test_of_many_budgets_those_spent_most_are_told() -> None:
    quotas = Quotas({f"t{n}": Limits(tokens_per_day=1000) for n in range(9)})
    for n in range(9):
        quotas.spent((f"t{n}",), requests=0, tokens=100 * n, now=T)
    assert [tenant for (tenant, _), _ in quotas.budgets(T, most=3)] == ["t8", "t7", "t6"]
