"""The scheduler, fact by fact: what it decides, and that nobody is forgotten when time alone opens a way."""

from __future__ import annotations

from random import Random

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Abort, Action, Requeue
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import (
    AdmissionSettings,
    BandSettings,
    EndpointSpec,
    HealthSettings,
    Limits,
    QueueBounds,
)
from tests.core.drive import ends, request, requeued, scheduler, sent, the_lease, until

BACKFILLED_MAX = 32
WINDOW = 32
AVOID_S = 1.0

NO_QUEUE = SchedulerSettings(queue_enabled=False)


def fill(made: CheckedScheduler, count: int, *, now: float = 0.0) -> list[int]:
    """Dispatch that many at once and return their leases."""
    names = [f"fill-{now}-{at}" for at in range(count)]
    return [the_lease(made.arrived(request(name, streamed=True), now=now)) for name in names]


# --- waiting and its end ------------------------------------------------------------------------------------------


def test_a_queued_request_is_sent_when_a_lease_ends_and_gets_its_wait() -> None:
    made = scheduler(a=1)
    (first,) = fill(made, 1)
    assert made.arrived(request("next"), now=1.0) == []
    (dispatch,) = made.finished(first, Usage(1, 1), now=3.5)
    assert sent([dispatch]) == [("next", "a")]
    assert dispatch.queue_s == 2.5  # type: ignore[union-attr]


def test_a_waiter_that_hangs_up_never_reaches_an_engine() -> None:
    made = scheduler(a=1)
    (first,) = fill(made, 1)
    made.arrived(request("gone"), now=0.0)
    assert made.cancelled("gone", now=1.0) == []
    assert made.finished(first, now=2.0) == []
    assert made.next_deadline() is None


def test_a_running_request_that_is_cancelled_frees_its_slot_at_once() -> None:
    made = scheduler(a=1)
    fill(made, 1)
    made.arrived(request("next"), now=0.0)
    assert sent(made.cancelled("fill-0.0-0", now=1.0)) == [("next", "a")]


def test_a_request_that_waits_too_long_is_evicted_with_a_retry_after() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    fill(made, 1)
    made.arrived(request("late"), now=1.0)
    assert made.next_deadline() == 6.0
    actions = made.expire(now=6.0)
    assert ends(actions) == [("late", "evicted", "queue_timeout")]
    assert 1.0 <= actions[0].retry_after_s <= 60.0  # type: ignore[union-attr,operator]


def test_a_band_may_forbid_waiting_altogether() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("now", wait_s_max=0.0),)), a=1)
    fill(made, 1)
    assert ends(made.arrived(request("late"), now=1.0)) == [("late", "rejected", "queue_full")]


def test_where_nobody_is_alive_a_known_model_waits_and_then_gets_no_endpoint() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    made.endpoint_down("a", now=0.0)
    assert made.arrived(request("r"), now=0.0) == []
    assert ends(made.expire(now=5.0)) == [("r", "evicted", "no_endpoint")]


def test_an_endpoint_that_comes_back_is_used_at_once() -> None:
    made = scheduler(a=1)
    made.endpoint_down("a", now=0.0)
    made.arrived(request("r"), now=0.0)
    assert sent(made.endpoint_up("a", now=1.0)) == [("r", "a")]


@pytest.mark.parametrize(
    "settings",
    [
        SchedulerSettings(bounds=QueueBounds(requests_max=2)),
        SchedulerSettings(bounds=QueueBounds(bytes_max=80)),
        SchedulerSettings(bounds=QueueBounds(tokens_max=20)),
        SchedulerSettings(bands=(BandSettings("b", requests_max=2),)),
        SchedulerSettings(bands=(BandSettings("b", bytes_max=80),)),
        SchedulerSettings(bands=(BandSettings("b", tokens_max=20),)),
    ],
    ids=["count", "bytes", "tokens", "count of a band", "bytes of a band", "tokens of a band"],
)
def test_the_queue_is_bounded(settings: SchedulerSettings) -> None:
    made = scheduler(settings, a=1)
    fill(made, 1)
    refused = [ends(made.arrived(request(str(at), prompt_tokens=10), now=0.0)) for at in range(3)]
    assert refused == [[], [], [("2", "rejected", "queue_full")]]


