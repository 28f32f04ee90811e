"""What operators do, verb by verb: who is sent where, who waits, who is answered what, and what is forgotten."""

from __future__ import annotations

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.dispatch.operator_pauses import TooManyStoppedError
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Abort, Dispatch
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, EndpointSpec, Limits
from tests.core.drive import ends, request, requeued, scheduler, sent, the_lease

M = frozenset({"m"})


def fill(made: CheckedScheduler, count: int, tenant: str = "t") -> list[int]:
    newcomers = [request(f"fill-{at}", tenant=tenant, streamed=True) for at in range(count)]
    return [the_lease(made.arrived(newcomer, now=0.0)) for newcomer in newcomers]


# --- an endpoint is removed ---------------------------------------------------------------------------------------


def test_nothing_goes_to_a_removed_endpoint_and_what_runs_there_ends_in_its_own_time() -> None:
    made = scheduler(a=2, b=1)
    leases = fill(made, 3)
    made.endpoint_removed("a", now=1.0)
    assert made.arrived(request("next"), now=1.0) == []
    on_a = [lease for lease, dispatch in made.books.leases.items() if dispatch.endpoint == "a"]
    assert made.first_token(on_a[0], now=2.0) == []
    assert made.progressed(on_a[0], 40, now=2.5) == []
    assert made.finished(on_a[0], Usage(1, 1), now=3.0) == []
    assert requeued(made.failed(on_a[1], Failure.RESET, now=3.0)) == ["fill-2"]
    (on_b,) = set(leases) - set(on_a)
    assert [name for name, _ in sent(made.finished(on_b, now=4.0))] == ["fill-2"]
    assert [endpoint.name for endpoint in made.snapshot(now=4.0).endpoints] == ["b"]


def test_requests_for_a_removed_endpoint_wait_for_another_one_then_get_no_endpoint() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    made.endpoint_added(EndpointSpec("other", 1, frozenset("n")), now=0.0)
    fill(made, 1)
    made.arrived(request("waits"), now=0.0)
    made.arrived(request("served"), now=2.0)
    made.endpoint_removed("a", now=1.0)
    made.endpoint_changed("other", models=["n"], now=1.5)  # that others tell their models changes nothing
    assert ends(made.expire(now=5.0)) == [("waits", "evicted", "no_endpoint")]
    assert sent(made.endpoint_added(EndpointSpec("a2", 1, M), now=6.0)) == [("served", "a2")]


def test_a_model_whose_last_endpoint_was_removed_stays_known_for_one_max_wait() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    made.endpoint_added(EndpointSpec("other", 1, frozenset("n")), now=0.0)
    made.endpoint_removed("a", now=10.0)
    assert made.knows("m", now=14.9) is None
    assert made.arrived(request("early"), now=14.9) == []
    assert ends(made.arrived(request("late"), now=15.0)) == [("late", "rejected", "model_not_found")]


def test_a_removed_endpoint_cannot_be_pinned() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_removed("a", now=0.0)
    assert ends(made.arrived(request("r", pinned="a"), now=0.0)) == [("r", "rejected", "endpoint_not_found")]


def test_an_endpoint_that_comes_back_under_its_name_owes_nothing_to_the_old_one() -> None:
    made = scheduler(a=2)
    old, failing = fill(made, 2)
    made.endpoint_removed("a", now=1.0)
    made.endpoint_added(EndpointSpec("a", 1, M), now=2.0)
    new = the_lease(made.arrived(request("new", streamed=True), now=2.0))
    assert made.arrived(request("next"), now=2.0) == []
    assert made.first_token(old, now=3.0) == []
    assert made.finished(old, Usage(1, 1), now=3.0) == []
    assert requeued(made.failed(failing, Failure.CONNECT, now=3.0)) == ["fill-1"]
    assert made.snapshot(now=3.0).endpoints[0].state == "up"  # what the old one did is not the new one's fault
    assert len(sent(made.finished(new, Usage(1, 1), now=4.0))) == 1


