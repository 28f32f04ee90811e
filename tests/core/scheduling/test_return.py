"""Whoever returns is used at once and not stormed; whoever shows no movement is given nothing more."""

from __future__ import annotations

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.endpoints.health import Presence
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Evict, Fail, Reject
from penstock.core.values.catalogue import EndpointState, Failure
from penstock.core.values.observation import Observation
from penstock.core.values.settings import HealthSettings
from tests.core.drive import request, scheduler, the_lease

FROZEN_S = 30.0


def dispatches(actions: list[Action]) -> list[Dispatch]:
    return [action for action in actions if isinstance(action, Dispatch)]


def state(made: CheckedScheduler, now: float) -> str:
    found = made.snapshot(now=now).endpoints[0].state
    assert found in EndpointState
    return found


def flood(made: CheckedScheduler, count: int, *, now: float, streamed: bool = False) -> list[Dispatch]:
    return [
        d for n in range(count) for d in dispatches(made.arrived(request(f"r{now}-{n}", streamed=streamed), now=now))
    ]


def test_an_endpoint_that_returns_gets_a_few_first_and_twice_as_many_each_round() -> None:
    made = scheduler(a=16)
    made.endpoint_down("a", now=0.0)
    assert flood(made, 40, now=0.0) == []
    batch = dispatches(made.endpoint_up("a", now=1.0))
    rounds = []
    now = 1.0
    while batch:
        rounds.append(len(batch))
        now += 1.0
        following: list[Dispatch] = []
        for dispatch in batch:
            following += dispatches(made.first_token(dispatch.lease, now=now))
        batch = following
    assert rounds == [4, 8, 4]  # 16 in all; none of them ended yet
    assert state(made, now) == "up"


def test_a_failure_on_trial_ejects_at_once() -> None:
    made = scheduler(SchedulerSettings(health=HealthSettings(panic_threshold=0.0)), a=4, b=4)
    made.endpoint_down("b", now=0.0)
    for lease in [d.lease for d in flood(made, 3, now=0.0)]:
        made.failed(lease, Failure.SERVER_ERROR, now=0.0)
    assert state(made, 0.5) == "ejected"
    assert state(made, 1.5) == "up"
    tried = dispatches(made.expire(now=1.5)) or flood(made, 1, now=1.5)
    made.failed(tried[0].lease, Failure.SERVER_ERROR, now=1.6)
    assert state(made, 3.5) == "ejected"  # for 2 s this time


def test_where_nothing_may_wait_a_trial_refuses_nobody() -> None:
    made = scheduler(SchedulerSettings(queue_enabled=False), a=4)
    made.endpoint_down("a", now=0.0)
    made.endpoint_up("a", now=1.0)
    assert len(flood(made, 10, now=1.0)) == 10


def test_a_restart_ends_an_ejection() -> None:
    made = scheduler(SchedulerSettings(health=HealthSettings(eject_for_s=20.0, panic_threshold=0.0)), a=4)
    made.observed("a", Observation(asked_s=0.1, running=1, waiting=0, started_s=10.0), now=0.1)
    for lease in [d.lease for d in flood(made, 3, now=0.2)]:
        made.failed(lease, Failure.SERVER_ERROR, now=0.2)
    assert state(made, 1.0) == "ejected"
    made.observed("a", Observation(asked_s=1.1, running=0, waiting=0, started_s=99.0), now=1.1)
    assert state(made, 1.1) == "up"


def test_a_probe_reports_how_the_engine_is_away() -> None:
    made = scheduler(a=4)
    told = []
    away = [presence for presence in Presence if presence is not Presence.UP]
    for presence in away:
        made.endpoint_down("a", presence=presence, now=1.0)
        told.append(state(made, 1.0))
    assert told == ["down", "loading", "sleeping", "paused", "scaling", "stopping", "hung"]


def test_an_engine_without_new_connections_that_still_streams_is_stopping() -> None:
    made = scheduler(a=4)
    (dispatch,) = flood(made, 1, now=0.0, streamed=True)
    made.first_token(dispatch.lease, now=1.0)
    made.endpoint_down("a", now=2.0)
    assert state(made, 2.0) == "stopping"
    made.finished(dispatch.lease, now=3.0)
    assert state(made, 3.0) == "down"


# --- a Retry-After ---


def busy_at(made: CheckedScheduler, retry_after_s: float, *, now: float) -> list[Dispatch]:
    """A request that endpoint `a` refuses. Returns what is dispatched in the same moment."""
    (sent,) = flood(made, 1, now=now)
    assert sent.endpoint == "a"
    return dispatches(made.failed(sent.lease, Failure.BUSY, retry_after_s=retry_after_s, now=now))


def test_an_engine_that_asks_to_be_left_alone_is_sent_nothing_until_its_retry_after_is_over() -> None:
    made = scheduler(a=4)
    assert busy_at(made, 4.0, now=0.0) == []
    assert state(made, 3.9) == "held"
    assert flood(made, 2, now=1.0) == []
    assert dispatches(made.expire(now=3.9)) == []
    assert len(dispatches(made.expire(now=4.0))) == 3


