"""Routing: the endpoint with the least load for its size.

Load is the ledger's (own leases, corrected by observations, DESIGN §4.4), so a burst between two readings spreads
instead of herding. Endpoints that are equally loaded take turns by what they were given so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoint import Endpoint
from penstock.core.request import Request


class LeastLoaded:
    """Least load per slot."""

    def choose(self, request: Request, endpoints: Sequence[Endpoint], *, now: float) -> Endpoint:  # noqa: ARG002
        return min(
            endpoints,
            key=lambda endpoint: (
                endpoint.ledger.load(now) / max(1, endpoint.slots),
                endpoint.dispatches_total,
                endpoint.index,
            ),
        )
