"""The sentence that the page, `top` and `status` open with: state, cause and the numbers that show it."""

from __future__ import annotations

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.cause import Cause
from penstock.core.values.lifecycle import State
from penstock.core.values.observation import Observation
from penstock.core.values.settings import AdmissionSettings, BandSettings
from penstock.gateway.admin.headline import headline, tone
from penstock.gateway.admin.reasons import WHY, endpoint_why, model_why
from penstock.gateway.admin.story import CAUSES
from penstock.sim.checks.invariants import CheckedScheduler
from tests.core.drive import request, scheduler, the_lease

KV = SchedulerSettings(admission=AdmissionSettings(kv_usage_max=0.9))


def said(made: CheckedScheduler, now: float) -> str:
    return headline(made.snapshot(now=now))


def held_by_kv(a: float, b: float, *, prompt_tokens: int = 10) -> CheckedScheduler:
    """Two engines whose memory is that full, and somebody who waits."""
    made = scheduler(KV, a=8, b=8)
    for at in range(2):
        the_lease(made.arrived(request(f"r{at}"), now=0.0))
    for name, usage in (("a", a), ("b", b)):
        reading = Observation(1.0, 1, 0, kv_usage=usage, kv_capacity_tokens=100_000, progress=1)
        made.observed(name, reading, now=1.0)
    made.arrived(request("w", prompt_tokens=prompt_tokens, output_tokens=10), now=1.0)
    assert made.state_of("w") is State.WAITING
    return made


def test_it_names_model_cause_and_the_numbers_that_show_it() -> None:
    made = held_by_kv(0.93, 0.97)
    assert (
        said(made, 5.2) == "Holding 1: m is saturated on KV memory, 2 of 2 engines ≥ 90 %, the ceiling. Oldest 4.2 s."
    )
    assert tone(made.snapshot(now=5.2)) == "busy"


def test_memory_that_is_not_full_but_too_little_is_told_with_what_is_needed_and_what_is_free() -> None:
    made = held_by_kv(0.6, 0.7, prompt_tokens=60_000)
    needs, where = "needs ~60,010 tokens of KV memory (prompt and answer)", "(2 of 2 engines, 60–70 % used)"
    expected = f"Holding 1: m's next request {needs}, at most 30,000 are free below the ceiling of 90 % {where}."
    assert said(made, 1.5) == f"{expected} Oldest 500 ms."
    picture = made.snapshot(now=1.5)
    assert model_why(picture.models[0], picture, named=False).startswith(f"its next request {needs}")
    assert [endpoint_why(endpoint, picture) for endpoint in picture.endpoints] == [
        "next request needs ~60,010 KV tokens, 30,000 free below the ceiling of 90 %",
        "next request needs ~60,010 KV tokens, 20,000 free below the ceiling of 90 %",
    ]


def test_slots_that_work_for_who_hung_up_are_told() -> None:
    made = scheduler(a=4)
    made.endpoint_changed("a", lingers=True, now=0.0)
    for at in range(8):
        made.arrived(request(f"r{at}"), now=0.0)
    made.observed("a", Observation(1.0, 4, 0, progress=1), now=1.0)
    made.observed("a", Observation(1.5, 4, 0, progress=2), now=1.5)
    for at in range(3):
        made.cancelled(f"r{at}", now=2.0)
    picture = made.snapshot(now=2.5)
    assert picture.endpoints[0].given_up == 3
    assert endpoint_why(picture.endpoints[0], picture) == "3 slots are still at work for clients that hung up"


def test_an_endpoint_over_its_ceiling_says_both() -> None:
    picture = held_by_kv(0.93, 0.97).snapshot(now=2.0)
    assert endpoint_why(picture.endpoints[0], picture) == "93 % of its KV memory is used, the ceiling is 90 %"


def test_who_is_next_and_who_waits_behind_by_priority_is_told_apart() -> None:
    bands = (BandSettings("high"), BandSettings("mid"), BandSettings("low"))
    made = scheduler(SchedulerSettings(bands=bands), a=1)
    the_lease(made.arrived(request("r", tenant="x"), now=0.0))
    for at, (band, tenant) in enumerate([(0, "chat"), (1, "search"), (1, "docs"), (1, "web"), *[(2, "nightly")] * 4]):
        made.arrived(request(f"w{at}", band=band, tenant=tenant), now=float(at))
    assert said(made, 9.0) == (
        "Holding 8: m has all slots taken, 1 of 1 on 1 engine. Next: 1 high (from chat);"
        " behind it by priority: 3 mid, 4 low (all from nightly). Oldest 9.0 s (high)."
    )


def test_endpoints_that_are_missing_are_told_whether_somebody_waits_or_not() -> None:
    made = scheduler(a=1, b=1)
    assert said(made, 0.0) == "Idle: nothing waits, nothing runs."
    made.endpoint_down("a", now=0.0)
    assert said(made, 0.0) == "Idle: nothing waits, nothing runs. a is down."
    made.endpoint_down("b", now=0.0)
    made.arrived(request("w"), now=0.0)
    assert said(made, 2.0) == "Holding 1: m has no endpoint alive. Oldest 2.0 s. 2 of 2 endpoints are down."
    assert tone(made.snapshot(now=2.0)) == "bad"


def test_nothing_to_send_to_is_said() -> None:
    assert said(scheduler(), 0.0) == "Idle: nothing waits, nothing runs. No endpoint is configured or discovered."


def test_who_has_most_of_what_waits_is_named() -> None:
    made = scheduler(a=1)
    the_lease(made.arrived(request("r", tenant="x"), now=0.0))
    for at, tenant in enumerate(("big", "big", "big", "small")):
        made.arrived(request(f"w{at}", tenant=tenant), now=0.0)
    assert said(made, 1.0).startswith("Holding 4, 3 from big: m has all slots taken, 1 of 1 on 1 engine.")


def test_several_models_are_counted() -> None:
    made = scheduler(a=1)
    made.endpoint_changed("a", models=["m", "n"], now=0.0)
    the_lease(made.arrived(request("r"), now=0.0))
    for at, model in enumerate(("m", "m", "n")):
        made.arrived(request(f"w{at}", model=model), now=0.0)
    assert "Holding 3: m has all slots taken, 1 of 1 on 1 engine (2 of them; 1 other model too)." in said(made, 1.0)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_its_words(cause: Cause) -> None:
    assert "{model}" in WHY[cause]
    assert CAUSES[cause]