def test_a_retry_after_sends_the_request_elsewhere_at_once() -> None:
    made = scheduler(a=4, b=4)
    assert [d.endpoint for d in busy_at(made, 30.0, now=0.0)] == ["b"]
    assert {d.endpoint for d in flood(made, 3, now=1.0)} == {"b"}


def test_a_retry_after_outlasts_another_good_answer_and_ends_with_a_new_process() -> None:
    made = scheduler(a=4)
    (running,) = flood(made, 1, now=0.0)
    busy_at(made, 4.0, now=0.5)
    made.finished(running.lease, now=1.0)
    assert state(made, 1.0) == "held"
    made.endpoint_down("a", now=2.0)
    made.endpoint_up("a", now=2.5)
    assert state(made, 2.5) == "up"


def test_a_retry_after_of_an_hour_is_obeyed_for_a_minute() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=120.0), a=4)
    busy_at(made, 3600.0, now=0.0)
    assert (state(made, 59.9), state(made, 60.0)) == ("held", "up")


def test_a_caller_whose_time_is_over_hears_when_the_engine_may_be_asked_again() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=4)
    busy_at(made, 30.0, now=0.0)
    (evicted,) = [action for action in made.expire(now=5.0) if isinstance(action, Evict)]
    assert evicted.retry_after_s is not None
    assert evicted.retry_after_s >= 25.0


# --- a stale connection ---


def test_what_a_stale_connection_lost_may_go_to_the_same_endpoint_at_once_and_costs_an_attempt() -> None:
    made = scheduler(SchedulerSettings(attempts_max=3), a=4)
    (sent,) = flood(made, 1, now=0.0)
    for _ in range(2):
        (sent,) = dispatches(made.failed(sent.lease, Failure.STALE, now=0.0))
    assert [type(action) for action in made.failed(sent.lease, Failure.STALE, now=0.0)] == [Fail]
    assert state(made, 0.0) == "up", "healthy engines close idle connections, too; a dead one loses new ones"


def test_stale_connections_cost_none_of_the_retry_budget() -> None:
    made = scheduler(SchedulerSettings(attempts_max=3, retry_budget=0.1), a=30)
    first = flood(made, 30, now=0.0)
    again = [dispatches(made.failed(sent.lease, Failure.STALE, now=0.0)) for sent in first]
    assert [len(sent) for sent in again] == [1] * 30


def test_without_a_retry_budget_a_stale_connection_is_the_end() -> None:
    made = scheduler(SchedulerSettings(attempts_max=3, retry_budget=0.0), a=4)
    (sent,) = flood(made, 1, now=0.0)
    assert [type(action) for action in made.failed(sent.lease, Failure.STALE, now=0.0)] == [Fail]


def test_with_one_attempt_nothing_is_sent_again_after_a_stale_connection() -> None:
    made = scheduler(SchedulerSettings(attempts_max=1), a=4)
    (sent,) = flood(made, 1, now=0.0)
    assert [type(action) for action in made.failed(sent.lease, Failure.STALE, now=0.0)] == [Fail]


def test_a_pinned_request_is_sent_again_to_its_endpoint_after_a_stale_connection_only() -> None:
    made = scheduler(a=4, b=4)
    (sent,) = dispatches(made.arrived(request("r", pinned="a"), now=0.0))
    (again,) = dispatches(made.failed(sent.lease, Failure.STALE, now=0.0))
    assert again.endpoint == "a"
    assert [type(action) for action in made.failed(again.lease, Failure.RESET, now=0.0)] == [Fail]


def refused_after_s(made: CheckedScheduler, now: float) -> float:
    """The Retry-After of a request that is pinned to the full endpoint."""
    (refusal,) = made.arrived(request(f"pinned-{now}", pinned="a"), now=now)
    assert isinstance(refusal, Reject)
    assert refusal.retry_after_s is not None
    return refusal.retry_after_s


def test_the_retry_after_of_a_refused_pinned_request_is_when_its_endpoint_frees_a_slot() -> None:
    """Before anything was learned, as long as the youngest has run; then what is left of the shortest answer."""
    made = scheduler(a=2)
    leases = [the_lease(made.arrived(request(f"r{at}", output_tokens=100), now=0.0)) for at in range(2)]
    assert refused_after_s(made, now=0.1) == 1.0
    assert 3.0 <= refused_after_s(made, now=3.0) <= 3.75
    for lease in leases:
        made.first_token(lease, now=1.0)
        made.progressed(lease, 50, now=11.0)
    assert 10.0 <= refused_after_s(made, now=11.0) <= 12.5, "50 tokens are left of each, of 0.2 s"
    made.finished(leases[0], now=20.0)
    leases[0] = the_lease(made.arrived(request("long", output_tokens=100), now=20.0))
    assert 1.0 <= refused_after_s(made, now=20.0) <= 2.0, "the other one is nearly done"


def test_the_retry_after_of_a_pinned_request_is_a_minute_at_most() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("r", output_tokens=100), now=0.0))
    made.first_token(lease, now=1.0)
    made.progressed(lease, 50, now=101.0)
    assert refused_after_s(made, now=101.0) == 60.0, "50 tokens are left, of 2 s"
