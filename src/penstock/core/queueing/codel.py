"""Shedding best-effort requests of flows with a standing queue (docs/design.md#overload).

After CoDel (RFC 8289; K. Nichols, V. Jacobson): a queue that empties now and then is good, however long; one with its
shortest wait above a *target* for a whole *interval* only delays everybody. As in FQ-CoDel (RFC 8290) each flow is
judged alone, so that those under their share are not shed. CoDel's law of slowly more frequent drops is not used: it
waits for TCP to slow down, and clients do not. Instead, as in Facebook's variant for requests (B. Maurer, "Fail at
scale", 2015), while a queue stands, no request waits longer than twice the target: one that is estimated to is refused
on arrival, and one that does anyway is dropped from the head. One short wait ends it.
"""

from __future__ import annotations

import math

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.flow_queue import Leaf
from penstock.core.values.settings import BandSettings

TARGETS = 2.0  # waits allowed while a queue stands, in targets: between one and two they are fine


def entered(band: BandSettings, entry: Entry, now: float) -> None:
    """Note that a request joined its flow's queue: one that was empty can't stand yet."""
    leaf = _leaf(entry)
    if band.shed_target_s is not None and (len(leaf) == 1 or leaf.calm_s == math.inf):
        leaf.calm_s = now + band.shed_target_s  # before that no request can have waited longer


def leaves(band: BandSettings, entry: Entry, now: float) -> None:
    """Note that a request is about to be sent. A short wait at the head of its flow ends a standing queue.

    How soon a request went that overtook others proves nothing.
    """
    if band.shed_target_s is not None and now - entry.in_line_since_s <= band.shed_target_s:
        leaf = _leaf(entry)
        if leaf.head() is entry:
            leaf.calm_s = now


def due_s(band: BandSettings, entry: Entry) -> float:
    """Returns when a waiting request is to be shed if no short wait is seen in its flow before; infinity: never."""
    if band.shed_target_s is None:
        return math.inf
    allowed_s = entry.in_line_since_s + TARGETS * band.shed_target_s
    return max(allowed_s, _leaf(entry).calm_s + band.shed_interval_s)


def refuses(band: BandSettings, entry: Entry, wait_s: float | None, now: float) -> bool:
    """True if a newcomer in the queue is to be refused for its estimated wait. `wait_s`: None while unknown."""
    if band.shed_target_s is None or wait_s is None or wait_s <= TARGETS * band.shed_target_s:
        return False
    return now >= _leaf(entry).calm_s + band.shed_interval_s


def _leaf(entry: Entry) -> Leaf:
    return entry.node.leaves[entry.model]