def test_a_tenant_may_not_let_more_tokens_wait_than_it_may() -> None:
    made = scheduler(SchedulerSettings(tenants={"t": Limits(queued_tokens=25)}), a=1)
    fill(made, 1)
    refused = [ends(made.arrived(request(str(at), prompt_tokens=10, tenant="t"), now=0.0)) for at in range(3)]
    assert refused == [[], [], [("2", "rejected", "tenant_limit")]]


def test_a_queue_of_no_length_still_sends_what_finds_a_slot() -> None:
    made = scheduler(SchedulerSettings(bounds=QueueBounds(requests_max=0)), a=1)
    assert sent(made.arrived(request("first"), now=0.0)) == [("first", "a")]
    assert ends(made.arrived(request("second"), now=0.0)) == [("second", "rejected", "queue_full")]


# --- models -------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_refused_only_when_every_endpoint_has_reported() -> None:
    made = scheduler(a=1)
    assert ends(made.arrived(request("r1", model="n"), now=0.0)) == [("r1", "rejected", "model_not_found")]
    made.endpoint_added(EndpointSpec(name="b", slots=1), now=0.0)
    assert made.knows("n", now=0.0) is None
    assert made.arrived(request("r2", model="n"), now=0.0) == []
    assert sent(made.endpoint_changed("b", models=["n"], now=1.0)) == [("r2", "b")]


def test_without_any_endpoint_a_request_waits_for_one() -> None:
    made = scheduler()
    assert made.arrived(request("r"), now=0.0) == []
    assert sent(made.endpoint_added(EndpointSpec(name="a", slots=1, models=frozenset("m")), now=1.0)) == [("r", "a")]


def test_an_endpoint_that_cannot_tell_serves_everything_and_new_slots_do_not_change_that() -> None:
    made = scheduler()
    made.endpoint_added(EndpointSpec(name="a", slots=1), now=0.0)
    made.endpoint_changed("a", tells_models=False, now=0.0)
    made.endpoint_changed("a", slots=2, now=0.0)
    assert sent(made.arrived(request("r", model="anything"), now=0.0)) == [("r", "a")]


def test_a_model_without_a_free_endpoint_hides_no_other() -> None:
    made = scheduler(a=1)
    made.endpoint_added(EndpointSpec(name="b", slots=1, models=frozenset("n")), now=0.0)
    fill(made, 1)
    for at in range(2 * WINDOW):
        made.arrived(request(f"m{at}"), now=0.0)
    assert sent(made.arrived(request("n", model="n"), now=0.0)) == [("n", "b")]


def test_many_that_do_not_fit_hide_no_other_model() -> None:
    """The endpoint of `m` has a slot but no KV memory for what waits; an idle endpoint serves `n`."""
    made = scheduler(a=8)
    made.endpoint_added(EndpointSpec(name="b", slots=1, models=frozenset("n")), now=0.0)
    made.observed("a", Observation(0.0, 1, 0, kv_usage=0.9, kv_capacity_tokens=1000), now=0.0)
    for at in range(2 * WINDOW):
        assert made.arrived(request(f"m{at}", prompt_tokens=500), now=0.0) == []
    assert sent(made.arrived(request("n", model="n"), now=0.0)) == [("n", "b")]


# --- what does not fit --------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(kv_usage_max=0.9)), a=200)
    made.observed("a", Observation(0.0, 1, 0, kv_usage=0.5, kv_capacity_tokens=10_000), now=0.0)
    assert made.arrived(request("large", prompt_tokens=5_000), now=0.0) == []
    overtook = [bool(made.arrived(request(f"small{at}"), now=0.0)) for at in range(BACKFILLED_MAX + 2)]
    assert overtook == [True] * BACKFILLED_MAX + [False, False]
    assert sent(made.observed("a", Observation(1.0, 0, 0, kv_usage=0.1), now=1.0))[0] == ("large", "a")


