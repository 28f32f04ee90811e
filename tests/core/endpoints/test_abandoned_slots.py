"""A client that hangs up gives its lease back at once; its engine's slot is free when the engine says so."""

from __future__ import annotations

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.endpoints.concurrency import ConcurrencyLimit
from penstock.core.endpoints.ledger import Ledger
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Glimpse, Observation
from penstock.core.values.settings import BandSettings
from tests.core.drive import lease, request, scheduler, sent, until

SLOTS = 4
STALE_S = 5.0


def full(*, lingers: bool, streamed: bool = False) -> Ledger:
    """Of four slots, all in use and, as a reading shows, taken in."""
    own = Ledger(ConcurrencyLimit(SLOTS), stale_after_s=STALE_S)
    own.lingers = lingers
    own.observe(Observation(0.0, running=0, waiting=0))
    for serial in range(1, SLOTS + 1):
        own.add(lease(serial, at=0.1, streamed=streamed))
    own.observe(Observation(0.2, running=1, waiting=3))
    own.observe(Observation(0.4, running=SLOTS, waiting=0))
    return own


def replace(own: Ledger, how_many: int, now: float) -> None:
    """So many hang up, and as many others are sent."""
    for serial in range(1, how_many + 1):
        own.remove(own.leases[serial], now, abandoned=True)
    for serial in range(11, 11 + how_many):
        own.add(lease(serial, at=now))


def test_what_is_sent_after_a_hang_up_waits_inside_the_engine_until_that_is_known_to_be_done() -> None:
    own = full(lingers=True)
    replace(own, 3, now=1.0)
    assert own.engine_queue(1.0) == 3
    own.observe(Observation(1.5, running=SLOTS, waiting=1))
    assert own.engine_queue(1.5) == 1, "it shows that two of them are free"


def test_what_should_be_at_work_by_now_is_kept_out_as_well() -> None:
    own = full(lingers=True)
    for serial in (1, 2, 3):
        own.remove(own.leases[serial], 1.0, abandoned=True)
    for serial in (11, 12, 13):
        own.add(lease(serial, at=1.0, streamed=False))
    own.prefill.advance(4.0)
    assert not own.prefill.leases, "their prompts should be computed"
    assert own.engine_queue(4.0) == 3


def test_first_tokens_show_which_slots_are_free() -> None:
    own = full(lingers=True, streamed=True)
    own.first_token(own.leases[4], 0.5)
    replace(own, 3, now=1.0)
    own.first_token(own.leases[11], 2.0)
    assert own.engine_queue(2.0) == 2
    own.first_token(own.leases[12], 2.0)
    assert own.engine_queue(2.0) == 1


def test_there_are_never_more_than_slots() -> None:
    own = full(lingers=True)
    for serial in range(11, 111):
        own.add(lease(serial, at=1.0))
        own.remove(own.leases[serial], 1.0, abandoned=True)
    assert own.abandoned(1.0) == SLOTS


def test_a_lease_that_ends_by_itself_leaves_a_free_slot() -> None:
    own = full(lingers=True)
    for serial in (1, 2, 3):
        own.remove(own.leases[serial], 1.0)
    for serial in (11, 12, 13):
        own.add(lease(serial, at=1.0))
    assert own.engine_queue(1.0) == 0


def test_without_a_reading_it_counts_for_as_long_as_readings_are_believed() -> None:
    own = full(lingers=True)
    replace(own, 3, now=1.0)
    assert own.engine_queue(0.99 + STALE_S) == 3
    assert own.engine_queue(1.0 + STALE_S) == 0


def test_a_reading_that_was_asked_for_before_says_nothing_of_it() -> None:
    own = full(lingers=True)
    replace(own, 3, now=1.0)
    own.observe(Observation(0.9, running=SLOTS, waiting=0, progress=1.0))
    assert own.engine_queue(1.1) == 3


def test_a_glimpse_does_not_tell_how_many_run() -> None:
    own = full(lingers=True)
    replace(own, 3, now=1.0)
    own.glimpse(Glimpse(asked_s=1.1, kv_usage=0.5), now=1.1)
    assert own.engine_queue(1.1) == 3


