"""Adaptive slots: found by trying, whatever the engine's size, and held there without swinging."""

from __future__ import annotations

import heapq
from collections import deque
from random import Random

import pytest

from penstock.core.actions import Action, Dispatch
from penstock.core.limit import SLOTS_MAX, SLOTS_MIN, AdaptiveSlots
from penstock.core.observation import Observation
from penstock.core.request import Usage
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.settings import EndpointSpec
from tests.core.drive import request
from tests.core.shop import PATIENT


class Engine:
    """Runs so many requests at once, queues the rest, and tells its gauges once a second. More always wait for it."""

    def __init__(self, size: int, *, slots: int = 16, seed: int = 1, settings: SchedulerSettings = PATIENT) -> None:
        self.size = size
        self.random = Random(seed)
        self.scheduler = Scheduler(settings, random=Random(seed))
        self.running: set[int] = set()
        self.waiting: deque[int] = deque()
        self.ends: list[tuple[float, int]] = []
        self.now = 0.0
        self.steps = 0
        self.found: list[int] = []
        spec = EndpointSpec("e", slots, frozenset("m"), adaptive_slots=True)
        self._tell(self.scheduler.endpoint_added(spec, now=0.0))
        for at in range(3 * size + 50):
            self._arrive(f"r{at}")

    def run(self, readings: int) -> list[int]:
        for _ in range(readings):
            until = self.now + 1.0
            while self.ends and self.ends[0][0] <= until:
                self.now, lease = heapq.heappop(self.ends)
                self._end(lease)
            self.now = until
            reading = Observation(self.now, len(self.running), len(self.waiting), progress=float(self.steps))
            self._tell(self.scheduler.observed("e", reading, now=self.now))
            self.found.append(self.scheduler._pool["e"].slots)
        return self.found

    def _arrive(self, name: str) -> None:
        self._tell(self.scheduler.arrived(request(name, streamed=True), now=self.now))

    def _end(self, lease: int) -> None:
        self.running.remove(lease)
        self.steps += 1
        self._tell(self.scheduler.finished(lease, Usage(10, 10), now=self.now))
        self._begin()
        self._arrive(f"s{self.steps}")

    def _tell(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.waiting.append(action.lease)
        self._begin()

    def _begin(self) -> None:
        while self.waiting and len(self.running) < self.size:
            lease = self.waiting.popleft()
            self.running.add(lease)
            heapq.heappush(self.ends, (self.now + self.random.uniform(1.0, 3.0), lease))
            self.steps += 1
            self._tell(self.scheduler.first_token(lease, now=self.now))


@pytest.mark.parametrize("size", [4, 8, 64, 256])
def test_the_size_of_an_engine_is_found_from_sixteen(size: int) -> None:
    settled = Engine(size).run(100)[50:]
    assert max(abs(slots - size) for slots in settled) <= max(1, 0.15 * size)
    assert max(settled) - min(settled) <= max(1, 0.1 * size)


def test_an_engine_that_grew_or_shrank_is_found_anew() -> None:
    engine = Engine(32)
    engine.run(60)
    engine.size = 16
    assert engine.run(60)[-1] <= 18
    engine.size = 24
    assert 22 <= engine.run(60)[-1] <= 27


def test_one_reading_of_a_long_queue_means_nothing() -> None:
    limit = AdaptiveSlots(10)
    assert limit.observed(waiting=9, load=10, waiting_max=1.0) == 10
    assert limit.observed(waiting=0, load=5, waiting_max=1.0) == 10
    assert limit.observed(waiting=9, load=10, waiting_max=1.0) == 10
    assert limit.observed(waiting=9, load=10, waiting_max=1.0) == 9


def test_one_that_waits_is_no_reason_to_grow_and_none_to_shrink() -> None:
    limit = AdaptiveSlots(10)
    assert [limit.observed(waiting=1, load=10, waiting_max=1.0) for _ in range(5)] == [10] * 5


def test_what_may_wait_is_allowed_to_wait() -> None:
    """So many arrive in one engine step that a few always wait at its end."""
    limit = AdaptiveSlots(100)
    assert limit.observed(waiting=8, load=100, waiting_max=9.0) == 150


def test_it_grows_by_half_until_the_engine_was_seen_to_queue_and_then_by_one() -> None:
    limit = AdaptiveSlots(16)
    assert [limit.observed(waiting=0, load=limit.slots, waiting_max=1.0) for _ in range(3)] == [24, 36, 54]
    for _ in range(2):
        limit.observed(waiting=9, load=54, waiting_max=1.0)
    assert [limit.observed(waiting=0, load=limit.slots, waiting_max=1.0) for _ in range(3)] == [49, 50, 51]


def test_it_does_not_grow_while_slots_are_free() -> None:
    assert AdaptiveSlots(100).observed(waiting=0, load=80, waiting_max=1.0) == 100


def test_gauges_that_never_queue_and_gauges_that_always_do_meet_a_bound() -> None:
    limit = AdaptiveSlots(16)
    for _ in range(100):
        limit.observed(waiting=0, load=1e9, waiting_max=1.0)
    assert limit.slots == SLOTS_MAX
    for _ in range(500):
        limit.observed(waiting=1e9, load=1e9, waiting_max=1.0)
    assert limit.slots == SLOTS_MIN
