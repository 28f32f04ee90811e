"""The routing policies by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.routing.base import RoutingPolicy
from penstock.core.routing.least_loaded import LeastLoaded
from penstock.core.routing.round_robin import RoundRobin

POLICIES: dict[str, Callable[[], RoutingPolicy]] = {
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
}