def test_a_flow_gets_no_further_ahead_by_overtaking_however_often_the_other_begins_anew() -> None:
    """The large one that does not fit is another one every ten requests: none of them is overtaken often enough."""
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(kv_usage_max=0.9)), a=200)
    made.observed("a", Observation(0.0, 1, 0, kv_usage=0.5, kv_capacity_tokens=10_000), now=0.0)
    overtook = 0
    for at in range(2 * BACKFILLED_MAX):
        if at % 10 == 0:
            assert made.arrived(request(f"large{at}", tenant="big", prompt_tokens=5_000), now=0.0) == []
        if at and at % 10 == 0:  # only now, so that its flow is not idle in between
            made.cancelled(f"large{at - 10}", now=0.0)
        overtook += bool(made.arrived(request(f"small{at}", tenant="small"), now=0.0))
    assert overtook == BACKFILLED_MAX
    assert sent(made.observed("a", Observation(1.0, 0, 0, kv_usage=0.1), now=1.0))[0] == ("large60", "a")


def test_what_does_not_fit_is_looked_at_again_when_the_reading_is_too_old() -> None:
    made = scheduler(a=4)
    made.observed("a", Observation(0.0, 1, 0, kv_usage=0.9, kv_capacity_tokens=1000), now=0.0)
    assert made.arrived(request("large", prompt_tokens=500), now=0.0) == []
    assert made.next_deadline() == 5.0
    assert sent(made.expire(now=5.0)) == [("large", "a")]


def test_room_is_not_kept_at_an_endpoint_that_the_patient_one_shuns_or_that_does_not_serve_it() -> None:
    made = scheduler(a=200, b=200)
    made.endpoint_added(EndpointSpec(name="c", slots=9, models=frozenset("n")), now=0.0)
    made.observed("a", Observation(0.0, 1, 0, kv_usage=0.5, kv_capacity_tokens=10_000), now=0.0)
    made.observed("b", Observation(0.0, 199, 0), now=0.0)
    lease = the_lease(made.arrived(request("large", prompt_tokens=5_000), now=0.0))
    made.observed("b", Observation(0.1, 10, 0), now=0.1)
    made.observed("a", Observation(0.1, 1, 0, kv_usage=0.5, kv_capacity_tokens=10_000), now=0.1)
    assert requeued(made.failed(lease, Failure.RESET, now=0.2)) == ["large"]
    for at in range(BACKFILLED_MAX):
        assert made.arrived(request(f"s{at}"), now=0.2)
    assert made.inspect().entries["large"].backfilled == BACKFILLED_MAX
    assert sent(made.arrived(request("other", model="n"), now=0.2)) == [("other", "c")]
    assert sent(made.arrived(request("small"), now=0.2)) == [("small", "b")]


# --- bands --------------------------------------------------------------------------------------------------------


def test_bands_are_strict() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("high"), BandSettings("low"))), a=1)
    (first,) = fill(made, 1)
    made.arrived(request("low", band=1), now=0.0)
    made.arrived(request("high", band=0), now=1.0)
    actions = made.finished(first, now=2.0)
    assert sent(actions) == [("high", "a")]
    assert sent(made.finished(the_lease(actions), now=3.0)) == [("low", "a")]


def test_a_careful_band_stops_before_the_engine_queues_while_another_goes_on() -> None:
    careful = BandSettings("batch", engine_waiting_max=0)
    made = scheduler(SchedulerSettings(bands=(BandSettings("high", engine_waiting_max=3), careful)), a=9)
    made.observed("a", Observation(0.0, 2, 1), now=0.0)
    assert made.arrived(request("low", band=1), now=0.0) == []
    assert sent(made.arrived(request("high", band=0), now=0.0)) == [("high", "a")]


# --- pinned -------------------------------------------------------------------------------------------------------


def test_a_pinned_request_is_admitted_or_refused_at_once() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_added(EndpointSpec(name="c", slots=1), now=0.0)
    assert sent(made.arrived(request("p1", pinned="a"), now=0.0)) == [("p1", "a")]
    expected = {
        "a": "endpoint_overloaded",
        "nowhere": "endpoint_not_found",
        "c": "no_endpoint",  # it has not told what it serves
    }
    for name, reason in expected.items():
        assert ends(made.arrived(request("p2", pinned=name), now=0.0)) == [("p2", "rejected", reason)]
    assert ends(made.arrived(request("p2", model="n", pinned="b"), now=0.0)) == [("p2", "rejected", "model_not_found")]
    made.endpoint_down("b", now=0.0)
    assert ends(made.arrived(request("p2", pinned="b"), now=0.0)) == [("p2", "rejected", "no_endpoint")]


