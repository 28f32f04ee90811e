"""A request of a higher band takes the slot of preemptible work, the youngest first, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.dispatch.preemption_budget import PreemptionBudget
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, Limits
from tests.core.drive import request, scheduler, sent, the_lease

PEOPLE, BATCH = 0, 1
SETTINGS = SchedulerSettings(
    bands=(BandSettings("people", engine_waiting_max=3), BandSettings("batch", engine_waiting_max=0, preemptible=True)),
    wait_s_max=1e9,
    stale_after_s=1e9,
)


def limited(**admission: Any) -> SchedulerSettings:
    return replace(SETTINGS, admission=AdmissionSettings(**admission))


def full(settings: SchedulerSettings = SETTINGS, *, slots: int = 4, **more: Any) -> tuple[CheckedScheduler, list[int]]:
    """A scheduler whose slots all run batch work, granted one a second from second 0; and the leases, oldest first."""
    made = scheduler(settings, e=slots)
    leases = []
    for at in range(slots):
        actions = made.arrived(request(f"b{at}", band=BATCH, **more), now=float(at))
        leases += [action.lease for action in actions if isinstance(action, Dispatch)]
    assert len(leases) == slots
    return made, leases


def requeued(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.request_id, action.cause) for action in actions if isinstance(action, Requeue)]


def test_the_youngest_batch_request_gives_its_slot_to_a_person() -> None:
    made, _ = full()
    actions = made.arrived(request("p", band=PEOPLE), now=10.0)
    assert requeued(actions) == [("b3", "preempted")]
    assert sent(actions) == [("p", "e")]


def test_what_a_proxy_carries_is_preempted_too() -> None:
    made, _ = full(carried=True)
    assert requeued(made.arrived(request("p", band=PEOPLE), now=10.0)) == [("b3", "preempted")]


def test_a_preempted_request_returns_to_its_place_and_is_charged_for_nothing() -> None:
    made, leases = full()
    made.arrived(request("later", band=BATCH), now=9.0)
    made.arrived(request("p", band=PEOPLE), now=10.0)
    entry = made.inspect().entries["b3"]
    assert entry.charged == 0.0
    actions = made.finished(leases[0], Usage(10, 50), now=11.0)
    assert sent(actions) == [("b3", "e")]  # it arrived before `later`


def test_nothing_is_preempted_for_the_same_band_or_for_a_lower_one() -> None:
    made, _ = full()
    assert made.arrived(request("more", band=BATCH), now=10.0) == []


def test_nothing_is_preempted_in_a_band_that_is_not_preemptible() -> None:
    bands = tuple(replace(band, preemptible=False) for band in SETTINGS.bands)
    made, _ = full(replace(SETTINGS, bands=bands))
    assert made.arrived(request("p", band=PEOPLE), now=10.0) == []


@pytest.mark.parametrize("admission", [{"preempted_share_max": 0.0}, {"preemptions_max": 0}])
def test_preemption_can_be_switched_off(admission: dict[str, Any]) -> None:
    made, _ = full(limited(**admission))
    assert made.arrived(request("p", band=PEOPLE), now=10.0) == []


def test_a_stream_is_preempted_only_before_its_first_token() -> None:
    made, leases = full(streamed=True)
    for lease in leases[1:]:
        made.first_token(lease, now=5.0)
    assert requeued(made.arrived(request("p", band=PEOPLE), now=10.0)) == [("b0", "preempted")]
    assert made.arrived(request("q", band=PEOPLE), now=10.1) == []


def test_a_whole_answer_that_began_to_reach_its_client_is_not_preempted() -> None:
    made, leases = full()
    made.passed_on(leases[3], now=9.0)
    assert requeued(made.arrived(request("p", band=PEOPLE), now=10.0)) == [("b2", "preempted")]


def test_one_request_is_preempted_so_many_times_at_most() -> None:
    made, _ = full(limited(preemptions_max=2, preempted_share_max=1.0), slots=1)
    for at in (10.0, 20.0):
        actions = made.arrived(request(f"p{at}", band=PEOPLE), now=at)
        assert requeued(actions) == [("b0", "preempted")]
        lease = next(action.lease for action in actions if isinstance(action, Dispatch))
        assert sent(made.finished(lease, Usage(1, 50), now=at + 5.0)) == [("b0", "e")]
    assert made.arrived(request("p", band=PEOPLE), now=30.0) == []


def test_no_more_slot_time_is_lost_than_the_stated_share() -> None:
    """One slot, 1 %: in debt by 50 s of work, nothing is preempted until 5,000 s have paid for it."""
    made, _ = full(limited(preempted_share_max=0.01, preemptions_max=100), slots=1)
    actions = made.arrived(request("p0", band=PEOPLE), now=50.0)
    assert requeued(actions) == [("b0", "preempted")]
    lease = next(action.lease for action in actions if isinstance(action, Dispatch))
    made.finished(lease, Usage(1, 50), now=60.0)
    assert made.arrived(request("p1", band=PEOPLE), now=61.0) == []
    assert made.inspect().preemption.lost_s_total == 50.0


def test_no_slot_is_reserved_from_a_batch_whose_slots_can_be_taken() -> None:
    """An operator reserves half of the slots for flows under their share; a preemptible flood uses them all."""
    settings = limited(reserved_share=0.5)
    made = scheduler(settings, e=4)
    made.arrived(request("other", band=PEOPLE, tenant="people"), now=0.0)
    ran = [sent(made.arrived(request(f"b{at}", band=BATCH, tenant="batch"), now=0.1)) for at in range(6)]
    assert sum(map(len, ran)) == 3
    assert requeued(made.arrived(request("p", band=PEOPLE, tenant="people"), now=5.0)) != []


def test_two_people_take_two_slots_and_a_third_one_waits_for_the_engine_to_stop() -> None:
    """Aborted requests count as queued in the engine until it has stopped; the band allows two of them."""
    made, _ = full()
    ran = [sent(made.arrived(request(f"p{at}", band=PEOPLE), now=10.0)) for at in range(3)]
    assert ran == [[("p0", "e")], [("p1", "e")], []]


def test_a_request_at_its_tenants_limit_preempts_nothing() -> None:
    made, _ = full(replace(SETTINGS, tenants={"t": Limits(running=1)}), slots=2)
    first = made.arrived(request("p0", band=PEOPLE, tenant="t"), now=10.0)
    assert len(requeued(first)) == 1
    assert made.arrived(request("p1", band=PEOPLE, tenant="t"), now=11.0) == []


def test_when_its_limit_is_lifted_a_request_preempts() -> None:
    made, _ = full(replace(SETTINGS, tenants={"t": Limits(running=0)}))
    assert made.arrived(request("p", band=PEOPLE, tenant="t"), now=10.0) == []
    actions = made.tenants_limited({}, now=11.0)
    assert requeued(actions) == [("b3", "preempted")]
    assert sent(actions) == [("p", "e")]


def test_lost_time_is_paid_for_as_time_passes() -> None:
    """One slot, a tenth: the full bucket of 6 s is in debt by 4 s after a loss of 10 s; 40 s later it is not."""
    made, _ = full(limited(preempted_share_max=0.1, preemptions_max=100), slots=1)
    lease = the_lease(made.arrived(request("p0", band=PEOPLE), now=10.0))
    made.finished(lease, Usage(1, 50), now=11.0)
    assert made.arrived(request("p1", band=PEOPLE), now=49.0) == []
    assert requeued(made.expire(now=50.5)) == [("b0", "preempted")]


def test_an_idle_budget_saves_up_a_minute_s_worth_and_no_more() -> None:
    budget = PreemptionBudget(0.5, bands=True)
    assert budget.allows(0.0, slots=2)
    budget.lost(60.0)  # all of 0.5 × 2 slots × 60 s
    assert budget.allows(0.0, slots=2)
    budget.lost(0.5)
    assert not budget.allows(0.25, slots=2)
    assert budget.allows(0.75, slots=2)
    assert budget.allows(10_000.0, slots=2)
    budget.lost(60.5)
    assert not budget.allows(10_000.0, slots=2)
    assert budget.lost_s_total == 121.0


@pytest.mark.parametrize(
    ("share", "bands", "on"), [(0.01, True, True), (0.0, True, False), (0.5, False, False), (1.0, True, True)]
)
def test_a_budget_is_in_use_with_a_share_and_a_preemptible_band(share: float, bands: bool, on: bool) -> None:
    assert PreemptionBudget(share, bands=bands).on is on
    changed = PreemptionBudget(0.3, bands=True)
    changed.follow(share, bands=bands)
    assert changed.on is on


def test_nothing_is_preempted_at_an_endpoint_with_more_running_than_its_slots() -> None:
    """Two leases less would make room for a person: one that is preempted would be lost for nothing."""
    made, leases = full()
    made.endpoint_changed("e", slots=3, now=9.0)
    assert made.arrived(request("p", band=PEOPLE), now=10.0) == []
    actions = made.finished(leases[0], Usage(1, 50), now=11.0)
    assert requeued(actions) == [("b3", "preempted")]
    assert sent(actions) == [("p", "e")]


def test_a_request_that_still_waits_for_its_look_up_preempts_nothing() -> None:
    made, _ = full()
    assert made.arrived(request("p", band=PEOPLE, locate_s=0.05), now=10.0) == []
    actions = made.located("p", (), 16, now=10.01)
    assert requeued(actions) == [("b3", "preempted")]
    assert sent(actions) == [("p", "e")]


def test_a_request_for_one_endpoint_takes_a_slot_there_although_others_have_younger_work() -> None:
    made = scheduler(replace(SETTINGS, routing="round_robin"), home=1, other=1)
    for at in (0.0, 1.0):
        made.arrived(request(f"b{at:g}", band=BATCH), now=at)
    (older,) = made.inspect().pool["home"].ledger.leases.values()
    actions = made.arrived(request("p", band=PEOPLE, home="home"), now=10.0)
    assert requeued(actions) == [(older.request_id, "preempted")]
    assert sent(actions) == [("p", "home")]
    assert made.arrived(request("q", band=PEOPLE, home="home"), now=11.0) == []


@pytest.mark.parametrize(("promised", "again"), [(0.0, True), (0.5, False)])
def test_a_band_that_would_be_owed_its_share_again_is_not_preempted(promised: float, again: bool) -> None:
    """Its request would go back to the very slot that it left."""
    bands = (SETTINGS.bands[0], replace(SETTINGS.bands[1], min_share=promised))
    settings = replace(SETTINGS, bands=bands, admission=AdmissionSettings(preempted_share_max=1.0, preemptions_max=9))
    made, _ = full(settings, slots=1)
    actions = made.arrived(request("p0", band=PEOPLE), now=10.0)
    assert (requeued(actions), sent(actions)) == ([("b0", "preempted")], [("p0", "e")])
    actions = made.finished(the_lease(actions), Usage(0, 50), now=20.0)
    assert sent(actions) == [("b0", "e")]
    actions = made.arrived(request("p1", band=PEOPLE), now=21.0)
    assert requeued(actions) == ([("b0", "preempted")] if again else [])


def test_a_slot_that_is_forecast_to_free_within_20_ms_is_waited_for() -> None:
    made, (oldest, *_) = full(output_tokens=50)
    ledger = made.inspect().pool["e"].ledger
    since_s = ledger.leases[oldest].prefill_end_s
    ledger.speed.step_s, ledger.speed.kept_until_s = (10.015 - since_s) / 50, 1e9  # it is forecast to end at 10.015
    assert requeued(made.arrived(request("p", band=PEOPLE), now=9.99)) == [("b3", "preempted")]
    assert made.arrived(request("q", band=PEOPLE), now=10.0) == []
    assert requeued(made.expire(now=10.02)) == [("b2", "preempted")]  # the forecast was wrong
