"""When must the scheduler be asked again: a set of named times, the earliest first.

One time per key; setting a key again replaces it. A heap with lazy deletion, rebuilt when more than half of it is
dead, so its size is bounded by the number of live keys.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """Named points in time (seconds, monotonic)."""

    __slots__ = ("_heap", "_order", "_when", "soonest")

    def __init__(self) -> None:
        self._when: dict[Key, tuple[float, int]] = {}  # the time, and which heap entry stands for it
        self._heap: list[tuple[float, int, Key]] = []
        self._order = 0
        self.soonest = math.inf  #: nothing is due before it; maybe nothing is due then either, once a key was cancelled

    def __len__(self) -> int:
        return len(self._when)

    def set(self, key: Key, when: float) -> None:
        """Set `key` to be due at `when`."""
        current = self._when.get(key)
        if current is not None and current[0] == when:
            return
        self._order += 1
        self._when[key] = (when, self._order)
        heapq.heappush(self._heap, (when, self._order, key))
        self.soonest = min(self.soonest, when)
        if len(self._heap) > 2 * len(self._when) + 64:
            self._heap = [item for item in self._heap if self._stands(item)]
            heapq.heapify(self._heap)

    def set_earlier(self, key: Key, when: float) -> None:
        """Let `key` be due at `when`, unless it is due earlier."""
        current = self._when.get(key)
        if current is None or when < current[0]:
            self.set(key, when)

    def cancel(self, key: Key) -> None:
        """Forget `key`, if it is set."""
        self._when.pop(key, None)

    def next(self) -> float | None:
        """Returns the earliest time; None if nothing is set."""
        heap = self._heap
        while heap:
            if self._stands(heap[0]):
                self.soonest = heap[0][0]
                return self.soonest
            heapq.heappop(heap)
        self.soonest = math.inf
        return None

    def due(self, now: float, *, limit: float = math.inf) -> list[Key]:
        """Remove and return up to `limit` due keys, in order."""
        keys: list[Key] = []
        while len(keys) < limit and (when := self.next()) is not None and when <= now:
            key = heapq.heappop(self._heap)[2]
            del self._when[key]
            keys.append(key)
        return keys

    def _stands(self, item: tuple[float, int, Key]) -> bool:
        """Whether its key is still due then: neither reset nor cancelled."""
        current = self._when.get(item[2])
        return current is not None and current[1] == item[1]
