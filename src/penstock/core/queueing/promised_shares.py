"""Bands that are owed part of their promised share of service (`min_share`).

Each dispatch, of any band, credits a band that has work with its share of it. The band's own dispatches are debited,
but only while higher bands wait for the same endpoints. All counts are of work, so requests of very different sizes are
not cut to each other's. Dispatches count by estimate, and are settled as the answer grows and when it ends. Otherwise a
band of long answers would get a multiple of its share until their lengths are learned, and one beside long answers next
to nothing. Service without competition from higher bands is not debited: of what a band gets because those above can't
use it, one request counts, so that it is owed again soon when all compete. Of a credit, an idle band keeps one
request's.
"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues

CREDIT_REQUESTS_MAX = 64.0  # one request adds up to a credit or debt of so many of its size


class PromisedShares:
    """Credits of the bands that have a share."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.reconfigured()

    def reconfigured(self) -> None:
        """Perhaps other bands from now on."""
        self._promised = [band for band in self._queues.bands if band.settings.min_share > 0]
        self.any = bool(self._promised)  #: whether any band has a share

    def owed(self) -> list[Band]:
        """Returns the bands with work that got less than they were promised."""
        if not self._promised:
            return self._promised
        return [band for band in self._promised if band.credit > 0 and band.tree.root.waiting]

    def owed_with(self, entry: Entry) -> bool:
        """Whether its band would be owed if a running request went back to the queue, so that it would be next."""
        band = self._queues.bands[entry.band]
        own = sum([counted for counted_in, _, counted in entry.counted_in or () if counted_in is band])
        return band.settings.min_share > 0 and band.credit - own > 0

    def sent(self, entry: Entry, chosen: Endpoint | None = None) -> None:
        """Count the work of a request that was sent, as it is estimated, for and against the shares.

        `chosen`: its endpoint, from the queue. A band that is owed was asked before, so if that endpoint is not open to
        it, its own ceiling or another of its limits excluded it.
        """
        if not self._promised:
            return
        own = self._queues.bands[entry.band]
        counted_in: list[tuple[Band, float, float]] = []
        for band in self._promised:
            waits = band.tree.root.sendable > 0
            if band is own:
                if self._at_a_cost(entry, chosen):
                    counted_in.append((band, band.settings.min_share - 1.0, 0.0))
            elif band.credit < 0 or (waits and (band.credit <= 0 or chosen in band.open)):
                counted_in.append((band, band.settings.min_share, 0.0))
            elif not waits:
                band.credit = min(band.credit, band.settings.min_share * entry.work)
        entry.counted_in = counted_in
        self.settle(entry, entry.work)

    def _at_a_cost(self, entry: Entry, chosen: Endpoint | None) -> bool:
        """Whether requests of higher bands wait for the endpoint that `entry` was sent to, and that counts.

        A band that isn't owed was asked after them, so it got what they can't use. Its debt is one request then.
        """
        above = self._queues.bands[: entry.band]
        waiting = [band.tree.root for band in above if band.tree.root.sendable]
        if chosen is None:
            return bool(waiting)
        if self._queues.bands[entry.band].credit <= -entry.work:
            return False
        return any(chosen.serves(model) for root in waiting for model in root.backlog)

    def settle(self, entry: Entry, work: float) -> None:
        """Correct the count of an entry to its known or expected `work`.

        The bound is one for what is added: it cuts nothing that stands, whatever the size of that. What is taken back
        is what was added, so estimates that are too high leave nothing behind.
        """
        if not entry.counted_in:
            return
        most = CREDIT_REQUESTS_MAX * max(entry.work, work)
        counted_in: list[tuple[Band, float, float]] = []
        for band, part, counted in entry.counted_in:
            before, due = band.credit, part * work
            after = before + due - counted
            if abs(due) > abs(counted):
                after = max(min(before, -most), min(after, max(before, most)))
            if band.settings.min_share <= 0.0 or (before <= 0.0 < after and not band.tree.root.sendable):
                after = 0.0  # nothing is saved up by a band that asks for nothing, is held, or is promised nothing
            band.credit = after
            counted_in.append((band, part, counted + after - before))
        entry.counted_in = counted_in
