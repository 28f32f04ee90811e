"""The sentence that the page, `top` and `status` open with: state, cause and the numbers that show it."""

from __future__ import annotations

import pytest

from penstock.core.admission import AdmissionSettings, Cause
from penstock.core.ledger import Observation
from penstock.core.lifecycle import State
from penstock.core.scheduler import SchedulerSettings
from penstock.server.admin.headline import WHY, headline, tone
from penstock.server.admin.story import CAUSES
from penstock.sim.checkers import CheckedScheduler
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
    assert said(made, 5.2) == "Holding 1: m is saturated on KV, 2 of 2 engines ≥ 93 %. Oldest 4.2 s."
    assert tone(made.snapshot(now=5.2)) == "busy"


def test_memory_that_is_not_full_but_too_little_is_not_called_full() -> None:
    made = held_by_kv(0.6, 0.6, prompt_tokens=60_000)
    expected = "Holding 1: m is saturated on KV: its next request does not fit on 2 of 2 engines, 60 % used."
    assert said(made, 1.5) == f"{expected} Oldest 500 ms."


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
