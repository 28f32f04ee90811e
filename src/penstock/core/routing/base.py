"""What a routing policy is asked: of these open endpoints, which one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.core.endpoint import Endpoint
from penstock.core.request import Request


class RoutingPolicy(Protocol):
    """Chooses late: at dispatch, among endpoints that admission leaves open."""

    def choose(self, request: Request, endpoints: Sequence[Endpoint], *, now: float) -> Endpoint:
        """One of `endpoints` (never empty, all serve the request's model)."""
        ...
