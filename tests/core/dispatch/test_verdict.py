"""A band's verdict on an endpoint: kept until something happens to the endpoint, or until its own time is over.

That it equals one made at any moment is checked after each fact of the random worlds (`CheckedScheduler`).
"""

from __future__ import annotations

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.queueing.band import Verdict
from penstock.core.queueing.queues import Queues
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.catalogue import Cause, Failure
from penstock.core.values.observation import Observation
from penstock.core.values.settings import BandSettings, HealthSettings
from tests.core.drive import request, scheduler, the_lease


def verdict(made: CheckedScheduler, name: str, now: float, rank: int = 0) -> Verdict:
    """The verdict by which a request would be sent now."""
    state = made.inspect()
    band, endpoint = state.queues.bands[rank], state.pool[name]
    state.candidates.look(band, now)
    return band.open.get(endpoint) or band.closed[endpoint]


def test_it_is_kept_while_nothing_happens_and_made_again_for_each_endpoint_that_something_happened_to() -> None:
    made = scheduler(a=1, b=1)
    before = verdict(made, "a", 0.0), verdict(made, "b", 0.0)
    assert (verdict(made, "a", 1.0), verdict(made, "b", 1.0)) == before
    lease = the_lease(made.arrived(request("r"), now=1.0))
    assert verdict(made, "a", 1.0).cause is Cause.SLOTS_FULL
    assert verdict(made, "b", 1.0) is before[1]
    made.finished(lease, now=2.0)
    assert verdict(made, "a", 2.0).cause is None


def test_one_by_a_page_holds_until_the_page_is_old() -> None:
    made = scheduler(SchedulerSettings(stale_after_s=1.0), a=4)
    made.observed("a", Observation(1.0, 4.0, 0.0), now=1.0)
    assert verdict(made, "a", 1.0).cause is Cause.SLOTS_FULL
    assert verdict(made, "a", 1.999).cause is Cause.SLOTS_FULL
    assert verdict(made, "a", 2.0).cause is None


@pytest.mark.parametrize(("slots", "cause"), [(2, None), (1, Cause.SLOTS_FULL)])
def test_time_alone_ends_it_when_ejections_are_no_longer_ignored(slots: int, cause: Cause | None) -> None:
    health = HealthSettings(eject_after=1, eject_for_s=4.0, panic_threshold=0.5)
    made = scheduler(SchedulerSettings(health=health, attempts_max=1), a=2, b=2, c=2)
    for at, name in enumerate(("a", "b")):
        now = float(at)
        lease = the_lease(made.arrived(request(name, pinned=name), now=now))
        made.failed(lease, Failure.SERVER_ERROR, now=now)
    made.endpoint_changed("b", slots=slots, now=1.0)
    the_lease(made.arrived(request("runs", pinned="b"), now=1.0))
    assert verdict(made, "b", 3.9).cause is cause, "two of three are ejected, so that is ignored"
    assert verdict(made, "b", 4.0).cause is Cause.EJECTED, "`a` is back"
    assert verdict(made, "b", 5.0).cause is cause


def test_bands_judge_by_their_own_rules() -> None:
    bands = (BandSettings("high"), BandSettings("low", ceiling=0.5))
    made = scheduler(SchedulerSettings(bands=bands), a=2)
    made.arrived(request("r"), now=0.0)
    assert verdict(made, "a", 0.0, rank=0).cause is None
    assert verdict(made, "a", 0.0, rank=1).cause is Cause.SLOTS_FULL


def test_the_explanation_has_the_cause_of_the_same_verdict() -> None:
    """An endpoint that was on trial, and is full when its first answer begins."""
    made = scheduler(a=2)
    made.endpoint_down("a", now=1.0)
    made.endpoint_up("a", now=2.0)
    leases = [the_lease(made.arrived(request(f"r{at}", streamed=True), now=2.0)) for at in range(2)]
    made.arrived(request("waits"), now=2.0)
    told = made.explain("waits", now=2.0)
    assert told is not None
    assert told.closed == {Cause.RETURNING: 1}
    made.first_token(leases[0], now=3.0)
    told = made.explain("waits", now=3.0)
    assert told is not None
    assert told.closed == {Cause.SLOTS_FULL: 1}
    assert verdict(made, "a", 3.0).cause is Cause.SLOTS_FULL


@pytest.mark.interpreted
def test_a_verdict_that_nobody_made_anew_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scheduler(a=2)
    lease = the_lease(made.arrived(request("r", streamed=True), now=0.0))
    verdict(made, "a", 0.0)
    monkeypatch.setattr(Queues, "touch", lambda *_: None)
    with pytest.raises(AssertionError, match=r"is .* to standard"):
        made.finished(lease, now=1.0)
