"""Where a waiting request stands: its exact place in its flow's line, and an estimate that grows with it."""

from __future__ import annotations

import pytest

from penstock.core.queueing.quotas import Quotas
from penstock.core.util.timers import Timers
from penstock.core.values.rows import Allowance, Left
from penstock.core.values.settings import Limits
from tests.core.drive import ends, request, scheduler, the_lease


def test_the_places_of_a_line_count_from_the_next_one_on() -> None:
    core = scheduler(a=1)
    core.arrived(request("running"), now=0.0)
    for name in ("first", "second", "third"):
        core.arrived(request(name), now=1.0)
    places = core.places(["third", "first", "second", "running", "unknown"], now=4.0)
    assert {name: place.position for name, place in places.items()} == {"first": 1, "second": 2, "third": 3}
    assert [place.waited_s for place in places.values()] == [3.0, 3.0, 3.0]


def test_a_place_is_one_in_its_own_flow_and_moves_up_as_others_leave() -> None:
    core = scheduler(a=1)
    lease = the_lease(core.arrived(request("running", tenant="x"), now=0.0))
    for name in ("x1", "x2", "x3"):
        core.arrived(request(name, tenant="x"), now=0.0)
    core.arrived(request("y1", tenant="y"), now=0.0)
    assert core.places(["y1"], now=0.0)["y1"].position == 1
    core.cancelled("x1", now=0.0)
    assert core.places(["x3"], now=0.0)["x3"].position == 2
    assert not ends(core.finished(lease, now=1.0))


def test_the_callers_own_priority_counts_for_its_place() -> None:
    core = scheduler(a=1)
    core.arrived(request("running"), now=0.0)
    core.arrived(request("patient"), now=0.0)
    core.arrived(request("urgent", priority=-5), now=0.0)
    places = core.places(["patient", "urgent"], now=0.0)
    assert (places["urgent"].position, places["patient"].position) == (1, 2)


def test_whom_an_operator_put_first_stands_first() -> None:
    core = scheduler(a=1)
    for name in ("running", "first", "second", "third"):
        core.arrived(request(name), now=0.0)
    core.bumped("third", now=1.0)
    places = core.places(["first", "second", "third"], now=1.0)
    assert {name: place.position for name, place in places.items()} == {"third": 1, "first": 2, "second": 3}


def test_a_request_further_back_gets_a_longer_retry_after() -> None:
    core = scheduler(a=1)
    lease = the_lease(core.arrived(request("running"), now=0.0))
    assert core.places(["running"], now=0.0) == {}
    for at in range(1, 6):  # one each 2 s, so that there is a rate to go by
        core.arrived(request(f"r{at}"), now=2.0 * at - 1.0)
        lease = the_lease(core.finished(lease, now=2.0 * at))
    for name in ("w1", "w2", "w3", "w4"):
        core.arrived(request(name), now=10.5)
    places = core.places(["w1", "w2", "w3", "w4"], now=10.5)
    etas_s = [places[name].eta_s or 0.0 for name in ("w1", "w2", "w3", "w4")]
    assert etas_s == sorted(etas_s)
    assert etas_s[0] == pytest.approx(2.0, rel=0.35)
    assert etas_s[3] == pytest.approx(6.0, rel=0.35)


def test_no_estimate_is_given_while_nothing_is_known() -> None:
    core = scheduler()
    core.arrived(request("w1"), now=0.0)
    assert core.places(["w1"], now=0.0)["w1"].eta_s is None


def test_an_allowance_tells_what_is_left_and_when_it_is_full_again() -> None:
    tenants = Quotas({"a": Limits(requests_per_minute=60, tokens_per_minute=600), "b": Limits(running=1)})
    assert tenants.admit(("a",), tokens=100, now=0.0) is None
    assert tenants.allowance(("a",), 0.0) == Allowance(Left(60, 59, 1.0), Left(600, 500, 10.0))
    tenants.settle(("a",), reserved=100, used=700, now=0.0)
    assert tenants.allowance(("a",), 0.0) == Allowance(Left(60, 59, 1.0), Left(600, 0, 70.0))
    assert tenants.allowance(("b",), 0.0) is None
    assert tenants.allowance(("elsewhere",), 0.0) is None
    assert tenants.allowance(("a",), 100.0) == Allowance(Left(60, 60, 0.0), Left(600, 600, 0.0))


def test_no_more_are_due_at_a_time_than_asked_for() -> None:
    timers: Timers[int] = Timers()
    for key in range(5):
        timers.set(key, 1.0)
    assert timers.due(1.0, limit=2) == [0, 1]
    assert timers.due(1.0) == [2, 3, 4]
