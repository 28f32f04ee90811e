"""Adaptive slots: found by trying, whatever the engine's size, and held there without swinging."""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import pairwise
from random import Random

import pytest

from penstock.core.endpoints.adaptive_slots import HOLD_S, HOLD_S_MAX, SIZE_KNOWN_S, SLOTS_MAX, SLOTS_MIN, AdaptiveSlots
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import EndpointSpec, HealthSettings
from tests.core.drive import lease, request
from tests.core.shop import PATIENT

STEP_S = 0.01


class Engine:
    """Runs so many requests at once, queues the rest, and tells its gauges once a second. More always wait for it."""

    def __init__(self, size: int, *, slots: int = 16, seed: int = 1, settings: SchedulerSettings = PATIENT) -> None:
        self.size = size
        self.random = Random(seed)
        self.scheduler = Scheduler(settings, random=Random(seed))
        self.running: set[int] = set()
        self.waiting: deque[int] = deque()
        self.ends: list[tuple[float, int, bool]] = []  # when a lease begins to be answered, or ends
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
                self.now, lease, ends = heapq.heappop(self.ends)
                if ends:
                    self._end(lease)
                else:
                    self._tell(self.scheduler.first_token(lease, now=self.now))
            self.now = until
            reading = Observation(self.now, len(self.running), len(self.waiting), progress=float(self.steps))
            self._tell(self.scheduler.observed("e", reading, now=self.now))
            self.found.append(self.scheduler.inspect().pool["e"].slots)
        return self.found

    def _arrive(self, name: str) -> None:
        self._tell(self.scheduler.arrived(request(name, streamed=True), now=self.now))

    def _end(self, lease: int) -> None:
        self.running.remove(lease)
        self.steps += 1
        self._tell(self.scheduler.finished(lease, Usage(10, 200), now=self.now))
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
            heapq.heappush(self.ends, (self.now + STEP_S, lease, False))
            heapq.heappush(self.ends, (self.now + self.random.uniform(1.0, 3.0), lease, True))
            self.steps += 1


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


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("streamed", [True, False])
def test_answers_of_one_token_show_that_those_beside_them_ran(streamed: bool, told: bool) -> None:
    """Embeddings, classes, `max_tokens: 1`: none is ever seen at work, and each step answers all that were sent."""
    scheduler = Scheduler(PATIENT, random=Random(1))
    spec = EndpointSpec("e", 16, frozenset("m"), adaptive_slots=True)
    actions = list(scheduler.endpoint_added(spec, now=0.0))
    for number in range(200):
        actions += scheduler.arrived(request(f"r{number}", streamed=streamed), now=0.0)
    most, number, now = 0, 200, 0.0
    for step in range(40):
        there = [action.lease for action in actions if isinstance(action, Dispatch)]
        most, actions, now = max(most, len(there)), [], now + 0.1
        for each in there:
            if streamed:
                actions += scheduler.first_token(each, now=now)
            actions += scheduler.finished(each, Usage(10, 1) if told else None, now=now)
            number += 1
            actions += scheduler.arrived(request(f"r{number}", streamed=streamed), now=now)
        if told:
            actions += scheduler.observed("e", Observation(now, 0, 0, progress=float(step)), now=now)
    assert most >= 150


class Reader:
    """Reads an engine once a second, and tells one limit."""

    def __init__(self, slots: int) -> None:
        self.limit = AdaptiveSlots(slots)
        self.now = 0.0

    def reads(self, running: float, waiting: float = 0.0, *, arrivals: float = 0.0, let: float = math.inf) -> int:
        """The slots after a reading."""
        self.now += 1.0
        return self.limit.observed(
            at_s=self.now, running=running, waiting=waiting, arrivals=arrivals, load=running + waiting, let=let
        )


def test_one_reading_of_a_long_queue_means_nothing() -> None:
    reader = Reader(10)
    assert reader.reads(8, 9) == 10
    assert reader.reads(5) == 10
    assert reader.reads(8, 9) == 10
    assert reader.reads(8, 9) == 8


def test_one_that_always_waits_is_one_too_many() -> None:
    reader = Reader(10)
    assert [reader.reads(9, 1) for _ in range(3)] == [10, 10, 9]


def test_who_came_since_the_last_step_is_allowed_to_wait() -> None:
    reader = Reader(100)
    assert [reader.reads(80, 2, arrivals=2.0) for _ in range(50)] == [100] * 50
    assert [reader.reads(96, 4, arrivals=2.0) for _ in range(3)] == [100, 100, 96]


