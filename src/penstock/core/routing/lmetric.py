"""Routing: new prompt tokens times batch size, the least of it (LMetric, arXiv 2603.15202).

One product stands for both pressures on an engine, its prefill queue and its decoding batch; there is nothing to tune.
Both factors are taken plus one, so that neither an idle endpoint nor a wholly cached prompt makes the other one moot.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoint import Endpoint
from penstock.core.routing.base import Context, RoutingPolicy


class Lmetric(RoutingPolicy):
    """Least product."""

    uses_prefix = True

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        matched, now, prompt_tokens = context.matched, context.now, context.prompt_tokens

        def score(endpoint: Endpoint) -> tuple[float, int, int]:
            ledger = endpoint.ledger
            uncached = max(1, prompt_tokens - matched.get(endpoint.index, 0))
            product = (ledger.prefill_left(now) + uncached) * (ledger.load(now) + 1.0)
            return product, endpoint.last_lease, endpoint.index

        return min(endpoints, key=score)
