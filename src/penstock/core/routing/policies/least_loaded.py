"""Routing: the endpoint with the least load for its size.

Load is the ledger's (own leases corrected by readings, docs/design.md#load), so a burst between two readings spreads
instead of herding. Endpoints that are equally loaded take turns: so one that comes late is not given all that the
others were given before.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.routing.policies.base import LOAD, Context, RoutingPolicy


class LeastLoaded(RoutingPolicy):
    """Least load per slot."""

    scores_by: str | None = LOAD

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        return least_loaded(endpoints, context.now)
