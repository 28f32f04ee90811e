"""A waiting request's place in its flow's line, and its estimated wait.

The place is exact: 1 is the next one of its flow (tenant path, model, band) to be sent. The wait depends on other
flows; the forecast takes the work before it in its own line, stretched by the share of the others. Positions are
computed in batches, because a line is sorted once for all its requests: O(k log k) for each line concerned, never more
than all that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.flow_queue import Leaf


class QueuePosition(msgspec.Struct, frozen=True):
    """One waiting request's place."""

    position: int  #: 1 is the next of its flow
    eta_s: float | None  #: until it is sent; None as long as nothing is known
    waited_s: float  #: all its visits to the queue together


def ranked(entries: Iterable[Entry], bands: Sequence[Band]) -> Iterator[tuple[Entry, int, float]]:
    """Yields entries that wait, each with its position (1 is the next) and the work before it in its own line."""

    def turn(entry: Entry) -> tuple[bool, tuple[int, float], int]:
        return entry.seq not in bands[entry.band].bumped, entry.key, entry.seq

    asked: dict[Leaf, set[int]] = {}
    for entry in entries:
        asked.setdefault(entry.node.leaves[entry.model], set()).add(entry.seq)
    for leaf, wanted in asked.items():
        ahead = 0.0
        for position, entry in enumerate(sorted(leaf.waiting(), key=turn), 1):
            if entry.seq in wanted:
                yield entry, position, ahead
            ahead += entry.work
