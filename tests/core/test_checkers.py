"""A checker that never fails proves nothing: each invariant is broken once, and must be noticed."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.dispatch.pump import Pump
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.outcome import Reason
from penstock.core.values.settings import BandSettings, EndpointSpec
from penstock.sim.checks.invariants import Books, CheckedScheduler
from tests.core.chaos import Chaos
from tests.core.drive import request, scheduler
from tests.core.test_scheduler_properties import EVERYTHING


class NeverLooksAgain(CheckedScheduler):
    def _look_again(self, endpoint: Endpoint, when: float) -> None:
        pass


class ForgetsToTouch(CheckedScheduler):
    def _touched(self, endpoint: Endpoint, now: float) -> list[Action]:
        for band in self._queues.bands:
            band.unchecked.pop(endpoint, None)
        return self._pumped(now)


class LosesLeases(CheckedScheduler):
    def _release(self, entry: Entry, now: float, *, given_up: bool = False) -> Endpoint | None:
        lease = entry.lease
        endpoint = super()._release(entry, now, given_up=given_up)
        if lease is not None and lease.serial % 20 == 0:
            self._leases[lease.serial] = entry
        return endpoint


class ServesLowBandsFirst(CheckedScheduler):
    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(settings, random=random)
        self._pump = LowBandsFirst.like(self._pump)


class LowBandsFirst(Pump):
    @staticmethod
    def like(pump: Pump) -> LowBandsFirst:
        made = LowBandsFirst.__new__(LowBandsFirst)
        made.__dict__.update(pump.__dict__)
        return made

    def _turns(self) -> list[Band]:
        return [band for band in reversed(self._queues.bands) if band.tree.waiting]


class ForgetsTheTime(CheckedScheduler):
    def _time_is_up(self, entry: Entry, now: float, actions: list[Action]) -> None:
        if entry.seq % 5:
            super()._time_is_up(entry, now, actions)


class TakesTooMany(CheckedScheduler):
    def _make_room(self, entry: Entry, now: float, actions: list[Action]) -> bool:
        return True


class DisplacesTheOldest(CheckedScheduler):
    def _make_room(self, entry: Entry, now: float, actions: list[Action]) -> bool:
        lowest = self._queues.bands[-1]
        if self._queues.over_bounds() and lowest.entries:
            self._evict(next(iter(lowest.entries.values())), Reason.DISPLACED, now, actions)
        return super()._make_room(entry, now, actions)


class ServesTheLatest(CheckedScheduler):
    def _dispatch(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        leaf = entry.node_of().leaves.get(entry.request.model)
        own = [other for other in leaf.in_order() if not other.avoid] if leaf is not None else []
        return super()._dispatch(max(own, key=lambda other: other.seq, default=entry), endpoints, now)


class ForgetsToSettle(CheckedScheduler):
    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(settings, random=random)
        self._charges.settle = lambda tree, entry, usage: 0.0  # type: ignore[method-assign]


class ForgetsHolds(CheckedScheduler):
    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(settings, random=random)
        self._capped.let_go = lambda tenant: None  # type: ignore[method-assign]


class ForgetsFlows(CheckedScheduler):
    def _release(self, entry: Entry, now: float, *, given_up: bool = False) -> Endpoint | None:
        endpoint = super()._release(entry, now, given_up=given_up)
        node = entry.node_of()
        if node.parent is not None and self._random.random() < 0.1:
            node.parent.children.pop(node.name, None)
        return endpoint


class MiscountsTheTree(CheckedScheduler):
    def _enqueue(self, entry: Entry, now: float) -> None:
        super()._enqueue(entry, now)
        entry.work += 1.0


BROKEN = [
    DisplacesTheOldest,
    ForgetsFlows,
    ForgetsHolds,
    ForgetsToSettle,
    MiscountsTheTree,
    NeverLooksAgain,
    ForgetsToTouch,
    LosesLeases,
    ServesLowBandsFirst,
    ForgetsTheTime,
    TakesTooMany,
    ServesTheLatest,
]


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_scheduler_is_found_out(kind: type[CheckedScheduler]) -> None:
    def run_some() -> None:
        for seed in range(3):
            Chaos(seed, EVERYTHING, requests=700, trouble=0.2, kind=kind).run()

    with pytest.raises(AssertionError):
        run_some()


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
