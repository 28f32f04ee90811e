"""Disaggregated prefill: one request, two endpoints, and a lease on each (docs/decisions, docs/policies).

Both leases are taken in the step that pops the request: so a computed prompt never waits for decode while holding
prefill memory, and no request holds one half while it waits for the other. The decode lease is *pending* until the
prefill is done: its slot and its memory are taken, its engine knows nothing of it yet. Its driver reports on one lease:
first the prefill's, then the decode's; any end of the first other than `prefilled` releases the second too. If the two
engines meet, the second gets the request together with the first, and waits for its result: its lease is pending
anyway, because it shows in no gauge while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.endpoints.lease import NO_EPOCH, Lease
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Entry
from penstock.core.values.request import Usage


class PendingDecodes:
    """The decode leases of prompts being computed, by their requests' arrival numbers."""

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
        return Lease(
            serial,
            endpoint=name,
            epoch=NO_EPOCH if endpoint is None else endpoint.ledger.epoch,
            request_id=entry.id,
            now=now,
            prompt_tokens=1,  # the last one is always computed there
            output_tokens=entry.output_tokens,
            streamed=entry.streamed,
            transferred_tokens=entry.prompt_tokens - 1,
        )

    def take_on(self, entry: Entry, endpoint: str, serial: int, now: float) -> None:
        """Take the decode half that another scheduler chose, also beyond the slots."""
        there = self._pool.get(endpoint)
        self.leases[entry.seq] = self._half(entry, endpoint, there, serial, now)
        if there is not None:
            there.ledger.reserve(self.leases[entry.seq])

    def drop(self, entry: Entry, now: float) -> Endpoint | None:
        """Give it back. Returns the endpoint that has room again, if any was pending and is still there."""
        lease = self.leases.pop(entry.seq, None)
        endpoint = None if lease is None else self._pool.holder(lease)
        if lease is not None and endpoint is not None:
            endpoint.ledger.remove(lease, now)
        return endpoint

    def answering(self, entry: Entry) -> Endpoint | None:
        """Returns the decode endpoint, or None if it is gone."""
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
    """Returns a divided request's actual cost.

    Engines count transferred tokens as cached, but they were computed elsewhere: `cached_tokens` were cached there.
    """
    cached_tokens = min(cached_tokens, answer.prompt_tokens)
    return Usage(
        answer.prompt_tokens,
        answer.completion_tokens,
        cached_tokens,
        cached_told=cached_told,
        reasoning_tokens=answer.reasoning_tokens,
    )