def test_a_restarted_and_then_removed_endpoint_comes_back_in_an_epoch_of_its_own() -> None:
    made = scheduler(a=1)
    (old,) = fill(made, 1)
    for at, started_s in ((1.0, 100.0), (2.0, 200.0), (3.0, 300.0)):
        made.observed("a", Observation(at, 1, 0, progress=at, started_s=started_s), now=at)
    made.endpoint_removed("a", now=4.0)
    made.endpoint_added(EndpointSpec("a", 1, M), now=4.0)
    assert sent(made.arrived(request("new"), now=4.0)) == [("new", "a")]
    assert made.finished(old, now=5.0) == []
    assert made.arrived(request("next"), now=5.0) == []


# --- an endpoint is drained ---------------------------------------------------------------------------------------


def test_a_drained_endpoint_gets_nothing_new_and_finishes_what_it_has() -> None:
    made = scheduler(a=2)
    (running,) = fill(made, 1)
    made.endpoint_drained("a", now=1.0)
    assert made.arrived(request("waits"), now=1.0) == []
    assert made.snapshot(now=1.0).endpoints[0].state == "draining"
    assert made.finished(running, Usage(1, 1), now=2.0) == []
    made.endpoint_up("a", now=2.5)  # a probe's word does not end a drain
    assert made.least_loaded("m", now=2.5) is None
    assert sent(made.endpoint_resumed("a", now=3.0)) == [("waits", "a")]


def test_a_drained_endpoint_has_a_cause_of_its_own_and_is_not_down() -> None:
    made = scheduler(a=1)
    made.endpoint_drained("a", now=0.0)
    band = SchedulerSettings().bands[0]
    assert made.inspect().candidates.closed(made.inspect().pool["a"], band, 0.0) is Cause.PAUSED
    made.endpoint_down("a", now=1.0)
    assert made.snapshot(now=1.0).endpoints[0].state == "down"


def test_a_drain_is_not_ignored_for_want_of_healthy_endpoints() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_drained("a", now=0.0)
    for at in range(3):
        lease = the_lease(made.arrived(request(f"r{at}", pinned="b"), now=float(at)))
        made.failed(lease, Failure.SERVER_ERROR, now=float(at))
    assert sent(made.arrived(request("r"), now=3.0)) == [("r", "b")]  # ejected, but all there is


def test_a_request_pinned_to_a_drained_endpoint_gets_draining() -> None:
    made = scheduler(a=1)
    made.endpoint_drained("a", now=0.0)
    assert ends(made.arrived(request("r", pinned="a"), now=0.0)) == [("r", "rejected", "draining")]


def test_requests_for_drained_endpoints_only_get_no_endpoint() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    made.endpoint_drained("a", now=0.0)
    made.arrived(request("r"), now=0.0)
    assert ends(made.expire(now=5.0)) == [("r", "evicted", "no_endpoint")]


# --- models are paused and drained --------------------------------------------------------------------------------


def test_of_a_paused_model_nothing_is_sent_and_others_go_on() -> None:
    made = scheduler(a=2)
    made.endpoint_added(EndpointSpec("b", 2, frozenset("n")), now=0.0)
    made.paused("m", now=0.0)
    assert made.arrived(request("held"), now=0.0) == []
    assert sent(made.arrived(request("other", model="n"), now=0.0)) == [("other", "b")]
    assert made.snapshot(now=0.0).paused == ["m"]
    assert sent(made.resumed("m", now=1.0)) == [("held", "a")]


def test_when_all_is_paused_everything_waits_and_to_resume_all_ends_every_pause() -> None:
    made = scheduler(a=2)
    made.paused("m", now=0.0)
    made.paused(None, now=0.0)
    made.arrived(request("one"), now=0.0)
    assert made.snapshot(now=0.0).paused == ["*", "m"]
    assert made.resumed("m", now=1.0) == []
    assert sent(made.resumed(None, now=1.0)) == [("one", "a")]


def test_a_pause_keeps_nobody_from_timing_out() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    made.paused(None, now=0.0)
    made.arrived(request("r"), now=0.0)
    assert ends(made.expire(now=5.0)) == [("r", "evicted", "queue_timeout")]


