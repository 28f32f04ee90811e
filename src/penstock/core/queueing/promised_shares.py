"""Bands that are owed part of their promised share of service (`min_share`).

Each dispatch, of any band, credits a band that has work with its share of it. The band's own dispatches are debited,
but only while higher bands wait. Dispatches count by estimate, and are settled as the answer grows and when it ends.
Otherwise a band of long answers would get a multiple of its share until their lengths are learned, and one beside long
answers next to nothing. Service without competition from higher bands is not debited.
"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues

CREDIT_REQUESTS_MAX = 64.0  # maximum credit or debt, in requests of the current size


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
        own = sum([part * entry.counted for counted_in, part in entry.counted_in or () if counted_in is band])
        return band.settings.min_share > 0 and band.credit - own > 0

    def sent(self, entry: Entry, chosen: Endpoint | None = None) -> None:
        """Count the work of a request that was sent, as it is estimated, for and against the shares.

        `chosen`: its endpoint, from the queue. A band that is owed was asked before, so if that endpoint is not open to
        it, its own ceiling or another of its limits excluded it.
        """
        if not self._promised:
            return
        rank = entry.band
        own = self._queues.bands[rank]
        above = any(band.tree.root.sendable for band in self._queues.bands[:rank])
        counted = []
        for band in self._promised:
            if band is own:
                if above:
                    counted.append((band, band.settings.min_share - 1.0))
            elif band.credit < 0 or (band.tree.root.sendable and (band.credit <= 0 or chosen in band.open)):
                counted.append((band, band.settings.min_share))
        entry.counted_in, entry.counted = counted, 0.0
        self.settle(entry, entry.work)

    def settle(self, entry: Entry, work: float) -> None:
        """Correct the count of an entry to its known or expected `work`."""
        more = work - entry.counted
        if not more or entry.counted_in is None:
            return
        entry.counted = work
        most = CREDIT_REQUESTS_MAX * max(entry.work, work)
        for band, part in entry.counted_in:
            before = band.credit
            band.credit = min(max(before + part * more, -most), most)
            if before <= 0 < band.credit and not band.tree.root.sendable:
                band.credit = 0.0  # nothing is saved up by a band that asks for nothing, or is held