def test_a_pinned_request_that_fails_is_not_tried_elsewhere() -> None:
    made = scheduler(a=1, b=1)
    lease = the_lease(made.arrived(request("p", pinned="a"), now=0.0))
    assert ends(made.failed(lease, Failure.BUSY, now=1.0)) == [("p", "failed", "upstream_error")]


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_refused_request_goes_elsewhere_and_a_later_one_does_not_overtake_it() -> None:
    made = scheduler(a=1, b=1)
    leases = fill(made, 2)
    made.arrived(request("later"), now=0.0)
    actions = made.failed(leases[0], Failure.BUSY, now=1.0)
    assert requeued(actions) == ["fill-0.0-0"]
    assert sent(actions) == [("later", "a")]  # the first one shuns `a` for a moment
    assert sent(made.finished(leases[1], now=1.01)) == [("fill-0.0-0", "b")]


def test_a_request_whose_only_endpoint_refused_it_is_sent_again_when_the_moment_is_over() -> None:
    made = scheduler(a=2)
    (lease,) = fill(made, 1)
    actions = made.failed(lease, Failure.BUSY, now=1.0)
    assert requeued(actions) == ["fill-0.0-0"]
    assert made.next_deadline() == pytest.approx(1.1)
    assert sent(made.expire(now=made.next_deadline() or 0.0)) == [("fill-0.0-0", "a")]


def test_an_earlier_wake_up_of_the_same_endpoint_does_not_lose_the_later_one() -> None:
    """One timer per endpoint: a predicted prefill end at 1.2 s must not eat the end of the shunning at 2.0 s."""
    made = scheduler(SchedulerSettings(bands=(BandSettings("b", engine_waiting_max=1),)), a=8)
    lease = the_lease(made.arrived(request("r", prompt_tokens=1), now=0.9))
    made.failed(lease, Failure.RESET, now=1.0)
    made.observed("a", Observation(1.0, 1, 0), now=1.0)
    times = []
    while (due_s := made.next_deadline()) is not None and due_s <= 1.0 + AVOID_S:
        times.append(due_s)
        actions = made.expire(now=due_s)
    assert sent(actions) == [("r", "a")]
    assert times[-1] == 1.0 + AVOID_S


def test_a_model_that_is_gone_is_asked_for_once_at_each_endpoint_that_is_believed_to_have_it() -> None:
    made = scheduler(a=1, b=1)
    (lease,) = fill(made, 1)
    actions = made.failed(lease, Failure.MODEL_GONE, now=1.0)
    assert (requeued(actions), sent(actions)) == (["fill-0.0-0"], [("fill-0.0-0", "b")])
    actions = made.failed(the_lease(actions), Failure.MODEL_GONE, now=1.1)
    assert ends(actions) == [("fill-0.0-0", "failed", "model_not_found")]
    assert [endpoint.state for endpoint in made.snapshot(now=1.1).endpoints] == ["up", "up"]
    assert sent(made.arrived(request("another"), now=1.2)) == [("another", "a")], "what they have is theirs to tell"


def test_who_else_has_the_model_is_waited_for_though_it_is_away() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_down("b", now=0.0)
    (lease,) = fill(made, 1)
    actions = made.failed(lease, Failure.MODEL_GONE, now=1.0)
    assert (requeued(actions), sent(actions)) == (["fill-0.0-0"], [])
    assert sent(made.expire(now=1.0 + 10 * AVOID_S)) == []
    assert sent(made.endpoint_up("b", now=12.0)) == [("fill-0.0-0", "b")]