@pytest.mark.parametrize("settings", [SchedulerSettings(queue_enabled=False), SchedulerSettings()])
def test_what_cannot_wait_is_refused_while_its_model_is_paused(settings: SchedulerSettings) -> None:
    made = scheduler(settings, a=1)
    made.paused("m", now=0.0)
    assert ends(made.arrived(request("r", pinned="a"), now=0.0)) == [("r", "rejected", "no_endpoint")]


def test_with_queueing_off_a_failed_request_is_not_tried_elsewhere_during_a_pause() -> None:
    made = scheduler(SchedulerSettings(queue_enabled=False), a=1, b=1)
    lease = the_lease(made.arrived(request("r"), now=0.0))
    made.paused(None, now=0.0)
    assert ends(made.failed(lease, Failure.RESET, now=1.0)) == [("r", "failed", "upstream_error")]


def test_a_drained_model_admits_nothing_and_serves_queued_requests() -> None:
    made = scheduler(a=1)
    made.endpoint_added(EndpointSpec("b", 1, frozenset("n")), now=0.0)
    (running,) = fill(made, 1)
    made.arrived(request("waits"), now=0.0)
    made.drained("m", now=1.0)
    assert ends(made.arrived(request("late"), now=1.0)) == [("late", "rejected", "draining")]
    assert sent(made.arrived(request("other", model="n"), now=1.0)) == [("other", "b")]
    assert sent(made.finished(running, now=2.0)) == [("waits", "a")]
    assert made.snapshot(now=2.0).drained == ["m"]
    made.resumed("m", now=3.0)
    assert made.arrived(request("again"), now=3.0) == []


def test_the_models_that_operators_stop_are_bounded() -> None:
    made = scheduler(a=1)
    for at in range(1000):
        made.paused(f"m{at}", now=0.0)
    made.paused("m0", now=0.0)
    with pytest.raises(TooManyStoppedError):
        made.paused("one more", now=0.0)
    made.paused(None, now=0.0)


def test_a_pause_does_not_make_estimated_waits_longer_once_it_is_over() -> None:
    made = scheduler(a=4)
    for at in range(400):
        made.arrived(request(f"r{at}", tenant="t"), now=0.0)
    now = 0.0
    for _ in range(200):
        now += 0.05
        made.finished(next(iter(made.books.leases)), Usage(1, 50), now=now)
    before_s = made.wait_s("r399", now=now)
    made.paused(None, now=now)
    now += 40.0
    made.resumed(None, now=now)
    after_s = made.wait_s("r399", now=now)
    assert before_s is not None
    assert after_s is not None
    assert after_s < 2 * before_s


# --- one request --------------------------------------------------------------------------------------------------


def next_four(made: CheckedScheduler, running: int, usage: Usage) -> list[str]:
    """The next four requests in the slot of the lease `running`, each of this `usage`."""
    served = []
    for at in range(4):
        (dispatch,) = made.finished(running, usage, now=2.0 + at)
        assert isinstance(dispatch, Dispatch)
        running = dispatch.lease
        served.append(dispatch.request_id)
    return served


def test_a_bumped_request_is_the_next_of_its_band() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("high"), BandSettings("low"))), a=1)
    (running,) = fill(made, 1)
    for at in range(5):
        made.arrived(request(f"low-{at}", band=1, tenant="t"), now=0.0)
    made.arrived(request("other", band=1, tenant="u"), now=0.0)
    made.arrived(request("high"), now=0.0)
    made.bumped("low-4", now=1.0)
    made.bumped("low-3", now=1.0)
    assert next_four(made, running, Usage(1, 1)) == ["high", "low-4", "low-3", "other"]


def test_a_bumped_request_is_charged_to_its_flow_like_any_other() -> None:
    made = scheduler(a=1)
    (running,) = fill(made, 1, "z")
    for at in range(3):
        made.arrived(request(f"a{at}", tenant="a"), now=0.0)
        made.arrived(request(f"b{at}", tenant="b"), now=0.0)
    made.bumped("a2", now=0.0)
    assert next_four(made, running, Usage(1, 50)) == ["a2", "b0", "a0", "b1"]


