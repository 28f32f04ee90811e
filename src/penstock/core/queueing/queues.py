"""The waiting requests of all bands: their amounts, bounds, and displacement.

Bounds count three ways (requests, bytes of bodies, estimated prompt tokens), in all and per band. When all is full, a
newcomer of a higher band displaces the youngest of the lowest band that is lower than its own: the youngest has waited
least, so least is lost. A request that came back from an engine was admitted once and is not displaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import top
from penstock.core.values.lifecycle import Event
from penstock.core.values.settings import BandSettings, QueueBounds

DISPLACED_MAX = 64  # waiting requests looked at per band, of which one newcomer may displace all that never ran


class Queues:
    """The waiting requests of all bands."""

    def __init__(self, bands: Sequence[BandSettings], bounds: QueueBounds) -> None:
        self.bands = [Band(band, rank) for rank, band in enumerate(bands)]
        self._bounds = bounds
        self.waiting = 0  #: in the queues of flows
        self.held = 0  #: beside them: those whose sessions wait for memory
        self.bytes = 0
        self.tokens = 0

    def rearrange(self, bands: Sequence[BandSettings], bounds: QueueBounds) -> dict[Band, Band]:
        """Use other bands from now on, matched by name. Returns the heir of each band that is gone.

        That is the next lower one that remains, or the lowest.
        """
        before, wanted = self.bands, {band.name for band in bands}
        by_name = {band.settings.name: band for band in before}
        self.bands = [by_name.get(band.name) or Band(band, rank) for rank, band in enumerate(bands)]
        for rank, (band, settings) in enumerate(zip(self.bands, bands, strict=True)):
            band.settings, band.rank = settings, rank
            band.credit *= settings.min_share > 0
        self._bounds = bounds
        heirs: dict[Band, Band] = {}
        heir = self.bands[-1]
        for band in reversed(before):
            if band.settings.name in wanted:
                heir = band
            else:
                heirs[band] = heir
        return heirs

    def push(self, entry: Entry) -> None:
        """Let `entry` wait. Its state, node, key and estimates are set."""
        self.bands[entry.band].push(entry)
        if entry.held:
            self.held += 1
        else:
            self.waiting += 1
        self.bytes += entry.request.body_bytes
        self.tokens += entry.prompt_tokens

    def let_in(self, entry: Entry) -> None:
        """Let a held `entry` wait in its flow from now on."""
        self.bands[entry.band].let_in(entry)
        self.held -= 1
        self.waiting += 1

    def remove(self, entry: Entry, event: Event) -> None:
        """Take an entry out because of `event`."""
        entry.move(event)
        self.bands[entry.band].remove(entry)
        if entry.held:
            self.held -= 1
        else:
            self.waiting -= 1
        self.bytes -= entry.request.body_bytes
        self.tokens -= entry.prompt_tokens

    @property
    def in_all(self) -> int:
        """How many requests wait, in queues or held."""
        return self.waiting + self.held

    def find(self, seq: int) -> Entry | None:
        """Returns the waiting entry with that arrival number; None if none has it."""
        return next((band.entries[seq] for band in self.bands if seq in band.entries), None)

    def backlog(self, entry: Entry) -> tuple[float, int]:
        """Returns how many of its band a request may keep waiting, as if each flow had as many as its own; and how many
        wait in all.

        So a flow with little to wait for never waits for the sake of one that has much.
        """
        root = self.bands[entry.band].tree.root
        flow = top(entry.node)
        if flow.parent is None:
            return root.waiting, root.waiting
        return min(root.waiting, flow.waiting * root.active_weight / flow.weight), root.waiting

    def over_bounds(self) -> bool:
        """True if more waits in all bands together than may."""
        bounds = self._bounds
        return self.in_all > bounds.requests_max or self.bytes > bounds.bytes_max or self.tokens > bounds.tokens_max

    def room(self, band: int) -> int:
        """Returns how many more requests may wait in a band without displacing another."""
        settings, waiting = self.bands[band].settings, len(self.bands[band].entries)
        room = self._bounds.requests_max - self.in_all
        return max(0, room if settings.requests_max is None else min(room, settings.requests_max - waiting))

    def displaced_by(self, entry: Entry) -> list[Entry] | None:
        """Returns the entries to evict for a newcomer that waits already; None: it has to go itself."""
        bounds, victims = self._bounds, list[Entry]()
        requests = self.in_all - bounds.requests_max
        bytes_, tokens = self.bytes - bounds.bytes_max, self.tokens - bounds.tokens_max
        for band in reversed(self.bands[entry.band + 1 :]):
            for young in islice(reversed(band.entries.values()), DISPLACED_MAX):
                if max(requests, bytes_, tokens) <= 0:
                    return victims
                if young.visit <= 1:
                    victims.append(young)
                    requests -= 1
                    bytes_ -= young.request.body_bytes
                    tokens -= young.prompt_tokens
        return victims if max(requests, bytes_, tokens) <= 0 else None

    def forget(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that was removed, in every band."""
        for band in self.bands:
            band.forget(endpoint)

    def waits_above(self, rank: int, model: str) -> bool:
        """True if requests of a band above that rank wait for the model."""
        return rank > 0 and any(model in band.tree.root.backlog for band in self.bands[:rank])

    def touch(self, endpoint: Endpoint) -> None:
        """Let every band judge `endpoint` again, because something happened to it."""
        if not endpoint.touched:
            endpoint.touched = True
            for band in self.bands:
                if endpoint not in band.unchecked:
                    band.touch(endpoint)

    def touch_all(self, endpoints: Iterable[Endpoint]) -> None:
        """Let every band judge these `endpoints`; bands may be new."""
        for endpoint in endpoints:
            endpoint.touched = False
            self.touch(endpoint)
