"""Routing: of two endpoints drawn by lot, the less loaded one.

With news of load that is old, all routers that pick the least loaded endpoint pick the same one; two drawn by lot keep
nearly the same balance and cannot herd (Mitzenmacher 2000). Worth it where several gateways share endpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context
from penstock.core.routing.policies.least_loaded import LeastLoaded


class PowerOfTwo(LeastLoaded):
    """The less loaded of two."""

    spreads_evenly = False

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:
        if len(endpoints) <= 2:
            return super().pick(endpoints, scores, context)
        first = int(self.draw() * len(endpoints))
        second = int(self.draw() * (len(endpoints) - 1))
        second += second >= first
        return super().pick((endpoints[first], endpoints[second]), [scores[first], scores[second]], context)
