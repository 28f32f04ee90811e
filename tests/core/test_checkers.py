"""A checker that never fails proves nothing: each invariant is broken once, and must be noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from penstock.conformance.invariants import Books, CheckedScheduler
from penstock.core.dispatch import admission
from penstock.core.dispatch.pump import Pump
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.capped_flows import CappedFlows
from penstock.core.queueing.charges import Charges
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.promised_shares import PromisedShares
from penstock.core.scheduler import SchedulerSettings
from penstock.core.scheduling import pumping, sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Reason
from penstock.core.values.settings import BandSettings, EndpointSpec
from tests.core.chaos import Chaos
from tests.core.drive import request, scheduler
from tests.core.test_scheduler_properties import EVERYTHING


def never_looks_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchedulerState, "look_again", lambda *_: None)


def forgets_to_touch(patch: pytest.MonkeyPatch) -> None:
    def touched(state: SchedulerState, endpoint: Endpoint, now: float) -> list[Action]:
        for band in state.queues.bands:
            band.unchecked.pop(endpoint, None)
        return pumping.pumped(state, now)

    patch.setattr(pumping, "touched", touched)


def believes_verdicts_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "holds_until_s", lambda *_, **__: math.inf)


def loses_leases(patch: pytest.MonkeyPatch) -> None:
    release = sending.release

    def broken(state: SchedulerState, entry: Entry, now: float, *, abandoned: bool = False) -> Endpoint | None:
        lease = entry.lease
        endpoint = release(state, entry, now, abandoned=abandoned)
        if lease is not None and lease.serial % 20 == 0:
            state.leases[lease.serial] = entry
        return endpoint

    patch.setattr(sending, "release", broken)


def serves_low_bands_first(patch: pytest.MonkeyPatch) -> None:
    def broken(promised: PromisedShares) -> list[Band]:
        return [band for band in reversed(promised._queues.bands) if band.tree.waiting]

    patch.setattr(PromisedShares, "owed", broken)


def lets_low_bands_have_the_reserve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pump, "_keep_reserve", lambda *_: None)


def forgets_the_time(patch: pytest.MonkeyPatch) -> None:
    time_is_up = waiting.time_is_up

    def broken(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
        if entry.seq % 5:
            time_is_up(state, entry, now, actions)

    patch.setattr(waiting, "time_is_up", broken)


def takes_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "make_room", lambda *_: True)


def displaces_the_oldest(patch: pytest.MonkeyPatch) -> None:
    make_room = waiting.make_room

    def broken(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> bool:
        lowest = state.queues.bands[-1]
        others = [other for other in lowest.entries.values() if other is not entry]
        if state.queues.over_bounds() and others:
            waiting.evict(state, others[0], Reason.DISPLACED, now, actions)
        return make_room(state, entry, now, actions)

    patch.setattr(waiting, "make_room", broken)


def serves_the_latest(patch: pytest.MonkeyPatch) -> None:
    dispatch = sending.dispatch

    def broken(state: SchedulerState, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        leaf = entry.node.leaves.get(entry.request.model)
        own = [other for other in leaf.in_order() if not other.retry.excluded] if leaf is not None else []
        return dispatch(state, max(own, key=lambda other: other.seq, default=entry), endpoints, now)

    patch.setattr(sending, "dispatch", broken)


def forgets_to_settle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Charges, "settle", lambda *_: 0.0)


def forgets_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CappedFlows, "uncap", lambda *_: None)


def forgets_flows(patch: pytest.MonkeyPatch) -> None:
    release, random = sending.release, Random(1)

    def broken(state: SchedulerState, entry: Entry, now: float, *, abandoned: bool = False) -> Endpoint | None:
        endpoint = release(state, entry, now, abandoned=abandoned)
        node = entry.node
        if node.parent is not None and random.random() < 0.1:
            node.parent.children.pop(node.name, None)
        return endpoint

    patch.setattr(sending, "release", broken)


def miscounts_the_tree(patch: pytest.MonkeyPatch) -> None:
    enqueue = waiting.enqueue

    def broken(state: SchedulerState, entry: Entry, now: float) -> None:
        enqueue(state, entry, now)
        entry.work += 1.0

    patch.setattr(waiting, "enqueue", broken)


BROKEN = [
    believes_verdicts_for_ever,
    displaces_the_oldest,
    forgets_flows,
    forgets_holds,
    forgets_to_settle,
    miscounts_the_tree,
    never_looks_again,
    forgets_to_touch,
    loses_leases,
    serves_low_bands_first,
    lets_low_bands_have_the_reserve,
    forgets_the_time,
    takes_too_many,
    serves_the_latest,
]


@pytest.mark.interpreted
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_scheduler_is_found_out(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    def run_some() -> None:
        for seed in range(3):
            Chaos(seed, EVERYTHING, requests=700, trouble=0.2).run()

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


def test_a_pinned_request_may_pass_queued_ones() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("high", ceiling=0.5), BandSettings("low"))), a=2)
    made.arrived(request("first"), now=0.0)
    made.arrived(request("waits"), now=0.0)
    assert made.arrived(request("pinned", band=1, pinned="a"), now=0.0)
