"""What waits inside an engine that turned out to be smaller comes back to the queue; what may run there does not."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import EndpointSpec
from tests.core.drive import request, scheduler, until
from tests.core.shop import PATIENT

SURPLUS_MIN = 2
RECALLS_MAX = 2

STEP_S = 0.1
SIZE = 48
FOUND_FULL_S = 0.7  # from the first request until more than a few wait inside, of which nothing has come back


class Engine:
    """Runs `SIZE` requests for as long as it is told to, queues the rest, and tells its gauges each second."""

    def __init__(self, *, lies: bool = False, lingers: bool = False, wait_s_max: float = PATIENT.wait_s_max) -> None:
        self.made: CheckedScheduler = scheduler(replace(PATIENT, wait_s_max=wait_s_max))
        self.lies = lies
        self.now = 0.0
        self.running: dict[int, str] = {}
        self.waiting: deque[tuple[int, str]] = deque()
        self.began: Counter[str] = Counter()
        self.recalled: list[str] = []
        self.served: list[str] = []
        self.steps = 0
        spec = EndpointSpec("e", 16, frozenset("m"), adaptive_slots=True)
        self.take(self.made.endpoint_added(spec, now=0.0))
        if lingers:
            self.take(self.made.endpoint_changed("e", lingers=True, now=0.0))

    def ask(self, count: int, **more: Any) -> None:
        for _ in range(count):
            name = f"r{len(self.made.inspect().entries) + len(self.served)}"
            self.take(self.made.arrived(request(name, streamed=True, **more), now=self.now))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.waiting.append((action.lease, action.request_id))
            elif isinstance(action, Requeue):
                assert action.cause == "engine_queue"
                self.recalled.append(action.request_id)
                there = [each for each in self.waiting if each[1] == action.request_id]
                assert there, "it had begun"
                assert there == [self.waiting[-1]], "the last one first"
                self.waiting.pop()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.steps += 1
            while self.waiting and len(self.running) < SIZE:
                lease, name = self.waiting.popleft()
                self.running[lease] = name
                self.began[name] += 1
                self.take(self.made.first_token(lease, now=self.now))
            if self.lies or self.steps % round(1.0 / STEP_S) == 0:
                running, waiting = len(self.running), len(self.waiting)
                if self.lies:
                    running, waiting = running + waiting, 0
                reading = Observation(self.now, running, waiting, progress=float(self.steps))
                self.take(self.made.observed("e", reading, now=self.now))
            self.take(until(self.made, self.now))

    def end(self, count: int) -> None:
        for lease in list(self.running)[:count]:
            self.served.append(self.running.pop(lease))
            self.take(self.made.finished(lease, Usage(10, 200), now=self.now))


def test_what_waits_beyond_a_few_comes_back_the_last_first() -> None:
    engine = Engine()
    engine.ask(100)
    engine.run(10.0)
    assert len(engine.running) == SIZE
    assert engine.recalled
    assert len(engine.waiting) <= SURPLUS_MIN


def test_all_are_served_once_and_hardly_any_is_sent_three_times() -> None:
    engine = Engine()
    engine.ask(300)
    for _ in range(100):
        engine.run(1.0)
        engine.end(8)
    assert sorted(engine.served) == sorted(f"r{number}" for number in range(300))
    assert set(engine.began.values()) == {1}
    assert max(Counter(engine.recalled).values(), default=0) <= RECALLS_MAX


@pytest.mark.parametrize("oddity", ["lies", "lingers"])
def test_nothing_comes_back_if_the_page_shows_no_queue_or_the_engine_continues_aborted_requests(oddity: str) -> None:
    engine = Engine(**{oddity: True})
    engine.ask(100)
    engine.run(10.0)
    assert len(engine.waiting) > SURPLUS_MIN, "nothing was in question"
    assert not engine.recalled


@pytest.mark.parametrize("kind", [{"deadline_s": 1000.0}, {"carried": True}])
def test_what_has_a_deadline_or_is_carried_by_a_proxy_stays_where_it_is(kind: dict[str, Any]) -> None:
    """In the queue it might be refused for it, and a proxy does not send it again."""
    engine = Engine()
    engine.ask(100, **kind)
    engine.run(10.0)
    assert len(engine.running) == SIZE
    assert not engine.recalled


@pytest.mark.parametrize("event", ["nothing", "drain", "halted"])
def test_what_would_not_be_sent_again_stays_where_it_is(event: str) -> None:
    engine = Engine()
    engine.ask(100)
    engine.run(FOUND_FULL_S)
    assert len(engine.waiting) > SURPLUS_MIN
    assert not engine.recalled
    if event == "drain":
        engine.take(engine.made.drain(queue_until_s=100.0, stop_at_s=100.0, now=engine.now))
    elif event == "halted":
        engine.take(engine.made.halted(now=engine.now))
    engine.run(5.0)
    assert bool(engine.recalled) == (event == "nothing")


@pytest.mark.parametrize(("wait_s_max", "comes_back"), [(4 * FOUND_FULL_S, True), (1.3 * FOUND_FULL_S, False)])
def test_what_waited_half_of_what_it_may_stays_where_it_is(wait_s_max: float, comes_back: bool) -> None:
    """Back in the queue its time would be up."""
    engine = Engine(wait_s_max=wait_s_max)
    engine.ask(100)
    engine.run(FOUND_FULL_S)
    assert len(engine.waiting) > SURPLUS_MIN, "nothing was in question"
    engine.run(5.0)
    assert bool(engine.recalled) == comes_back


def test_what_came_back_twice_stays_where_it_is() -> None:
    engine = Engine()
    engine.ask(100)
    for entry in engine.made.inspect().entries.values():
        entry.own_retry().recalls = RECALLS_MAX
    engine.run(10.0)
    assert len(engine.waiting) > SURPLUS_MIN, "nothing was in question"
    assert not engine.recalled