def test_as_long_as_somebody_may_have_the_model_nobody_hears_that_it_does_not_exist() -> None:
    made = scheduler(SchedulerSettings(attempts_max=1, retry_budget=0.0), a=1, b=1, c=1, d=1)
    actions, tried = made.arrived(request("r"), now=0.0), []
    while sent(actions):
        tried += sent(actions)
        actions = made.failed(the_lease(actions), Failure.MODEL_GONE, now=0.0)
    assert tried == [("r", "a"), ("r", "b"), ("r", "c"), ("r", "d")]
    assert ends(actions) == [("r", "failed", "model_not_found")]


def test_a_refusal_costs_queue_time_only_until_max_wait() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=1.0), a=1)
    actions, now, refusals = made.arrived(request("r"), now=0.0), 0.0, 0
    for _ in range(100):
        if sent(actions):
            refusals += 1
            actions = made.failed(the_lease(actions), Failure.BUSY, now=now)
        if ends(actions):
            break
        now = made.next_deadline() or 0.0
        actions = made.expire(now=now)
    assert ends(actions) == [("r", "evicted", "queue_timeout")]
    assert refusals > 2
    assert now <= 1.0 + 1e-6


def test_time_spent_running_is_not_time_spent_waiting() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    (lease,) = fill(made, 1)
    made.failed(lease, Failure.RESET, now=100.0)
    assert ends(made.expire(now=100.5)) == []


def test_a_request_back_with_no_time_left_is_evicted() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    (first,) = fill(made, 1)
    made.arrived(request("r"), now=0.0)
    second = the_lease(made.finished(first, now=5.0))
    actions = made.failed(second, Failure.RESET, now=6.0)
    assert ends(actions) == [("r", "evicted", "queue_timeout")]


def test_a_request_whose_attempts_are_spent_fails() -> None:
    made = scheduler(SchedulerSettings(attempts_max=2), a=1, b=1)
    actions = made.arrived(request("r"), now=0.0)
    actions = made.failed(the_lease(actions), Failure.SERVER_ERROR, now=1.0)
    assert sent(actions) == [("r", "b")]
    assert ends(made.failed(the_lease(actions), Failure.SERVER_ERROR, now=2.0)) == [("r", "failed", "upstream_error")]


def test_a_broken_stream_fails_and_its_slot_is_given_on() -> None:
    made = scheduler(a=1)
    (lease,) = fill(made, 1)
    made.arrived(request("next"), now=0.0)
    assert made.first_token(lease, now=1.0) == []
    actions = made.failed(lease, Failure.BROKEN, now=2.0)
    assert ends(actions) == [("fill-0.0-0", "failed", "stream_broken")]
    assert sent(actions) == [("next", "a")]


def test_after_the_first_byte_nothing_but_a_broken_stream_may_be_reported() -> None:
    made = scheduler(a=1)
    (lease,) = fill(made, 1)
    made.first_token(lease, now=1.0)
    with pytest.raises(AssertionError):
        made.failed(lease, Failure.BUSY, now=2.0)


def test_nobody_there_takes_the_endpoint_out_until_a_probe_finds_it() -> None:
    made = scheduler(a=1, b=1)
    leases = fill(made, 2)
    made.arrived(request("next"), now=0.0)
    assert sent(made.failed(leases[0], Failure.CONNECT, now=1.0)) == []
    assert made.snapshot(now=1.0).endpoints[0].state == "down"
    assert sent(made.endpoint_up("a", now=3.0)) == [("fill-0.0-0", "a")]


# --- health -------------------------------------------------------------------------------------------------------


def break_it(made: CheckedScheduler, name: str, *, now: float) -> None:
    """Have an endpoint ejected by pinned requests, which are tried nowhere else."""
    for at in range(3):
        lease = the_lease(made.arrived(request(f"break-{name}-{at}", pinned=name), now=now))
        made.failed(lease, Failure.SERVER_ERROR, now=now)


def test_an_ejected_endpoint_is_used_again_when_its_time_is_over() -> None:
    made = scheduler(a=1, b=1, c=1)
    break_it(made, "a", now=0.0)
    fill(made, 2)
    assert made.arrived(request("r"), now=0.0) == []
    assert made.snapshot(now=0.0).endpoints[0].state == "ejected"
    assert made.next_deadline() == 1.0
    assert sent(made.expire(now=1.0)) == [("r", "a")]


