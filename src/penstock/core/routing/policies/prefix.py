"""Routing: the endpoint that holds the longest prefix of the prompt, as far as we sent it there.

Among those that hold equally much, and where nobody holds anything, the session's home and then the least loaded one.
Load matters only there: whoever wants it weighed against the cache takes `load_balanced_kv` or `predicted_ttft`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.routing.policies.base import LOAD, Context, RoutingPolicy

HELD: Final = "tokens held"


class PrefixAware(RoutingPolicy):
    """Longest match first."""

    uses_prefix = True
    uses_session = True
    scores_by: str | None = HELD

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        matched = context.matched
        most = max((matched.get(e.index, 0) for e in endpoints), default=0) if matched else 0
        self.scores_by = HELD
        if most:
            return least_loaded([e for e in endpoints if matched.get(e.index, 0) == most], context.now)
        if context.home in endpoints:
            assert context.home is not None
            self.scores_by = None
            return context.home
        return self._by_load(endpoints, context)

    def score(self, endpoint: Endpoint, context: Context) -> float:
        return context.matched_tokens(endpoint) if self.scores_by == HELD else super().score(endpoint, context)

    def _by_load(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        self.scores_by = LOAD
        return least_loaded(endpoints, context.now)

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        matched = context.matched
        if matched:
            alive = context.alive()
            most = max((matched.get(e.index, 0) for e in alive), default=0)
            if most:
                return [e for e in alive if matched.get(e.index, 0) == most]
        return () if context.home is None else (context.home,)
