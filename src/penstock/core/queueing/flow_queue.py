"""One leaf of the queue tree: the requests of one flow for one model, in the order its ordering asks for.

The key of an entry is fixed when it enters, so one heap serves every ordering, the least first. `shortest_first` ages
linearly, and linear ageing needs no re-sorting: cost − rate·(now − arrived) orders like cost + rate·arrived. Ties go to
the earlier arrival. A request that comes back after a refusal keeps its arrival number and so its place. Removal marks
an entry dead and leaves the heap to drop it later: O(log n) amortised, and the heap is never more than half dead.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import islice

from penstock.core.queueing.entry import Entry
from penstock.core.values.lifecycle import State

FRONT = 128  # entries put in order at once: each is looked at several times before it is gone
AGEING_WORK_PER_S = 50.0  # a request of 1,500 tokens is overtaken for at most half a minute, then it is the oldest


class Leaf:
    """A queue ordered by (key, arrival)."""

    __slots__ = ("_front", "_heap", "calm_s", "live")

    def __init__(self) -> None:
        self._front: list[Entry] = []  # the first ones in order, as far as they were looked for
        self._heap: list[tuple[tuple[int, float], int, int, Entry]] = []
        self.live = 0
        self.calm_s = math.inf  # when a short wait was last seen; only for bands with shedding

    def __len__(self) -> int:
        return self.live

    def push(self, entry: Entry) -> None:
        """Queue `entry`; each time it is queued is another visit."""
        entry.visit += 1
        heapq.heappush(self._heap, (entry.key, entry.seq, entry.visit, entry))
        self.live += 1
        front = self._front
        if front and (entry.key, entry.seq) < (front[-1].key, front[-1].seq):
            front.clear()
        elif len(front) == self.live - 1 < FRONT:
            front.append(entry)

    def remove(self, entry: Entry) -> None:
        """Remove `entry` from any position, after its state has ceased to be `WAITING`."""
        assert entry.state is not State.WAITING
        self.live -= 1
        if entry in self._front:
            self._front.remove(entry)
        if len(self._heap) > 2 * self.live + 16:
            self._heap = [item for item in self._heap if _alive(item)]
            heapq.heapify(self._heap)
        else:
            self._trim()

    def rekeyed(self) -> None:
        """Sort the entries again, because their keys have changed."""
        self._heap = [(item[3].key, *item[1:]) for item in self._heap if _alive(item)]
        heapq.heapify(self._heap)
        self._front.clear()

    def head(self) -> Entry | None:
        """Returns the next entry; None if the queue is empty."""
        heap = self._heap
        return heap[0][3] if heap else None

    def waiting(self) -> Iterator[Entry]:
        """Yields the queued entries, in no order."""
        for item in self._heap:
            if _alive(item):
                yield item[3]

    def in_order(self) -> Iterator[Entry]:
        """Yields the entries from the head on, without disturbing the heap; O(log k) for the k-th."""
        heap = self._heap
        if not heap:
            return
        if _alive(heap[0]):
            yield heap[0][3]  # usually one is enough
        front = sorted([(heap[at][0], heap[at][1], at) for at in (1, 2) if at < len(heap)])
        while front:
            _, _, at = heapq.heappop(front)
            if _alive(heap[at]):
                yield heap[at][3]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(front, (heap[child][0], heap[child][1], child))

    def front(self, count: int) -> list[Entry]:
        """Returns the first `count` entries in order, at most half of `FRONT`. Most are known from the last time."""
        if len(self._front) < min(count, self.live):
            self._front = list(islice(self.in_order(), FRONT))
        return self._front[:count]

    def _trim(self) -> None:
        heap = self._heap
        while heap and not _alive(heap[0]):
            heapq.heappop(heap)


def _alive(item: tuple[tuple[int, float], int, int, Entry]) -> bool:
    _, _, visit, entry = item
    return entry.visit == visit and entry.state is State.WAITING


def fcfs(entry: Entry, now: float) -> float:  # noqa: ARG001
    """Returns a key for the order of arrival: its time, which survives a change of scheduler."""
    return now


def deadline(entry: Entry, now: float) -> float:  # noqa: ARG001
    """Returns a key for the earliest deadline first; requests without one come last, in order of arrival."""
    return entry.deadline_s


def shortest_first(entry: Entry, now: float) -> float:
    """Returns a key for the least estimated work first, with ageing."""
    return entry.work + AGEING_WORK_PER_S * now


ORDERINGS: dict[str, Callable[[Entry, float], float]] = {
    "fcfs": fcfs,
    "deadline": deadline,
    "shortest_first": shortest_first,
}
