"""What a metrics page says where it does not say the truth.

A page is fed with the true reading each time it is asked for one, and answers with what the gateway sees of it: None
is a page that is not to be had. The counters of a page that lies about load still move with the engine; only on a
frozen one nothing does.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from random import Random

from msgspec import structs

from penstock.core.observation import Observation

READINGS_KEPT = 4096  # of a late page: more than half an hour of them, twice a second


@dataclass(frozen=True)
class PageWays:
    """How a page comes to what it says. Read from the top: the later ones work on what the earlier ones left."""

    from_s: float = 0.0  #: until then it says the truth
    missing: bool = False
    late_s: float = 0.0  #: it shows how things were so long ago
    running_times: float = 1.0
    waiting_times: float = 1.0
    running_more: float = 0.0
    waiting_more: float = 0.0
    queue_as_running: bool = False  #: all that is inside is running, it says
    kv_usage: float | None = None  #: what it always says
    counters: bool = True  #: False: it has no counters, and no start of the process
    of_another: bool = False  #: it is the page of another model's engine, with a load of its own
    frozen: bool = False  #: nothing on it moves …
    frozen_running: float | None = None  #: … and this is what it shows; None: what it showed when it froze
    frozen_waiting: float = 0.0


TRUE = PageWays()
LATE = PageWays(late_s=2.0)
VERY_LATE = PageWays(late_s=8.0)
MISSING = PageWays(missing=True)
VANISHED = PageWays(missing=True, from_s=15.0)
FROZEN_IDLE = PageWays(frozen=True, frozen_running=0.0)
FROZEN_OVERLOADED = PageWays(frozen=True, frozen_running=64.0, frozen_waiting=200.0)
FROZEN_MIDWAY = PageWays(frozen=True, from_s=15.0)
TOO_HIGH = PageWays(running_times=2.0, waiting_more=10.0)
TOO_LOW = PageWays(running_times=0.5, waiting_times=0.5)
ALL_ZERO = PageWays(running_times=0.0, waiting_times=0.0)
OTHER_MODEL = PageWays(of_another=True)
SILENT_QUEUE = PageWays(waiting_times=0.0)
ALL_RUNNING = PageWays(queue_as_running=True)
MEMORY_FULL = PageWays(kv_usage=1.0)
NO_COUNTERS = PageWays(counters=False)


class Page:
    """The metrics page of one engine."""

    def __init__(self, ways: PageWays = TRUE, seed: int = 0) -> None:
        self._ways = ways
        self._random = Random(seed)
        self._kept: deque[Observation] = deque(maxlen=READINGS_KEPT)
        self._frozen: Observation | None = None
        self._other = 20.0  # requests on the other model's engine

    def read(self, true: Observation) -> Observation | None:
        """What it says to who asked for `true`."""
        ways = self._ways
        self._kept.append(true)
        if true.asked_s < ways.from_s or ways is TRUE:
            return true
        if ways.missing:
            return None
        if ways.frozen:
            return self._frozen_at(true)
        said = self._as_it_was(true) if ways.late_s else true
        if ways.of_another:
            said = self._of_another(said)
        return _changed(said, ways)

    def _as_it_was(self, true: Observation) -> Observation:
        past_s = true.asked_s - self._ways.late_s
        while len(self._kept) > 1 and self._kept[1].asked_s <= past_s:
            self._kept.popleft()
        return structs.replace(self._kept[0], asked_s=true.asked_s)

    def _frozen_at(self, true: Observation) -> Observation:
        if self._frozen is None:
            running = self._ways.frozen_running
            self._frozen = (
                true if running is None else structs.replace(true, running=running, waiting=self._ways.frozen_waiting)
            )
        return structs.replace(self._frozen, asked_s=true.asked_s)

    def _of_another(self, true: Observation) -> Observation:
        """A load that wanders between none and 80, of which 40 run; its counters move as the true ones do."""
        self._other = min(80.0, max(0.0, self._other + self._random.uniform(-8.0, 8.0)))
        there = math.floor(self._other)
        return structs.replace(true, running=float(min(40, there)), waiting=float(max(0, there - 40)))


def _changed(said: Observation, ways: PageWays) -> Observation:
    running = math.floor(said.running * ways.running_times + ways.running_more)
    waiting = math.floor(said.waiting * ways.waiting_times + ways.waiting_more)
    if ways.queue_as_running:
        running, waiting = running + waiting, 0
    said = structs.replace(said, running=float(running), waiting=float(waiting))
    if ways.kv_usage is not None:
        said = structs.replace(said, kv_usage=ways.kv_usage)
    if not ways.counters:
        said = structs.replace(
            said, progress=None, started_s=None, first_token_s_total=None, first_tokens_total=None, kv_usage=None
        )
    return said