def test_the_end_of_a_hold_is_not_missed_because_of_a_longer_ejection_that_panic_ignores() -> None:
    made = scheduler(SchedulerSettings(health=HealthSettings(eject_for_s=20.0)), a=4)
    leases = fill(made, 2)
    break_it(made, "a", now=0.0)
    for lease in leases:
        made.failed(lease, Failure.BUSY, now=0.0)
    assert made.snapshot(now=0.0).waiting == 2
    actions: list[Action] = []
    while not sent(actions) and (due_s := made.next_deadline()) is not None and due_s < 1.0:
        actions = made.expire(now=due_s)
    assert due_s == pytest.approx(0.1)
    assert len(sent(actions)) == 2


def test_panic_begins_when_another_endpoint_goes() -> None:
    """`a` is ejected and nobody looks at it; then `b` goes down, and `a` is all there is."""
    made = scheduler(SchedulerSettings(health=HealthSettings(eject_for_s=20.0)), a=1, b=1)
    break_it(made, "a", now=0.0)
    fill(made, 1)
    made.arrived(request("r"), now=0.0)
    assert sent(made.endpoint_down("b", now=1.0)) == [("r", "a")]


def test_panic_looks_only_at_endpoints_that_could_stand_in() -> None:
    made = scheduler(SchedulerSettings(health=HealthSettings(eject_for_s=20.0)), a=1)
    for name in "xyz":
        made.endpoint_added(EndpointSpec(name=name, slots=1, models=frozenset("n")), now=0.0)
    break_it(made, "a", now=0.0)
    assert sent(made.arrived(request("r"), now=0.0)) == [("r", "a")]


def test_one_good_answer_ends_an_ejection_and_the_panic() -> None:
    made = scheduler(SchedulerSettings(health=HealthSettings(eject_for_s=20.0)), a=2, b=1)
    leases = [the_lease(made.arrived(request(f"p{name}", pinned=name), now=0.0)) for name in "ab"]
    break_it(made, "a", now=0.0)
    assert made.snapshot(now=0.0).endpoints[0].state == "ejected"
    made.arrived(request("r"), now=0.0)
    assert sent(made.finished(leases[0], now=1.0)) == [("r", "a")]
    assert made.snapshot(now=1.0).endpoints[0].state == "up"


# --- readings -----------------------------------------------------------------------------------------------------


def test_an_engine_filled_by_others_is_used_when_they_are_gone_even_if_its_gauges_never_say_so() -> None:
    """Readings stop at "full": what they said fades, and the waiter is sent without any further fact."""
    made = scheduler(a=4)
    for at in range(20):
        made.observed("a", Observation(at / 10, 4 + at % 2, 0), now=at / 10)
    assert made.arrived(request("r"), now=2.0) == []
    actions: list[object] = []
    while not actions and (due_s := made.next_deadline()) is not None and due_s < 60.0:
        actions = [*made.expire(now=due_s)]
    assert sent(actions) == [("r", "a")]  # type: ignore[arg-type]


def test_gauges_frozen_at_full_do_not_block_for_ever() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=1000.0), a=4)
    for at in range(10):
        made.observed("a", Observation(float(at), 8, 4 + at % 2), now=float(at))
    assert made.arrived(request("r"), now=9.0) == []
    for at in range(10, 200):
        if sent(made.observed("a", Observation(float(at), 8, 5), now=float(at))):
            break
    assert at < 100


def test_a_restarted_engine_has_all_its_slots_at_once() -> None:
    made = scheduler(a=2)
    made.observed("a", Observation(0.0, 0, 0, started_s=1.0), now=0.0)
    old = fill(made, 2, now=1.0)
    for at in range(3):
        made.arrived(request(f"r{at}"), now=2.0)
    made.observed("a", Observation(2.5, 2, 0, started_s=1.0), now=2.5)
    assert len(sent(made.observed("a", Observation(3.0, 0, 0, started_s=50.0), now=3.0))) == 2
    assert requeued(made.failed(old[0], Failure.RESET, now=3.1)) == ["fill-1.0-0"]
    made.cancelled("fill-1.0-1", now=3.2)
    assert made.snapshot(now=3.2).running == 2