def test_a_bump_overrides_what_is_kept_for_flows_under_their_share() -> None:
    settings = SchedulerSettings(admission=AdmissionSettings(reserved_share=0.5))
    made = scheduler(settings, a=4)
    for at in range(2):
        made.arrived(request(f"light-{at}", tenant=f"light-{at}"), now=0.0)
    for at in range(6):
        made.arrived(request(f"r{at}", tenant="heavy", output_tokens=128), now=0.0)
    assert made.snapshot(now=0.0).running < 4
    waiting = sorted(made.books.waiting)[-1]
    assert [name for name, _ in sent(made.bumped(waiting, now=1.0))] == [waiting]


def test_a_bumped_request_still_has_to_be_admissible() -> None:
    made = scheduler(a=1)
    (running,) = fill(made, 1)
    made.endpoint_added(EndpointSpec("b", 1, frozenset("n")), now=0.0)
    made.paused("n", now=0.0)
    made.arrived(request("m"), now=0.0)
    made.arrived(request("n", model="n"), now=0.0)
    assert made.bumped("n", now=1.0) == []
    assert sent(made.finished(running, now=2.0)) == [("m", "a")]


def test_what_does_not_wait_cannot_be_bumped() -> None:
    made = scheduler(a=1)
    fill(made, 1)
    assert made.bumped("fill-0", now=0.0) == made.bumped("nobody", now=0.0) == []


def test_an_operator_takes_a_waiting_request_out_and_stops_a_running_one() -> None:
    made = scheduler(a=1)
    fill(made, 1)
    made.arrived(request("waits"), now=0.0)
    assert (made.state_of("fill-0"), made.state_of("waits")) == (State.RUNNING, State.WAITING)
    (evicted,) = made.evicted("waits", now=1.0)
    assert ends([evicted]) == [("waits", "evicted", "operator")]
    assert evicted.retry_after_s is None  # type: ignore[union-attr]
    assert made.evicted("fill-0", now=1.0) == [Abort("fill-0", Reason.OPERATOR)]
    assert made.evicted("nobody", now=1.0) == []
    assert made.state_of("waits") is None


# --- slots --------------------------------------------------------------------------------------------------------


def moved(at: float, running: float) -> Observation:
    return Observation(at, running, 0, progress=at)


def test_slots_set_by_hand_stay_and_auto_finds_them_out_again() -> None:
    made = scheduler()
    made.endpoint_added(EndpointSpec("a", 4, M, adaptive_slots=True), now=0.0)
    made.endpoint_changed("a", slots=6, now=0.0)
    fill(made, 6)
    for at in range(1, 5):
        made.observed("a", moved(at, 6), now=float(at))
    made.endpoint_changed("a", told_slots=2, now=4.5)
    shown = made.snapshot(now=5.0).endpoints[0]
    assert (shown.slots, shown.slots_auto) == (6, False)
    made.endpoint_changed("a", slots="auto", now=5.0)
    assert made.snapshot(now=5.0).endpoints[0].slots == 2  # the engine told


def test_auto_begins_with_the_slots_there_are_where_the_engine_does_not_tell() -> None:
    made = scheduler(a=6)
    made.endpoint_changed("a", slots="auto", now=0.0)
    *most, last = fill(made, 6)
    for at, each in enumerate(most, 1):
        made.first_token(each, now=0.1 * at)
    assert made.snapshot(now=1.0).endpoints[0].slots == 6, "nobody waits"
    made.arrived(request("waits"), now=1.0)
    made.first_token(last, now=1.1)
    shown = made.snapshot(now=2.0).endpoints[0]
    assert (shown.slots, shown.slots_auto) == (9, True)


def test_an_engines_reported_slots_hold_until_somebody_sets_them() -> None:
    made = scheduler()
    made.endpoint_added(EndpointSpec("a", 4, M, adaptive_slots=True), now=0.0)
    made.endpoint_changed("a", told_slots=3, now=0.0)
    shown = made.snapshot(now=0.0).endpoints[0]
    assert (shown.slots, shown.slots_auto) == (3, False)


