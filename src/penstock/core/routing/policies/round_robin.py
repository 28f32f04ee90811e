"""Routing: take turns, per model."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context, RoutingPolicy

MODELS_MAX = 1024  # cursors kept; past that all start anew, which costs one uneven turn


class RoundRobin(RoutingPolicy):
    """The open endpoint that follows the one chosen last for the same model, in order of configuration."""

    takes_turns = True

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        model = context.request.model
        last = self._last.get(model, -1)
        chosen = min(endpoints, key=lambda endpoint: (endpoint.index <= last, endpoint.index))
        if len(self._last) >= MODELS_MAX and model not in self._last:
            self._last.clear()
        self._last[model] = chosen.index
        return chosen