# --- queueing switched off ----------------------------------------------------------------------------------------


def test_with_queueing_off_nothing_waits_and_slots_do_not_limit() -> None:
    made = scheduler(NO_QUEUE, a=0)
    assert len(fill(made, 50)) == 50
    made.endpoint_down("a", now=1.0)
    assert ends(made.arrived(request("r"), now=1.0)) == [("r", "rejected", "no_endpoint")]


def test_with_queueing_off_a_failure_is_tried_elsewhere_at_once() -> None:
    made = scheduler(NO_QUEUE, a=1, b=1)
    (lease,) = fill(made, 1)
    actions = made.failed(lease, Failure.BUSY, now=1.0)
    assert [type(action) for action in actions[:1]] == [Requeue]
    assert sent(actions) == [("fill-0.0-0", "b")]


def test_with_queueing_off_and_nowhere_else_to_go_the_engines_answer_is_the_last_word() -> None:
    made = scheduler(NO_QUEUE, a=1)
    (lease,) = fill(made, 1)
    assert ends(made.failed(lease, Failure.BUSY, now=1.0)) == [("fill-0.0-0", "failed", "upstream_error")]


# --- the end ------------------------------------------------------------------------------------------------------


def test_draining_admits_nothing_serves_the_queue_for_a_time_and_then_aborts() -> None:
    made = scheduler(a=1)
    (first,) = fill(made, 1)
    for name in ("r1", "r2"):
        made.arrived(request(name, streamed=True), now=0.0)
    assert made.drain(queue_until_s=10.0, stop_at_s=20.0, now=1.0) == []
    assert ends(made.arrived(request("new"), now=1.0)) == [("new", "rejected", "draining")]
    assert sent(made.finished(first, now=2.0)) == [("r1", "a")]
    assert made.next_deadline() == 10.0
    assert ends(made.expire(now=10.0)) == [("r2", "evicted", "draining")]
    assert made.expire(now=20.0) == [Abort("r1", "draining")]  # type: ignore[arg-type]
    made.cancelled("r1", now=20.1)
    assert made.next_deadline() is None


@pytest.mark.parametrize("settings", [SchedulerSettings(), NO_QUEUE], ids=["queue", "no_queue"])
def test_what_fails_after_the_drain_is_not_sent_again(settings: SchedulerSettings) -> None:
    made = scheduler(settings, a=1, b=1)
    (lease,) = fill(made, 1)
    made.drain(queue_until_s=1.0, stop_at_s=20.0, now=0.0)
    made.expire(now=1.0)
    assert ends(made.failed(lease, Failure.RESET, now=2.0)) == [("fill-0.0-0", "evicted", "draining")]


def test_the_stop_ends_the_queue_too_so_that_nothing_is_sent_after_the_aborts() -> None:
    made = scheduler(a=1)
    fill(made, 1)
    made.arrived(request("r"), now=0.0)
    actions = made.drain(queue_until_s=30.0, stop_at_s=0.0, now=0.0)
    assert ends(actions) == [("r", "evicted", "draining")]
    assert [type(action) for action in actions] == [type(actions[0]), Abort]


# --- the rest -----------------------------------------------------------------------------------------------------


def test_what_needs_no_lease_goes_to_the_least_loaded() -> None:
    made = scheduler(a=2, b=2)
    fill(made, 1)
    assert made.least_loaded("m", now=0.0) == "b"
    assert made.least_loaded("n", now=0.0) is None


def test_an_endpoint_is_wanted_while_requests_wait_that_it_could_serve() -> None:
    made = scheduler(a=1)
    made.endpoint_added(EndpointSpec(name="b", slots=1, models=frozenset("n")), now=0.0)
    fill(made, 1)
    assert not made.wanted("a", now=0.0)
    made.arrived(request("r"), now=0.0)
    assert made.wanted("a", now=0.0)
    assert not made.wanted("b", now=0.0)