# --- a tenant is paused, limited, cleared -------------------------------------------------------------------------


def test_a_paused_tenant_waits_beside_free_slots_while_others_are_served() -> None:
    made = scheduler(a=2)
    made.arrived(request("before", tenant="x"), now=0.0)
    assert made.tenants_limited({"x": Limits(running=0)}, now=1.0) == []
    assert made.arrived(request("x1", tenant="x"), now=1.0) == []
    assert [name for name, _ in sent(made.arrived(request("y1", tenant="y"), now=1.0))] == ["y1"]
    explained = made.explain("x1", now=2.0)
    assert explained is not None
    assert explained.waits_for is Cause.TENANT_PAUSED
    assert made.snapshot(now=2.0).paused_tenants == ["x"]
    made.finished(the_lease_of(made, "before"), Usage(1, 1), now=3.0)
    assert made.state_of("x1") is State.WAITING
    assert [name for name, _ in sent(made.tenants_limited({}, now=4.0))] == ["x1"]
    assert made.snapshot(now=4.0).paused_tenants == []


def test_a_request_queued_before_a_pause_shows_the_pause_and_its_end() -> None:
    made = scheduler(a=1)
    (lease,) = fill(made, 1, "y")
    made.arrived(request("x1", tenant="x"), now=0.0)
    made.tenants_limited({"x": Limits(running=0)}, now=1.0)
    assert made.finished(lease, Usage(1, 1), now=3.0) == []
    made.tenants_limited({"x": Limits(running=1)}, now=5.0)
    explained = made.explain("x1", now=5.0)
    assert explained is not None
    assert {part.cause: round(part.seconds) for part in explained.waits} == {
        Cause.SLOTS_FULL: 1,
        Cause.TENANT_PAUSED: 4,
    }


def test_a_lower_limit_ends_nothing_that_runs_and_a_higher_one_sends_at_once() -> None:
    made = scheduler(a=4)
    fill(made, 2, "x")
    made.tenants_limited({"x": Limits(running=1)}, now=1.0)
    assert made.arrived(request("x1", tenant="x"), now=1.0) == []
    assert len(made.books.leases) == 2
    assert [name for name, _ in sent(made.tenants_limited({"x": Limits(running=3)}, now=2.0))] == ["x1"]


def test_many_are_taken_out_at_once_and_what_that_frees_is_handed_out() -> None:
    made = scheduler(a=1)
    fill(made, 1, "x")
    for name in ("x1", "x2"):
        made.arrived(request(name, tenant="x"), now=0.0)
    made.arrived(request("y1", tenant="y"), now=0.0)
    assert made.requests_of("x", running=False) == ["x1", "x2"]
    assert made.requests_of("x", running=True) == ["fill-0"]
    assert made.busy() == {"x": (2, 1), "y": (1, 0)}
    actions = made.all_evicted(["x1", "gone", "x2", "fill-0"], now=1.0)
    assert ends(actions) == [("x1", "evicted", "operator"), ("x2", "evicted", "operator")]
    assert [action for action in actions if isinstance(action, Abort)] == [Abort("fill-0", Reason.OPERATOR)]
    assert made.state_of("y1") is State.WAITING


def the_lease_of(made: CheckedScheduler, request_id: str) -> int:
    return next(lease for lease, dispatch in made.books.leases.items() if dispatch.request_id == request_id)


def test_a_weight_by_an_operator_divides_what_is_sent_from_now_on() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("first", tenant="z"), now=0.0))
    for at in range(8):
        for tenant in ("x", "y"):
            made.arrived(request(f"{tenant}{at}", tenant=tenant), now=1.0)
    made.tenants_weighed({"x": 3.0}, now=1.0)
    served = []
    for at in range(8):
        actions = made.finished(lease, None, now=2.0 + at)
        served += [name[0] for name, _ in sent(actions)]
        lease = the_lease(actions)
    assert (served.count("x"), served.count("y")) == (6, 2)
