"""Routing policies to compare with, which a gateway does not offer: shipped ones do about as well (docs/results.md)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, by_turn
from penstock.core.routing.policies.base import Context, RoutingPolicy
from penstock.core.routing.policies.least_loaded import LeastLoaded
from penstock.core.routing.policies.registry import POLICIES


class Lmetric(RoutingPolicy):
    """New prompt tokens times batch size, the least of it (LMetric, arXiv 2603.15202).

    One product stands for both pressures on an engine, its prefill queue and its decoding batch; there is nothing to
    tune. Both factors are taken plus one, so that an idle endpoint or a fully cached prompt does not cancel the other.
    """

    uses_prefix = True
    scored_by: str | None = "new prompt tokens × batch"

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        return [
            (context.prefill_tokens(e) + context.uncached_tokens(e)) * (context.load(e) + 1.0) / e.weight
            for e in endpoints
        ]


class PowerOfTwo(LeastLoaded):
    """Of two endpoints drawn by lot, the less loaded one (Mitzenmacher 2000).

    Among routers with old news of load two drawn by lot keep nearly the same balance as the least loaded and cannot
    herd. One queue has no such news.
    """

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


COMPARED = {"lmetric": Lmetric, "power_of_two": PowerOfTwo}


def register() -> None:
    """Let every command of the bench take them by name."""
    POLICIES.update(COMPARED)
