"""Routing: take turns, per model."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.endpoint import Endpoint
from penstock.core.request import Request

MODELS_MAX = 1024  # cursors kept; past that all start anew, which costs one uneven turn


class RoundRobin:
    """The open endpoint that follows the one chosen last for the same model, in order of configuration."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def choose(self, request: Request, endpoints: Sequence[Endpoint], *, now: float) -> Endpoint:  # noqa: ARG002
        last = self._last.get(request.model, -1)
        chosen = min(endpoints, key=lambda endpoint: (endpoint.index <= last, endpoint.index))
        if len(self._last) >= MODELS_MAX and request.model not in self._last:
            self._last.clear()
        self._last[request.model] = chosen.index
        return chosen
