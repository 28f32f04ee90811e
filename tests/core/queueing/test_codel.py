"""Best-effort work whose queue stands is shed: from the flow it stands in, at the door where that can be told."""

from __future__ import annotations

from statistics import median

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.request import Usage
from penstock.core.values.settings import BandSettings
from tests.core.drive import ends, request, scheduler

BANDS = (BandSettings("people"), BandSettings("batch", shed_target_s=5.0, shed_interval_s=4.0))
SHEDS = SchedulerSettings(bands=BANDS)


class Slow:
    """One slot, whose answers take so many seconds each; requests come as they are told to."""

    def __init__(self, settings: SchedulerSettings = SHEDS, *, answer_s: float = 1.0) -> None:
        self.made: CheckedScheduler = scheduler(settings, a=1)
        self.answer_s = answer_s
        self.now = 0.0
        self.free_s = 0.0
        self.lease: int | None = None
        self.ended: list[tuple[str, str, str]] = []
        self.waits_s: dict[str, float] = {}

    def arrive(self, name: str, *, tenant: str = "t", band: int = 1) -> None:
        self._note(self.made.arrived(request(name, tenant=tenant, band=band), now=self.now))

    def until(self, when: float) -> None:
        while True:
            due_s = self.made.next_deadline()
            ends_s = self.free_s if self.lease is not None else None
            times = [time for time in (due_s, ends_s) if time is not None and time <= when]
            if not times:
                break
            self.now = max(self.now, min(times))
            if self.lease is not None and self.free_s <= self.now:
                lease, self.lease = self.lease, None
                self._note(self.made.finished(lease, Usage(1, 50), now=self.now))
            else:
                self._note(self.made.expire(now=self.now))
        self.now = when

    def _note(self, actions: list[Action]) -> None:
        self.ended += ends(actions)
        for action in actions:
            if isinstance(action, Dispatch):
                self.lease, self.free_s = action.lease, self.now + self.answer_s
                self.waits_s[action.request_id] = action.queue_s


def overload(slow: Slow, *, per_s: int = 3, for_s: int = 60, band: int = 1) -> None:
    """Three times what the slot can do."""
    start_s = slow.now
    for at in range(for_s * per_s):
        slow.until(start_s + at / per_s)
        slow.arrive(f"flood-{at}", tenant="flood", band=band)


def test_a_standing_queue_is_held_at_twice_its_target_and_the_slot_is_never_idle() -> None:
    slow = Slow()
    overload(slow)
    late = [wait_s for name, wait_s in slow.waits_s.items() if int(name.split("-")[1]) > 60]
    assert {reason for _, _, reason in slow.ended} == {"overload"}
    assert max(late) <= 10.0
    assert median(late) >= 5.0
    assert len(slow.waits_s) >= 59  # one a second


def test_most_are_refused_at_the_door() -> None:
    slow = Slow()
    overload(slow)
    outcomes = [outcome for _, outcome, _ in slow.ended]
    assert outcomes.count("rejected") > 1.5 * outcomes.count("evicted")


def test_a_burst_that_is_worked_off_in_time_is_not_shed() -> None:
    slow = Slow()
    for _ in range(3):
        for at in range(9):
            slow.arrive(f"{slow.now}-{at}")
        slow.until(slow.now + 12.0)
    assert slow.ended == []


def test_a_light_flow_beside_the_flood_is_not_shed() -> None:
    slow = Slow()
    for at in range(150):
        slow.until(at / 3)
        slow.arrive(f"flood-{at}", tenant="flood")
        if at % 12 == 0:
            slow.arrive(f"light-{at}", tenant="light")
    assert {name.split("-")[0] for name, _, _ in slow.ended} == {"flood"}


def test_other_bands_are_never_shed() -> None:
    slow = Slow()
    overload(slow, band=0, for_s=50)
    assert slow.ended == []


def test_one_short_wait_ends_it() -> None:
    slow = Slow()
    overload(slow, for_s=30)
    slow.until(60.0)  # all served
    shed_before = len(slow.ended)
    for at in range(9):
        slow.arrive(f"again-{at}", tenant="flood")
    slow.until(80.0)
    assert len(slow.ended) == shed_before


def test_work_that_gets_no_turn_at_all_is_shed_too() -> None:
    slow = Slow()
    slow.arrive("first", band=0)
    for at in range(40):
        slow.arrive(f"people-{at}", tenant="people", band=0)
    slow.arrive("starved")
    slow.until(30.0)
    assert slow.ended == [("starved", "evicted", "overload")]


def test_shedding_that_is_switched_on_judges_queued_requests_from_then_on() -> None:
    off = SchedulerSettings(bands=(BANDS[0], BandSettings("batch")))
    slow = Slow(off)
    overload(slow, for_s=10)
    slow.made.reconfigured(SHEDS, now=slow.now)
    assert slow.ended == []
    overload_from = slow.now
    for at in range(120):
        slow.until(overload_from + at / 3)
        slow.arrive(f"more-{at}", tenant="flood")
    assert {reason for _, _, reason in slow.ended} == {"overload"}
