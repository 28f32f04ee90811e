"""Gauges are witnesses: what they say closes an endpoint only as long as it may be true."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.endpoints.page import Standing
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.observation import Observation
from penstock.core.values.settings import BandSettings, EndpointSpec
from tests.core.drive import request, scheduler, sent, the_lease, until

SETTINGS = SchedulerSettings(
    wait_s_max=1000.0, bands=(BandSettings("b", engine_waiting_max=2), BandSettings("batch", engine_waiting_max=0))
)
USUAL_S = 0.1


def overloaded(at: float, progress: float | None = 1.0) -> Observation:
    return Observation(at, running=64, waiting=200, progress=progress)


def standing(made: CheckedScheduler, now: float) -> str:
    return made.snapshot(now=now).endpoints[0].gauges


def crowd(made: CheckedScheduler, count: int, now: float, *, band: int = 0, prefix: str = "r") -> None:
    for number in range(count):
        assert sent(made.arrived(request(f"{prefix}{number}", band=band, streamed=True), now=now)) == []


def told_overloaded(*, from_s: float = 0.0) -> CheckedScheduler:
    """An endpoint whose gauges say once that it is full and 200 wait, and one that waits for it."""
    made = scheduler(SETTINGS, a=64)
    made.observed("a", overloaded(from_s), now=from_s)
    return made


def test_frozen_gauges_of_an_idle_engine_keep_nobody_out_for_more_than_two_seconds() -> None:
    made = told_overloaded()
    crowd(made, 60, 1.0)
    now, came = 1.0, 0
    began: list[tuple[float, int]] = []
    while now < 6.0:
        now += 0.05
        actions = made.expire(now=now)
        if round(now * 20) % 10 == 0:
            actions += made.observed("a", overloaded(now), now=now)
        for at, lease in [each for each in began if each[0] <= now]:
            began.remove((at, lease))
            actions += made.first_token(lease, now=now)
        for action in actions:
            came += 1
            began.append((now + USUAL_S, action.lease))  # type: ignore[union-attr]
        if came == 0:
            assert now <= 1.0 + 2.0 + 0.1
        if now <= 1.0 + 2.0 + USUAL_S:
            assert came <= 1, "one at a time until the first has begun"
    assert came == 60
    assert standing(made, now) == Standing.CONTRADICTED


def test_a_try_that_begins_late_is_followed_by_one_that_comes_later() -> None:
    made = told_overloaded()
    crowd(made, 10, 0.0)
    tries: list[float] = []
    now = last = 0.0
    begins: list[tuple[float, int]] = []
    while now < 200.0 and len(tries) < 6:
        now += 0.25
        made_now = made.expire(now=now) + made.observed("a", overloaded(now, progress=now), now=now)
        if begins and now >= begins[0][0]:
            made_now += made.first_token(begins.pop()[1], now=now)
            last = now
        for action in made_now:
            tries.append(now - last)
            begins.append((now + 5.0, action.lease))  # type: ignore[union-attr]
    assert tries == sorted(tries)
    assert tries[0] <= 2.25
    assert tries[-1] > 8.0
    assert max(tries) <= 30.5
    assert standing(made, now) != Standing.CONTRADICTED


def test_an_engine_that_is_just_slow_is_not_shut_out_by_gauges_that_stand_still() -> None:
    made = told_overloaded()
    crowd(made, 30, 0.0)
    now, came = 0.0, 0
    began: list[tuple[float, int]] = []
    while came < 30:
        now += 0.5
        assert now < 60.0
        actions = made.expire(now=now) + made.observed("a", overloaded(now), now=now)
        for at, lease in [each for each in began if each[0] <= now]:
            began.remove((at, lease))
            actions += made.first_token(lease, now=now)
        came += len(actions)
        began += [(now + 6.0, action.lease) for action in actions]  # type: ignore[union-attr]


def test_what_may_only_go_where_nothing_else_does_tries_only_gauges_that_stand_still() -> None:
    made = told_overloaded()
    crowd(made, 3, 0.0, band=1)
    for at in range(1, 20):
        moves = made.observed("a", overloaded(at / 2, progress=float(at)), now=at / 2)
        assert sent(moves + until(made, at / 2 + 0.4)) == []
    tries = [each for at in range(20, 30) for each in sent(made.observed("a", overloaded(at / 2, 19.0), now=at / 2))]
    assert len(tries) == 1


def test_a_page_that_was_not_to_be_had_twice_counts_for_nothing_nor_do_the_others_it_told_of() -> None:
    made = told_overloaded()
    crowd(made, 20, 0.0)
    assert sent(made.observed("a", None, now=0.5)) == [], "once may be an accident"
    assert len(sent(made.observed("a", None, now=1.0))) == 20
    assert standing(made, 1.0) == Standing.GONE
    made.observed("a", Observation(1.5, running=20, waiting=0, progress=3.0), now=1.5)
    assert standing(made, 1.5) == Standing.BELIEVED


def test_a_page_that_does_not_move_while_answers_come_is_of_another_time() -> None:
    made = scheduler(SETTINGS, a=4)
    (first,) = made.arrived(request("first"), now=0.0)
    made.first_token(first.lease, now=0.1)  # type: ignore[union-attr]
    frozen = Observation(0.2, running=1, waiting=0, progress=5.0)
    at = 0.2
    while standing(made, at) != Standing.STILL:
        made.observed("a", Observation(at, frozen.running, frozen.waiting, progress=frozen.progress), now=at)
        made.progressed(first.lease, round(100 * at), now=at + 0.2)  # type: ignore[union-attr]
        at += 0.5
        assert at < 3.0 + 2.0
    assert made.snapshot(now=at).endpoints[0].engine_running is None
    for _ in range(10):
        assert standing(made, at) == Standing.STILL
        made.observed("a", Observation(at, 1, 0, progress=100 * at), now=at)
        at += 0.5
    assert standing(made, at - 0.5) == Standing.BELIEVED, "it moves again, and shows what we see"


def test_a_page_that_moves_again_is_doubted_for_half_a_minute_at_most_although_others_are_there() -> None:
    made = scheduler(SETTINGS, a=40)
    (first,) = made.arrived(request("first"), now=0.0)
    made.first_token(first.lease, now=0.1)  # type: ignore[union-attr]
    for number in range(10):
        made.observed("a", Observation(0.2 + number / 2, running=30, waiting=0, progress=5.0), now=0.2 + number / 2)
        made.progressed(first.lease, 10 * number + 2, now=0.4 + number / 2)  # type: ignore[union-attr]
    assert standing(made, 4.9) == Standing.STILL
    for number in range(10, 80):
        at = number / 2
        made.observed("a", Observation(at, running=30, waiting=9, progress=float(number)), now=at)
        assert standing(made, at) == (Standing.STILL if at < 4.7 + 30.0 else Standing.BELIEVED)


def test_a_page_without_counters_may_show_the_same_for_long() -> None:
    made = scheduler(SETTINGS, a=4)
    (first,) = made.arrived(request("first"), now=0.0)
    made.first_token(first.lease, now=0.1)  # type: ignore[union-attr]
    for at in range(1, 20):
        made.observed("a", Observation(float(at), running=1, waiting=0), now=float(at))
        made.progressed(first.lease, 10 * at, now=at + 0.5)  # type: ignore[union-attr]
    assert standing(made, 19.5) == Standing.BELIEVED


@pytest.mark.parametrize("agrees", [True, False])
def test_a_page_that_was_contradicted_is_believed_again_once_it_shows_what_we_see(agrees: bool) -> None:
    made = told_overloaded()
    page = made.inspect().pool["a"].ledger.page
    crowd(made, 1, 0.0)
    for number in range(4):
        page.began(in_time=True, now=3.0 + number)
    for at in range(20, 30):
        assert page.standing(float(at)) is Standing.CONTRADICTED
        waiting = 0 if agrees else 200
        made.observed("a", Observation(float(at), running=1, waiting=waiting, progress=float(at)), now=float(at))
    assert page.standing(29.0) is (Standing.BELIEVED if agrees else Standing.CONTRADICTED)


@pytest.mark.parametrize(("queued", "open_"), [(0.0, True), (1.0, True), (5.0, False), (None, False)])
def test_a_request_that_waits_for_anything_but_capacity_is_no_queue(queued: float | None, open_: bool) -> None:
    """vLLM defers requests until their KV blocks or adapters are there: those let others pass."""
    made = scheduler(SETTINGS, a=64)
    made.observed("a", Observation(0.0, running=9, waiting=5, progress=1.0, queued=queued), now=0.0)
    assert bool(sent(made.arrived(request("r", streamed=True), now=0.1))) is open_
    assert made.snapshot(now=0.1).endpoints[0].engine_waiting == 5, "the page's own number is shown"


def test_the_size_of_an_engine_is_found_although_requests_are_deferred() -> None:
    made = scheduler(SETTINGS)
    made.endpoint_added(EndpointSpec("e", 4, frozenset("m"), adaptive_slots=True), now=0.0)
    for number in range(60):
        made.arrived(request(f"r{number}", streamed=True), now=0.0)
    for half in range(16):
        leases = made.inspect().pool["e"].ledger.leases
        for serial in [serial for serial, lease in leases.items() if lease.first_token_s is None]:
            made.first_token(serial, now=half / 2 + 0.1)
        reading = Observation(half / 2 + 0.5, len(leases), waiting=3, progress=float(half), queued=0.0)
        made.observed("e", reading, now=half / 2 + 0.5)
    assert made.inspect().pool["e"].slots >= 60


def test_what_we_sent_ourselves_closes_an_endpoint_whatever_its_gauges_are_worth() -> None:
    made = scheduler(SETTINGS, a=2)
    for number in range(2):
        assert sent(made.arrived(request(f"s{number}"), now=0.0))
    made.observed("a", overloaded(0.1), now=0.1)
    crowd(made, 2, 0.2)
    assert sent(until(made, 30.0)) == []


def test_a_try_that_waits_for_gauges_to_stand_still_is_armed_for_that_moment() -> None:
    """The memory gauge still moved when the endpoint closed: nothing else need happen until it has stood still."""
    made = scheduler(SETTINGS, a=64)
    full = Observation(0.0, running=2, waiting=0, kv_usage=0.99, progress=1.0)
    made.observed("a", full, now=0.0)
    crowd(made, 2, 0.5)
    made.observed("a", replace(full, asked_s=1.0, kv_usage=0.98, progress=2.0), now=1.0)
    now, actions = 1.0, list[Action]()
    while not sent(actions):
        due_s = made.next_deadline()
        assert due_s is not None
        now = due_s
        assert now < 1.0 + 2 * 2.0
        actions = made.expire(now=now)
    assert now == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize(("shown", "gauges"), [(11, "believed"), (9, "short")])
def test_a_page_that_shows_less_than_half_of_ours_closes_nothing(shown: int, gauges: str) -> None:
    """It is of another engine behind the same address, or of one rank: what waits there is not in our way."""
    made = scheduler(SETTINGS, a=64)
    for number in range(20):
        (action,) = made.arrived(request(f"r{number}", streamed=True), now=0.0)
        assert isinstance(action, Dispatch)
        made.first_token(action.lease, now=0.1)
    for second in range(1, 8):
        reading = Observation(float(second), running=shown - 3, waiting=3, progress=float(second))
        made.observed("a", reading, now=float(second))
    assert standing(made, 7.0) == gauges
    assert bool(sent(made.arrived(request("next", streamed=True), now=7.0))) is (gauges == "short")
    for second in range(8, 18):
        reading = Observation(float(second), running=21, waiting=0, progress=float(second))
        made.observed("a", reading, now=float(second))
    assert standing(made, 17.0) == "believed"


def test_answers_that_ended_while_the_page_was_asked_for_are_not_missed_on_it() -> None:
    """Of 256 that had been sent a busy engine showed none, because it had run them all."""
    made = scheduler(SETTINGS, a=64)
    for second in range(1, 8):
        leases = [the_lease(made.arrived(request(f"{second}-{n}"), now=second - 0.9)) for n in range(20)]
        made.observed("a", Observation(second - 0.5, running=20, waiting=0, progress=second - 0.5), now=second - 0.5)
        for each in leases:
            made.finished(each, None, now=second + 0.1)
        made.observed("a", Observation(float(second), running=0, waiting=0, progress=float(second)), now=second + 0.2)
    assert standing(made, 8.0) == "believed"
