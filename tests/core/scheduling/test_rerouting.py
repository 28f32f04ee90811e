"""A proxy sent a request to another endpoint than it was told: its lease follows."""

from __future__ import annotations

from random import Random

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, EndpointSpec


def scheduler(slots: int = 1) -> CheckedScheduler:
    made = CheckedScheduler(SchedulerSettings(bands=(BandSettings("only"),)), random=Random(1))
    for name in ("e", "f"):
        made.endpoint_added(EndpointSpec(name, slots, frozenset({"m"})), now=0.0)
    return made


def dispatched(made: CheckedScheduler, name: str, *, now: float = 0.0) -> Dispatch:
    (action,) = made.arrived(Request(name, "m", 0, streamed=True), now=now)
    assert isinstance(action, Dispatch)
    return action


def taken(made: CheckedScheduler, now: float) -> dict[str, int]:
    return {row.name: row.leases for row in made.snapshot(now=now).endpoints}


def other(name: str) -> str:
    return "f" if name == "e" else "e"


def test_the_slot_is_given_back_here_and_taken_there() -> None:
    made = scheduler()
    sent = dispatched(made, "r")
    assert made.rerouted(sent.lease, other(sent.endpoint), now=1.0) == []
    assert taken(made, 1.0) == {sent.endpoint: 0, other(sent.endpoint): 1}
    made.first_token(sent.lease, now=2.0)
    made.finished(sent.lease, Usage(10, 5), now=3.0)
    assert taken(made, 3.0) == {"e": 0, "f": 0}


def test_a_queued_request_gets_the_slot_that_became_free() -> None:
    made = scheduler()
    first = dispatched(made, "a")
    dispatched(made, "b")
    assert made.arrived(Request("c", "m", 0), now=0.5) == []
    actions = made.rerouted(first.lease, other(first.endpoint), now=1.0)
    assert [(a.request_id, a.endpoint) for a in actions if isinstance(a, Dispatch)] == [("c", first.endpoint)]
    assert taken(made, 1.0) == {first.endpoint: 1, other(first.endpoint): 2}, "the proxy keeps to no slots"


def test_an_endpoint_that_a_proxy_passes_over_is_ejected_for_nobody_else() -> None:
    made = scheduler(slots=10)
    passed_over = 0
    while passed_over < 6:
        sent = dispatched(made, f"r{made.inspect().seq}")
        passed_over += sent.endpoint == "e"
        made.rerouted(sent.lease, "f", now=0.0)
    assert made.inspect().pool["e"].failure is Failure.RESET, "it is noted, for people and for a probe"
    assert "e" in [dispatched(made, f"s{at}", now=0.1).endpoint for at in range(4)]


def test_speed_is_learned_where_the_answer_is_made() -> None:
    made = scheduler()
    sent = dispatched(made, "r")
    there = other(sent.endpoint)
    made.rerouted(sent.lease, there, now=5.0)
    made.first_token(sent.lease, now=5.1)
    for at in range(1, 5):
        made.progressed(sent.lease, 100 * at, now=5.1 + at)
    made.finished(sent.lease, Usage(10, 400), now=9.1)
    ledgers = {name: made.inspect().pool[name].ledger for name in ("e", "f")}
    assert ledgers[there].speed.step_s == pytest.approx(0.01, rel=0.05)
    assert ledgers[sent.endpoint].speed.step_s == 0.0


def test_an_unknown_endpoint_and_the_same_one_change_nothing() -> None:
    made = scheduler()
    sent = dispatched(made, "r")
    for name in ("nobody", sent.endpoint):
        assert made.rerouted(sent.lease, name, now=1.0) == []
    assert taken(made, 1.0) == {sent.endpoint: 1, other(sent.endpoint): 0}
