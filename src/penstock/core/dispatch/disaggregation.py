"""Disaggregated prefill: one request, two endpoints, and a lease on each (docs/decisions, docs/policies).

Both leases are taken in the step that pops the request: so a prompt that was computed never waits for a place to be
answered, holding memory where it was computed, and no request holds one half while it waits for the other. The decode
lease is *pending* until the prefill is done: its slot and its memory are taken, its engine knows nothing of it yet.
There is one lease at a time that its driver reports on: first the prefill's, then the decode's; whatever ends the first
other than `prefilled` gives the second back too. Where the two engines meet, the second was sent the request with the
first, and waits for what that computes: its lease is pending all the same, for it shows in no gauge while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.endpoints.lease import NO_EPOCH, Lease
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Entry
from penstock.core.values.request import Usage


class PendingDecodes:
    """The decode leases whose prompts are being computed, by their requests' arrival numbers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.leases: dict[int, Lease] = {}

    def reserve(self, entry: Entry, partners: Sequence[Endpoint], serial: int, now: float) -> Lease:
        """Take the decode half, at the least loaded of the partners. Returns its lease, pending.

        The policy chose by the prompt, not by this.
        """
        assert entry.seq not in self.leases
        chosen = least_loaded(partners, now)
        lease = self._half(entry, chosen.name, chosen, serial, now)
        chosen.ledger.reserve(lease)
        self._pool.took_turn(chosen, partners, serial)
        self.leases[entry.seq] = lease
        return lease

    def _half(self, entry: Entry, name: str, endpoint: Endpoint | None, serial: int, now: float) -> Lease:
        lease = Lease(
            serial,
            endpoint=name,
            epoch=NO_EPOCH if endpoint is None else endpoint.ledger.epoch,
            request_id=entry.request.id,
            now=now,
            prompt_tokens=1,  # the last one is computed there, whatever came over
            output_tokens=entry.estimate.output_tokens,
            streamed=entry.request.streamed,
        )
        lease.transfers(entry.estimate.prompt_tokens - 1)
        return lease

    def take_on(self, entry: Entry, endpoint: str, serial: int, now: float) -> None:
        """Take the decode half that another scheduler chose, also beyond the slots."""
        there = self._pool.get(endpoint)
        self.leases[entry.seq] = self._half(entry, endpoint, there, serial, now)
        if there is not None:
            there.ledger.reserve(self.leases[entry.seq])

    def drop(self, entry: Entry, now: float) -> Endpoint | None:
        """Give it back. The endpoint that has room again; None where nothing was pending, or it is gone."""
        lease = self.leases.pop(entry.seq, None)
        endpoint = None if lease is None else self._pool.holder(lease)
        if lease is not None and endpoint is not None:
            endpoint.ledger.remove(lease, now)
        return endpoint

    def answering(self, entry: Entry) -> Endpoint | None:
        """The endpoint that is to answer; None where it is gone."""
        return self._pool.holder(self.leases[entry.seq])

    def lost(self, entry: Entry) -> bool:
        """True if the endpoint that was to answer is known to be down or gone."""
        endpoint = self.answering(entry)
        return endpoint is None or not endpoint.health.up

    def begin(self, entry: Entry, now: float) -> Lease:
        """Returns the lease of the decode half, which is the request's own now that the prompt is computed."""
        lease = self.leases.pop(entry.seq)
        if (endpoint := self._pool.holder(lease)) is not None:
            endpoint.ledger.begin(lease, now)
            endpoint.dispatches_total += 1
        return lease


def whole_usage(answer: Usage, cached_tokens: int, *, cached_told: bool) -> Usage:
    """Returns what a divided request truly cost.

    Engines count what came over as cached, but it had to be computed elsewhere: `cached_tokens` were cached there.
    """
    return Usage(answer.prompt_tokens, answer.completion_tokens, min(cached_tokens, answer.prompt_tokens), cached_told)
