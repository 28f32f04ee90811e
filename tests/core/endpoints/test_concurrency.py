"""The slots of an engine that nobody told: found by trying, whatever its size, and held there."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from random import Random

import pytest

from penstock.core.endpoints.concurrency import ConcurrencyLimit, FoundLimit
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.ledger import Ledger
from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import EndpointSpec
from tests.core.drive import lease, request
from tests.core.shop import PATIENT

STEP_S = 0.02


class Engine:
    """`size` requests run at once, each a token per step; the others queue. More always wait in the gateway."""

    def __init__(self, size: int, *, tokens: int = 100, page: str = "true", whole_share: float = 0.0) -> None:
        self.size, self.tokens, self.page = size, tokens, page
        self.random = Random(1)
        self.scheduler = Scheduler(PATIENT, random=Random(1))
        self.whole_share = whole_share
        self.running: dict[int, int] = {}  # leases, and how many tokens they have
        self.waiting: deque[int] = deque()
        self.whole: set[str] = set()
        self.named: dict[int, str] = {}
        self.now = 0.0
        self.asked = self.made = 0
        self.beyond: list[int] = []
        spec = EndpointSpec("e", 16, frozenset("m"), adaptive_slots=True)
        self._tell(self.scheduler.endpoint_added(spec, now=0.0))
        for _ in range(3 * size + 50):
            self._ask()

    @property
    def slots(self) -> int:
        return self.scheduler.inspect().pool["e"].slots

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            while self.waiting and len(self.running) < self.size:
                self.running[self.waiting.popleft()] = 0
            self.made += len(self.running)
            self.beyond.append(len(self.waiting))
            for each, tokens in list(self.running.items()):
                self._token(each, tokens + 1)
            self._tell(self.scheduler.expire(now=self.now))
            if round(self.now / STEP_S) % 25 == 0:
                self._read()

    def _token(self, each: int, tokens: int) -> None:
        self.running[each] = tokens
        self.now += 1e-6
        if tokens == 1 and self.named[each] not in self.whole:
            self._tell(self.scheduler.first_token(each, now=self.now))
        if tokens >= self.tokens * self.random.uniform(0.9, 1.1):
            del self.running[each]
            self._tell(self.scheduler.finished(each, Usage(10, tokens), now=self.now))
            self._ask()

    def _read(self) -> None:
        shown = {
            "true": (len(self.running), len(self.waiting)),
            "frozen": (64, 200),
            "no queue": (len(self.running), 0),
        }
        if self.page in shown:
            running, waiting = shown[self.page]
            progress = 1.0 if self.page == "frozen" else self.now
            reading = Observation(self.now, running, waiting, progress=progress)
            self._tell(self.scheduler.observed("e", reading, now=self.now))

    def _ask(self) -> None:
        self.asked += 1
        name = f"r{self.asked}"
        streamed = self.random.random() >= self.whole_share
        if not streamed:
            self.whole.add(name)
        self._tell(self.scheduler.arrived(request(name, streamed=streamed), now=self.now))

    def _tell(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.waiting.append(action.lease)
                self.named[action.lease] = action.request_id
            elif isinstance(action, Requeue):
                self.waiting.remove(next(each for each in self.waiting if self.named[each] == action.request_id))


@pytest.mark.parametrize("page", ["true", "none", "frozen", "no queue"])
@pytest.mark.parametrize("size", [4, 16, 100])
def test_the_size_of_an_engine_is_found_whatever_its_page_shows(size: int, page: str) -> None:
    engine = Engine(size, page=page)
    engine.run(15.0)
    made = engine.made
    engine.run(5.0)
    assert engine.made - made >= 0.95 * size * 5.0 / STEP_S
    assert sorted(engine.beyond[-250:])[240] <= max(4, 0.15 * size), "few wait inside it"


@pytest.mark.parametrize("whole_share", [0.0, 0.4])
def test_answers_of_eight_tokens_find_256_slots(whole_share: float) -> None:
    engine = Engine(256, tokens=8, whole_share=whole_share)
    engine.run(6.0)
    made = engine.made
    engine.run(2.0)
    assert engine.made - made >= 0.8 * 256 * 2.0 / STEP_S, "a slot loses at least one step in nine"


def test_an_engine_that_shrank_or_grew_is_found_again() -> None:
    engine = Engine(32)
    engine.run(10.0)
    engine.size = 16
    engine.run(20.0)
    assert engine.slots <= 19
    engine.size = 24
    engine.run(60.0)
    assert 22 <= engine.slots <= 28


def test_answers_that_come_whole_find_the_size_by_the_page() -> None:
    engine = Engine(48, whole_share=1.0)
    engine.run(30.0)
    assert 44 <= engine.slots <= 54


def test_slots_that_were_told_stay() -> None:
    own = Ledger(ConcurrencyLimit(4), stale_after_s=5.0)
    for serial in range(4):
        own.add(lease(serial, at=0.0))
    own.limit.look(own, 100.0, wanted=True)
    assert own.limit.slots == 4


def there(own: Ledger, serials: range, *, at: float) -> list[Lease]:
    leases = [lease(serial, at=at, streamed=True) for serial in serials]
    for each in leases:
        own.add(each)
    return leases


@pytest.mark.parametrize(("left", "way_s"), [(8, 0.0), (4, 0.1)])
def test_a_request_that_begins_while_a_server_is_idle_was_on_its_way(left: int, way_s: float) -> None:
    """Eight ran at once. Of twenty more that begin after a second, none waited for a server if only four are left."""
    limit = FoundLimit(64)
    own = Ledger(limit, stale_after_s=5.0)
    own.speed.step_s = 0.02
    first = there(own, range(8), at=0.0)
    for each in first:
        own.first_token(each, 0.04)
    limit.look(own, 0.1, wanted=True)
    for each in first[left:]:
        own.remove(each, 1.0)
    limit.look(own, 1.1, wanted=True)
    limit.look(own, 1.2, wanted=True)
    late = there(own, range(10, 30), at=1.2)
    own.first_token(late[0], 2.2)
    assert own.speed.path_s == pytest.approx(way_s, abs=0.02)


def test_whole_answers_that_are_as_slow_with_fewer_waited_in_no_queue() -> None:
    """An engine that never queues becomes four times slower, with 256 requests there: they fell to 83."""
    limit = FoundLimit(32)
    own = Ledger(limit, stale_after_s=5.0)
    ends: deque[tuple[float, Lease]] = deque()
    now, serial = 0.0, 0
    while now < 20.0:
        while len(own.leases) < limit.slots:
            serial += 1
            sent = lease(serial, at=now, streamed=False)
            own.add(sent)
            ends.append((now + (0.2 if now < 3.0 else 0.8), sent))
        now, ended = ends.popleft()
        own.answered(ended, 8, now)
        own.remove(ended, now)
        limit.look(own, now, wanted=True)
    assert limit.slots > 180


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("size", "least", "most"), [(1000, 90, 96), (40, 34, 80)])
def test_whole_answers_of_a_machine_with_neighbours_find_the_size(size: int, least: int, most: int, seed: int) -> None:
    """Steps take up to three times longer for a second, and with more at once: 15 of 96 were let in, and fewer."""
    limit, random = FoundLimit(16), Random(seed)
    own = Ledger(limit, stale_after_s=5.0)
    ends: list[tuple[float, int, Lease]] = []
    servers = [0.0] * size  # when each is free
    now, serial, seen = 0.0, 0, list[int]()
    slower = [random.choice((1.0, 1.0, 2.0, 3.0)) for _ in range(100)]
    while now < 60.0:
        while len(own.leases) < min(limit.slots, 96) and now >= limit.fills_until_s(own):
            serial += 1
            sent = lease(serial, at=now, streamed=False)
            own.add(sent)
            free = servers.index(min(servers))
            steps = 16 * (0.015 + 0.00025 * min(size, len(own.leases))) * slower[int(now)]
            servers[free] = max(now, servers[free]) + steps * random.uniform(0.9, 1.1)
            heappush(ends, (servers[free], serial, sent))
        now, _, ended = heappop(ends)
        own.answered(ended, 16, now)
        own.remove(ended, now)
        limit.look(own, now, wanted=True)
        if now > 20.0:
            seen.append(min(limit.slots, 96))
    assert least <= sum(seen) / len(seen) <= most
