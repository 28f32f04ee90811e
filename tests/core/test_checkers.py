"""A checker that never fails proves nothing: each invariant is broken once, and must be noticed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.core.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.band import BandSettings
from penstock.core.endpoint import Endpoint, EndpointSpec
from penstock.core.flow import Entry
from penstock.core.outcome import Reason
from penstock.core.scheduler import SchedulerSettings
from penstock.sim.checkers import Books, CheckedScheduler
from tests.core.chaos import Chaos
from tests.core.drive import request, scheduler
from tests.core.test_scheduler_properties import THREE_BANDS


class NeverLooksAgain(CheckedScheduler):
    def _look_again(self, endpoint: Endpoint, when: float) -> None:
        pass


class ForgetsToTouch(CheckedScheduler):
    def _touch(self, endpoint: Endpoint) -> None:
        if self._random.random() < 0.9:
            super()._touch(endpoint)


class LosesLeases(CheckedScheduler):
    def _release(self, entry: Entry, now: float) -> Endpoint | None:
        lease = entry.lease
        endpoint = super()._release(entry, now)
        if lease is not None and lease.serial % 20 == 0:
            self._leases[lease.serial] = entry
        return endpoint


class ServesLowBandsFirst(CheckedScheduler):
    def _pump(self, now: float, actions: list[Action]) -> None:
        self._bands.reverse()
        super()._pump(now, actions)
        self._bands.reverse()


class ForgetsTheTime(CheckedScheduler):
    def _waiting(self, seq: int) -> Entry | None:
        return None if seq % 5 == 0 else super()._waiting(seq)


class TakesTooMany(CheckedScheduler):
    def _over_bounds(self, band: Any) -> bool:
        return False


class ServesTheLatest(CheckedScheduler):
    def _enqueue(self, entry: Entry, now: float) -> None:
        entry.key = -entry.seq
        super()._enqueue(entry, now)


BROKEN = [
    NeverLooksAgain,
    ForgetsToTouch,
    LosesLeases,
    ServesLowBandsFirst,
    ForgetsTheTime,
    TakesTooMany,
    ServesTheLatest,
]


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_scheduler_is_found_out(kind: type[CheckedScheduler]) -> None:
    with pytest.raises(AssertionError):
        Chaos(1, THREE_BANDS, requests=2000, kind=kind).run()


REASON = Reason.QUEUE_FULL


@pytest.mark.parametrize(
    "action",
    [
        Dispatch("waits", "a", 1, 0.0),  # a lease that was granted before
        Dispatch("nobody", "a", 2, 0.0),
        Requeue("waits", "busy"),
        Reject("waits", REASON),
        Evict("runs", REASON),
        Fail("runs", REASON),
        Abort("waits", REASON),
    ],
    ids=repr,
)
def test_an_action_that_makes_no_sense_where_its_request_stands_is_found_out(action: Action) -> None:
    books = Books()
    for name in ("runs", "waits"):
        books.arrived(request(name))
    books.note(Dispatch("runs", "a", 1, 0.0))
    books.settle()
    with pytest.raises(AssertionError):
        books.note(action)


def test_a_failure_without_a_decision_is_found_out() -> None:
    books = Books()
    books.arrived(request("r"))
    books.note(Dispatch("r", "a", 1, 0.0))
    books.between.add(books.released(1))
    books.requeued.add("r")
    with pytest.raises(AssertionError):
        books.settle()


def test_a_stricter_high_band_may_be_passed() -> None:
    bands = (BandSettings("careful", engine_waiting_max=0, ceiling=0.5), BandSettings("eager"))
    made = CheckedScheduler(SchedulerSettings(bands=bands), random=Random(1))
    made.endpoint_added(EndpointSpec(name="a", slots=2, models=frozenset("m")), now=0.0)
    for at in range(3):
        made.arrived(request(f"high{at}", band=0), now=0.0)
    assert made.arrived(request("low", band=1), now=0.0)


def test_a_pinned_request_may_pass_those_who_wait() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("high", ceiling=0.5), BandSettings("low"))), a=2)
    made.arrived(request("first"), now=0.0)
    made.arrived(request("waits"), now=0.0)
    assert made.arrived(request("pinned", band=1, pinned="a"), now=0.0)
