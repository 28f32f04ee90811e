"""Routing: take turns, per model, in proportion to the endpoints' weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context, RoutingPolicy
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.settings import RoutingSettings

MODELS_MAX = 1024  # with remembered turns; a forgotten one restarts, which costs one uneven turn
ROUND = 1e9  # endpoints: past all there are


class RoundRobin(RoutingPolicy):
    """The open endpoint that follows the one chosen last for the same model, in order of configuration."""

    takes_turns = True

    def __init__(self, settings: RoutingSettings, draw: Callable[[], float]) -> None:
        super().__init__(settings, draw)
        self._last: BoundedMap[str, int] = BoundedMap(MODELS_MAX)

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        """Returns the turns left until each endpoint's own; if weights differ, the progress of its turns."""
        if endpoints[0].weighted:
            return [endpoint.turn for endpoint in endpoints]
        found = self._last.get(context.request.model)
        last = -1 if found is None else found
        return [float(e.index) if e.index > last else e.index + ROUND for e in endpoints]

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:
        chosen = super().pick(endpoints, scores, context)
        self._last.set(context.request.model, chosen.index)
        return chosen
