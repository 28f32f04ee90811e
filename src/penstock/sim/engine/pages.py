"""Untrue metrics pages.

A page maps the true gauges to the shown ones, or to None if it is unreadable. The counters of a page that lies about
load still move with the engine, except on a frozen page. The simulated engine shows such pages over HTTP too (`POST
/sim/fault`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from random import Random

from msgspec import structs

from penstock.sim.engine.values import EngineGauges

GAUGES_KEPT = 4096  # of a late page: more than half an hour of them, twice a second


@dataclass(frozen=True)
class PageWays:
    """How a page lies. Fields apply from top to bottom."""

    from_s: float = 0.0  #: the page is true before that
    missing: bool = False
    late_s: float = 0.0  #: its age
    running_times: float = 1.0
    waiting_times: float = 1.0
    running_more: int = 0
    waiting_more: int = 0
    queue_as_running: bool = False  #: all requests inside appear as running
    kv_usage: float | None = None  #: a constant KV usage
    counters: bool = True  #: False: it has no counters, and no start of the process
    of_another: bool = False  #: the page of another model's engine, with another load
    frozen: bool = False  #: nothing on it moves …
    frozen_running: float | None = None  #: … and it shows this; None: the last true value
    frozen_waiting: float | None = None
    frozen_kv_usage: float | None = None


TRUE = PageWays()


class StrangePage:
    """The metrics page of one engine."""

    def __init__(self, ways: PageWays = TRUE, seed: int = 0) -> None:
        self._ways = ways
        self._random = Random(seed)
        self._kept: deque[tuple[float, EngineGauges]] = deque(maxlen=GAUGES_KEPT)
        self._frozen: EngineGauges | None = None
        self._other = 20.0  # requests on the other model's engine

    @property
    def has_counters(self) -> bool:
        """True if the page has counters beside its gauges."""
        return self._ways.counters

    @property
    def of_another(self) -> bool:
        """True if the page names another model."""
        return self._ways.of_another

    def read(self, true: EngineGauges, now: float) -> EngineGauges | None:
        """Returns the page's gauges at `now` for the `true` ones; None if it is unreadable."""
        ways = self._ways
        if ways is TRUE:
            return true
        self._kept.append((now, true))
        if now < ways.from_s:
            return true
        if ways.missing:
            return None
        if ways.frozen:
            return self._frozen_at(true)
        said = self._as_it_was(now - ways.late_s) if ways.late_s else true
        if ways.of_another:
            said = self._of_another(said)
        return _changed(said, ways)

    def _as_it_was(self, then: float) -> EngineGauges:
        while len(self._kept) > 1 and self._kept[1][0] <= then:
            self._kept.popleft()
        return self._kept[0][1]

    def _frozen_at(self, true: EngineGauges) -> EngineGauges:
        if self._frozen is None:
            ways = self._ways
            shown = (ways.frozen_running, ways.frozen_waiting, ways.frozen_kv_usage)
            names = ("running", "waiting", "kv_usage")
            set_to = {name: value for name, value in zip(names, shown, strict=True) if value is not None}
            self._frozen = structs.replace(true, **set_to)
        return self._frozen

    def _of_another(self, true: EngineGauges) -> EngineGauges:
        """A load that wanders between 0 and 80 requests, of which 40 run; its counters move as the true ones do."""
        self._other = min(80.0, max(0.0, self._other + self._random.uniform(-8.0, 8.0)))
        there = math.floor(self._other)
        return structs.replace(true, running=min(40, there), waiting=max(0, there - 40))


def _changed(said: EngineGauges, ways: PageWays) -> EngineGauges:
    running = math.floor(said.running * ways.running_times) + ways.running_more
    waiting = math.floor(said.waiting * ways.waiting_times) + ways.waiting_more
    if ways.queue_as_running:
        running, waiting = running + waiting, 0
    kv_usage = said.kv_usage if ways.kv_usage is None else ways.kv_usage
    return structs.replace(said, running=running, waiting=waiting, kv_usage=kv_usage)
