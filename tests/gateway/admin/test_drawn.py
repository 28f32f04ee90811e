"""Tenants drawn: their tokens over time are bounded, and those of the settings show what is left of their limits."""

from __future__ import annotations

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.settings import Limits
from penstock.gateway.admin.picture.drawn import TenantCurves, by_tenant
from penstock.gateway.admin.picture.picture import configured
from tests.core.drive import request, scheduler
from tests.gateway.admin.test_admin_state import state
from tests.gateway.conftest import World


def test_tokens_go_to_the_first_tenants_and_all_others_as_one() -> None:
    made = scheduler(a=100)
    for at in range(9):
        for action in made.arrived(request(f"r{at}", tenant=f"t{at}", prompt_tokens=100 * (at + 1)), now=0.0):
            assert isinstance(action, Dispatch)
    rates = by_tenant(made.snapshot(now=1.0), 900.0)
    assert next(iter(rates)) == "t8"
    assert len(rates) == 7
    assert round(sum(rates.values())) == 900
    assert "" in rates
    assert by_tenant(scheduler(a=1).snapshot(now=1.0), 0.0) == {}


def test_an_hour_is_kept_in_samples_of_ten_seconds() -> None:
    curves, picture = TenantCurves(), scheduler(a=1).snapshot(now=0.0)
    for at in range(5_000):
        curves.add(picture, 1.0, float(at))
    shown = curves.shown(4_999.0)
    assert len(shown) == 360
    assert (shown[0][0], shown[-1][0]) == (3_599.0, 9.0)


def test_a_tenant_of_the_settings_shows_what_is_left_of_its_limits() -> None:
    limits = {"nightly": Limits(requests_per_minute=60, running=4, tokens_per_day=1_000_000)}
    made = scheduler(SchedulerSettings(tenants=limits), a=8)
    made.arrived(request("r", tenant="nightly", account="nightly", prompt_tokens=100), now=0.0)
    rows = configured([("chat", 3.0), ("nightly", 1.0)], made.snapshot(now=0.0))
    assert [(row.tenant, row.weight, row.left.split(", ")) for row in rows] == [
        ("chat", 3.0, [""]),
        ("nightly", 1.0, ["59 of 60 requests / min", "999,850 of 1,000,000 tokens / day", "3 of 4 running"]),
    ]
    assert len(configured([(f"t{at}", 1.0) for at in range(1_000)], made.snapshot(now=0.0))) == 50


async def test_an_idle_gateway_lists_the_tenants_of_its_settings(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "nightly", "weight": 2, "limits": {"running": 4}}])
    rows = (await state(world))["configured"]
    assert {"tenant": "nightly", "weight": 2.0, "left": "4 of 4 running"} in rows
    world.gate.watch.tick()
    told = (await world.ask(method="GET", path="/admin/history")).json()
    assert told["tenants"][0][1] == {}
