"""Routing: the endpoint that holds the longest prefix of the prompt, as far as we sent it there.

Among those that hold equally much, the least loaded one. If none holds anything, the session's home, or the least
loaded one. Load matters only there: `load_balanced_kv` and `predicted_ttft` weigh it against the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.routing.policies.base import Context, RoutingPolicy
from penstock.core.routing.policies.least_loaded import LeastLoaded
from penstock.core.routing.policies.session import SessionAffinity
from penstock.core.values.settings import RoutingSettings


class PrefixAware(RoutingPolicy):
    """Longest match first."""

    uses_prefix = True
    uses_session = True
    scored_by: str | None = "tokens held"

    def __init__(self, settings: RoutingSettings, draw: Callable[[], float]) -> None:
        super().__init__(settings, draw)
        self.by_load = LeastLoaded(settings, draw)
        self.by_session = SessionAffinity(settings, draw)

    def judge(self, endpoints: Sequence[Endpoint], context: Context) -> RoutingPolicy:
        matched = context.matched
        for endpoint in endpoints if matched else ():
            if matched.get(endpoint.index):
                return self
        return self.by_session if context.home in endpoints else self.by_load

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        """Returns how many tokens each endpoint holds: here the most is best."""
        matched = context.matched
        return [float(matched.get(e.index, 0)) for e in endpoints]

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:
        most = max(scores)
        return least_loaded([e for e, held in zip(endpoints, scores, strict=True) if held == most], context.now)

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        matched = context.matched
        if matched:
            alive = context.alive()
            most = max((matched.get(e.index, 0) for e in alive), default=0)
            if most:
                return [e for e in alive if matched.get(e.index, 0) == most]
        return () if context.home is None else (context.home,)
