"""Routing: of two endpoints drawn by lot, the less loaded one.

With news of load that is old, all routers that pick the least loaded endpoint pick the same one; two drawn by lot keep
nearly the same balance and cannot herd (Mitzenmacher 2000). Worth it where several gateways share endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.routing.policies.base import LOAD, Context, RoutingPolicy


class PowerOfTwo(RoutingPolicy):
    """The less loaded of two."""

    scores_by: str | None = LOAD

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw  # from 0 up to 1

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        if len(endpoints) <= 2:
            return least_loaded(endpoints, context.now)
        first = int(self._draw() * len(endpoints))
        second = int(self._draw() * (len(endpoints) - 1))
        return least_loaded((endpoints[first], endpoints[second + (second >= first)]), context.now)
