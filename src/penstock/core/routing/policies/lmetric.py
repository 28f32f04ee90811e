"""Routing: new prompt tokens times batch size, the least of it (LMetric, arXiv 2603.15202).

One product stands for both pressures on an engine, its prefill queue and its decoding batch; there is nothing to tune.
Both factors are taken plus one, so that an idle endpoint or a fully cached prompt does not cancel the other factor.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context, RoutingPolicy


class Lmetric(RoutingPolicy):
    """Least product."""

    uses_prefix = True
    scored_by: str | None = "new prompt tokens × batch"

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        return [
            (context.prefill_tokens(e) + context.uncached_tokens(e)) * (context.load(e) + 1.0) / e.weight
            for e in endpoints
        ]
