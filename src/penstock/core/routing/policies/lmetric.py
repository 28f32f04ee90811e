"""Routing: new prompt tokens times batch size, the least of it (LMetric, arXiv 2603.15202).

One product stands for both pressures on an engine, its prefill queue and its decoding batch; there is nothing to tune.
Both factors are taken plus one, so that neither an idle endpoint nor a wholly cached prompt makes the other one moot.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context, RoutingPolicy


class Lmetric(RoutingPolicy):
    """Least product."""

    uses_prefix = True
    scores_by: str | None = "new prompt tokens × batch"

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        return min(endpoints, key=lambda e: (self.score(e, context), e.last_lease, e.index))

    def score(self, endpoint: Endpoint, context: Context) -> float:
        return (context.prefill_tokens(endpoint) + context.uncached_tokens(endpoint)) * (context.load(endpoint) + 1.0)