def test_it_grows_by_half_until_the_engine_was_seen_to_queue_and_then_by_one() -> None:
    reader = Reader(16)
    assert [reader.reads(reader.limit.slots) for _ in range(3)] == [24, 36, 54]
    assert [reader.reads(40, 9) for _ in range(2)] == [54, 40]
    reader.now += HOLD_S
    assert [reader.reads(reader.limit.slots) for _ in range(4)] == [41, 43, 47, 55]


def test_as_many_as_ran_before_a_try_are_no_proof_that_it_was_not_too_much() -> None:
    """Where one is always on its way, all slots but one seen running count as all: but not right after a try."""
    limit = AdaptiveSlots(16)

    def looks(at_s: float, running: float, waiting: float = 0.0) -> int:
        return limit.observed(
            at_s=at_s, running=running, waiting=waiting, arrivals=0.0, load=16.0, let=16.0, on_the_way=1.0
        )

    assert [looks(at_s, 8, 8) for at_s in (1.0, 2.0)] == [16, 12]
    assert [looks(at_s, 8, 4) for at_s in (3.0, 4.0)] == [12, 9]
    now = 4.0 + HOLD_S
    assert looks(now, 8) == 10, "the first try"
    assert [looks(now + after_s, 8) for after_s in (1.0, 2.0, 60.0)] == [10] * 3
    assert looks(now + 61.0, 9) == 12


def test_gauges_that_show_less_running_than_was_let_in_are_no_room() -> None:
    """A burst of sixteen is on its way, or the gauges stand still: nothing waits, and yet there is no proof of room."""
    reader = Reader(16)
    assert [reader.reads(running) for running in (0, 1, 8, 14)] == [16] * 4
    assert reader.reads(15) > 16, "one of them may be on its way"


def test_there_are_never_more_slots_than_ran_and_a_step() -> None:
    reader = Reader(16)
    for running in range(1, 200):
        before = reader.limit.slots
        assert reader.reads(running, let=running) <= max(before, 1.5 * running + 1)


def test_while_the_size_is_unknown_it_is_enough_that_all_who_were_let_in_run() -> None:
    """A part of the slots is kept free, so that all are never seen running at once."""
    assert Reader(16).reads(12, let=12) == 18
    reader = Reader(16)
    reader.reads(10, 4)
    assert reader.reads(10, 4) == 10
    reader.now += 60.0
    assert reader.reads(8, let=8) == 10, "its size is known now, and not all of it was seen running"
    reader.now += SIZE_KNOWN_S
    assert reader.reads(8, let=8) == 11, "that was long ago"


def test_who_tried_in_vain_waits_longer_each_time() -> None:
    reader, tries = Reader(20), []
    for _ in range(600):
        slots = reader.limit.slots
        if reader.reads(min(slots, 10), max(0, slots - 10)) > slots:
            tries.append(reader.now)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses[:4] == sorted(pauses[:4])
    assert pauses[0] < 15.0
    assert max(pauses) <= HOLD_S_MAX + 10.0
    assert len(tries) <= 15


def test_what_others_send_there_takes_no_slots_away() -> None:
    """A flood that does not pass through us fills the engine's queue: what it runs stays what it is."""
    reader = Reader(64)
    assert {reader.reads(64, 200) for _ in range(100)} == {64}
    assert Reader(16).reads(64) == 24
    seen = Reader(16)
    seen.reads(64, 9)
    assert seen.reads(64, 9) == 64, "so many run, whoever sent them"


def test_what_waits_for_prompts_to_be_computed_says_nothing_of_slots() -> None:
    endpoint = Endpoint(
        EndpointSpec("e", 16, frozenset("m"), adaptive_slots=True), index=0, health=HealthSettings(), stale_after_s=9.0
    )
    for number in range(4):
        endpoint.ledger.add(lease(number, prompt=3000))
    for number in range(1, 8):
        endpoint.observed(Observation(float(number), 1, 3, progress=float(number)), float(number))
    assert endpoint.slots == 16
    for number in range(3):
        endpoint.ledger.first_token(endpoint.ledger.leases[number], 20.0)
    for number in range(21, 31):
        endpoint.observed(Observation(float(number), 1, 3, progress=float(number)), float(number))
    assert endpoint.slots < 16, "one prompt is left, and three wait"


def test_gauges_that_never_queue_and_gauges_that_always_do_meet_a_bound() -> None:
    reader = Reader(16)
    for _ in range(100):
        reader.reads(1e9)
    assert reader.limit.slots == SLOTS_MAX
    for _ in range(500):
        reader.reads(0, 1e9)
    assert reader.limit.slots == SLOTS_MIN