def test_an_endpoint_with_room_is_not_wanted_by_what_waits_for_something_else() -> None:
    made = scheduler(SchedulerSettings(tenants={"t": Limits(running=1)}), a=8)
    made.arrived(request("runs", tenant="t"), now=0.0)
    made.arrived(request("held", tenant="t"), now=0.0)
    assert made.snapshot(now=0.0).waiting == 1
    assert not made.wanted("a", now=0.0), "a newer reading would not help it"


def test_a_wake_up_for_a_request_that_just_left_does_nothing() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    fill(made, 1)
    made.arrived(request("r"), now=0.0)
    made.cancelled("r", now=5.0)
    assert made.expire(now=5.0) == []


def test_the_picture() -> None:
    made = scheduler(a=1)
    fill(made, 1)
    made.observed("a", Observation(0.5, 1, 0, kv_usage=0.25), now=0.5)
    made.arrived(request("r", prompt_tokens=9), now=1.0)
    made.endpoint_added(EndpointSpec(name="b", slots=1), now=1.0)
    picture = made.snapshot(now=2.0)
    assert (picture.waiting, picture.waiting_bytes, picture.running, picture.draining) == (1, 36, 1, False)
    (queue,) = picture.queues
    assert (queue.model, queue.band, queue.requests, queue.prompt_tokens) == ("m", "standard", 1, 9)
    assert picture.bands[0].oldest_wait_s == 1.0
    a, b = picture.endpoints
    assert (a.state, a.leases, a.reserved, a.load, a.engine_running, a.observed_s_ago) == ("up", 1, 1, 1, 1, 1.5)
    assert (b.models, b.engine_waiting, b.observed_s_ago) == (None, None, None)


def test_a_held_endpoint_reports_its_state() -> None:
    made = scheduler(a=2)
    for lease in fill(made, 2):
        made.failed(lease, Failure.BUSY, now=1.0)
    assert made.snapshot(now=1.0).endpoints[0].state == "held"


def test_with_queueing_off_what_an_endpoint_serves_is_waited_for_and_nothing_else() -> None:
    made = scheduler(NO_QUEUE)
    made.endpoint_added(EndpointSpec(name="a", slots=1, models=None), now=0.0)
    for name in ("r1", "r2", "r3"):
        assert made.arrived(request(name), now=0.0) == []
    assert made.cancelled("r3", now=0.05) == []
    told = made.endpoint_changed("a", models={"m"}, now=0.1)
    assert sorted(sent(told)) == [("r1", "a"), ("r2", "a")], "slots limit nobody"
    made.endpoint_added(EndpointSpec(name="b", slots=1, models=None), now=0.2)
    assert made.arrived(request("x", model="other"), now=0.2) == []
    late = until(made, 5.2)
    assert ends(late) == [("x", "evicted", "no_endpoint")]
    made.endpoint_down("b", now=6.0)
    assert ends(made.arrived(request("y", model="other"), now=6.0)) == [("y", "rejected", "no_endpoint")]


@pytest.mark.interpreted
@pytest.mark.parametrize("others", [0, 1], ids=["nobody waits", "another waits"])
def test_nothing_is_left_of_a_request_whose_arrival_raised(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of another package may raise. A hang-up later is no second error, which would hide the first."""
    made = Scheduler(SchedulerSettings(), random=Random(1))
    made.endpoint_added(EndpointSpec("a", 1, frozenset({"m"})), now=0.0)
    taken = [the_lease(made.arrived(request("runs"), now=0.0))] if others else []
    for number in range(others):
        made.arrived(request(f"waits{number}"), now=0.0)
    before = made.snapshot(now=1.0)
    state = made.inspect()
    broken, name = (state.under_share, "arrived") if others else (state.router, "choose")
    with monkeypatch.context() as patch:
        patch.setattr(type(broken), name, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.arrived(request("unlucky"), now=1.0)
    assert made.state_of("unlucky") is None
    assert made.snapshot(now=1.0).waiting == before.waiting
    assert made.cancelled("unlucky", now=1.0) == []
    for lease in taken:
        assert sent(made.finished(lease, now=2.0)) == [("waits0", "a")]
    assert made.arrived(request("unlucky"), now=3.0) or others, "its id may be used again"
