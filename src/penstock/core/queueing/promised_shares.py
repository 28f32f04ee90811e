"""Which bands are owed of the share of service that they were promised (`min_share`), whatever waits above them?

A band with work is credited its share of all that is sent, and debited what is sent of its own while others wait above
it. What is sent counts as estimated, and in the end as it was: what an answer turns out to be longer or shorter is
settled as it grows and when it ends. Else a band of long answers would get a multiple of its share until their lengths
are learned, and one beside long answers next to nothing. What a band gets while nobody above it wants anything is not
held against it.
"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues

CREDIT_REQUESTS_MAX = 64.0  # what may be saved up or owed, in requests of the size at hand


class PromisedShares:
    """Credits of the bands that have a share."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.reconfigured()

    def reconfigured(self) -> None:
        """Perhaps other bands from now on."""
        self._promised = [band for band in self._queues.bands if band.settings.min_share > 0]

    def owed(self) -> list[Band]:
        """Returns the bands with work that got less than they were promised."""
        if not self._promised:
            return self._promised
        return [band for band in self._promised if band.credit > 0 and band.tree.root.waiting]

    def sent(self, entry: Entry, chosen: Endpoint | None = None) -> None:
        """Count the work of a request that was sent, as it is estimated, for and against the shares.

        `chosen`: where it went, from the queue. A band that is owed was asked before, so if that endpoint is not open
        to it, its own ceiling or another limit of its own kept it out.
        """
        if not self._promised:
            return
        rank = entry.request.band
        own = self._queues.bands[rank]
        above = any(band.tree.root.sendable for band in self._queues.bands[:rank])
        counted = []
        for band in self._promised:
            if band is own:
                if above:
                    counted.append((band, band.settings.min_share - 1.0))
            elif band.credit < 0 or (band.tree.root.sendable and (band.credit <= 0 or chosen in band.open)):
                counted.append((band, band.settings.min_share))
        entry.charge.counted_in, entry.charge.counted = counted, 0.0
        self.settle(entry, entry.charge.work)

    def settle(self, entry: Entry, work: float) -> None:
        """Correct what was counted for an entry: by now its `work` is known, or likely, to be that much."""
        more = work - entry.charge.counted
        if not more or entry.charge.counted_in is None:
            return
        entry.charge.counted = work
        most = CREDIT_REQUESTS_MAX * max(entry.charge.work, work)
        for band, part in entry.charge.counted_in:
            before = band.credit
            band.credit = min(max(before + part * more, -most), most)
            if before <= 0 < band.credit and not band.tree.root.sendable:
                band.credit = 0.0  # nothing is saved up by a band that asks for nothing, or is held