@pytest.mark.parametrize(("lingers", "streamed"), [(False, False), (False, True), (True, True)])
def test_an_engine_that_finds_out_at_once_needs_two_steps(lingers: bool, streamed: bool) -> None:
    own = full(lingers=lingers, streamed=streamed)
    if streamed:
        for given in own.leases.values():
            own.first_token(given, 0.5)
    replace(own, 3, now=1.0)
    assert own.engine_queue(1.0) == 3
    assert own.engine_queue(1.0 + 0.05) == 0


def test_steps_take_as_long_as_a_token() -> None:
    own = full(lingers=False, streamed=True)
    for given in own.leases.values():
        own.first_token(given, 0.5)
    own.progressed(own.leases[1], 11, 1.5)  # 0.1 s a token
    replace(own, 1, now=2.0)
    assert own.review_s(2.0) == pytest.approx(2.0 + 0.2)
    assert own.engine_queue(2.0 + 0.2 - 0.01) == 1
    assert own.engine_queue(2.0 + 0.2) == 0


def test_behind_a_queue_it_leaves_no_room_either() -> None:
    own = full(lingers=True)
    own.observe(Observation(0.8, running=SLOTS, waiting=2))
    replace(own, 1, now=1.0)
    assert own.engine_queue(1.0) == 3


def test_another_process_was_sent_none_of_them() -> None:
    own = full(lingers=True)
    own.observe(Observation(0.9, running=SLOTS, waiting=0, started_s=1.0, progress=9.0))
    replace(own, 3, now=1.0)
    own.observe(Observation(1.5, running=0, waiting=0, started_s=50.0, progress=0.0))
    assert own.abandoned(1.5) == 0


# --- by the scheduler ------------------------------------------------------------------------------------------


def crowded(*, lingers: bool) -> CheckedScheduler:
    """An engine of four slots with four whole answers under way, taken in, and four more that wait."""
    made = scheduler(SchedulerSettings(bands=(BandSettings("b", engine_waiting_max=2),)), a=SLOTS)
    made.endpoint_changed("a", lingers=lingers, now=0.0)
    for number in range(2 * SLOTS):
        made.arrived(request(f"r{number}"), now=0.0)
    made.observed("a", Observation(0.2, running=3, waiting=1, progress=1.0), now=0.2)
    made.observed("a", Observation(0.4, running=SLOTS, waiting=0, progress=2.0), now=0.4)
    return made


def hang_up(made: CheckedScheduler, how_many: int, now: float) -> list[tuple[str, str]]:
    return [each for number in range(how_many) for each in sent(made.cancelled(f"r{number}", now=now))]


def test_no_more_are_sent_after_hang_ups_than_may_wait_inside_an_engine() -> None:
    made = crowded(lingers=True)
    assert hang_up(made, 3, now=1.0) == [("r4", "a"), ("r5", "a")]
    actions = made.observed("a", Observation(1.5, running=2, waiting=1, progress=3.0), now=1.5)
    assert sent(actions) == [("r6", "a")], "one still runs for nobody, one of ours waits: one more may"


def test_where_no_reading_comes_they_are_sent_when_readings_would_be_too_old() -> None:
    made = crowded(lingers=True)
    hang_up(made, 3, now=1.0)
    assert sent(until(made, 0.9 + STALE_S)) == []
    assert sent(until(made, 1.1 + STALE_S)) == [("r6", "a")]


def test_an_engine_that_finds_out_at_once_is_filled_again_at_once() -> None:
    made = crowded(lingers=False)
    assert hang_up(made, 3, now=1.0) == [("r4", "a"), ("r5", "a")]
    assert sent(until(made, 1.0 + 2 * 0.05)) == [("r6", "a")]


def test_a_first_byte_that_did_not_come_in_time_is_worked_on_as_well() -> None:
    made = crowded(lingers=True)
    serials = [entry.leased().serial for entry in list(made.inspect().leases.values())[:3]]
    actions = [a for serial in serials for a in made.failed(serial, Failure.FIRST_BYTE_TIMEOUT, now=1.0)]
    assert len(sent(actions)) == 2
