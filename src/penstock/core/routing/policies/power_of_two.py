"""Routing: of two endpoints drawn by lot, the less loaded one.

With news of load that is old, all routers that pick the least loaded endpoint pick the same one; two drawn by lot keep
nearly the same balance and cannot herd (Mitzenmacher 2000). Useful if several gateways share endpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, by_turn
from penstock.core.routing.policies.base import Context
from penstock.core.routing.policies.least_loaded import LeastLoaded


class PowerOfTwo(LeastLoaded):
    """The less loaded of two."""

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:
        if len(endpoints) <= 2:
            return super().pick(endpoints, scores, context)
        if endpoints[0].weighted:
            return by_turn(self._drawn(list(endpoints)), context.now)
        first = int(self.draw() * len(endpoints))
        second = int(self.draw() * (len(endpoints) - 1))
        second += second >= first
        return super().pick((endpoints[first], endpoints[second]), [scores[first], scores[second]], context)

    def _drawn(self, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Two of the endpoints, each with a chance by its weight."""
        drawn: list[Endpoint] = []
        for _ in range(2):
            left = self.draw() * sum([e.weight for e in endpoints])
            at = 0
            while at < len(endpoints) - 1 and left >= endpoints[at].weight:
                left -= endpoints[at].weight
                at += 1
            drawn.append(endpoints.pop(at))
        return drawn
