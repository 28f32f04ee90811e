"""Which request of one flow goes first: a key that is fixed on arrival, least first.

Keys never change, so one heap serves every ordering. `shortest_first` ages linearly, and linear ageing needs no
re-sorting: cost − rate·(now − arrived) orders like cost + rate·arrived.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.queueing.entry import Entry

AGEING_WORK_PER_S = 50.0  # a request of 1,500 tokens is overtaken for at most half a minute, then it is the oldest


def fcfs(entry: Entry, now: float) -> float:  # noqa: ARG001
    """Returns a key for the order of arrival: its time, which survives a change of scheduler."""
    return now


def deadline(entry: Entry, now: float) -> float:  # noqa: ARG001
    """Returns a key for the earliest deadline first; requests without one come last, in order of arrival."""
    return entry.queue.deadline_s


def shortest_first(entry: Entry, now: float) -> float:
    """Returns a key for the least estimated work first, with ageing."""
    return entry.charge.work + AGEING_WORK_PER_S * now


ORDERINGS: dict[str, Callable[[Entry, float], float]] = {
    "fcfs": fcfs,
    "deadline": deadline,
    "shortest_first": shortest_first,
}
