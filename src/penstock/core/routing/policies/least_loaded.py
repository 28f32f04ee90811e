"""Routing: the endpoint with the least load for its size.

Load is the ledger's (own leases corrected by readings, docs/design.md#load), so a burst between two readings spreads
instead of herding. Endpoints that are equally loaded take turns: so one that joins late is not given all that the
others were given before.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, by_turn
from penstock.core.routing.policies.base import LOAD, Context, RoutingPolicy


class LeastLoaded(RoutingPolicy):
    """Least load per slot, and per weight if weights differ."""

    scored_by: str | None = LOAD

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        now = context.now
        if endpoints[0].weighted:
            return [e.ledger.load(now) / ((e.ledger.slots or 1) * e.weight) for e in endpoints]
        return [e.ledger.load(now) / (e.ledger.slots or 1) for e in endpoints]

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:
        if endpoints[0].weighted:
            return by_turn(endpoints, context.now)
        return super().pick(endpoints, scores, context)
