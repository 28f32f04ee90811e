"""The routing policies by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.routing.base import RoutingPolicy
from penstock.core.routing.kv import Kv
from penstock.core.routing.least_loaded import LeastLoaded
from penstock.core.routing.lmetric import Lmetric
from penstock.core.routing.load_balanced_kv import LoadBalancedKv
from penstock.core.routing.power_of_two import PowerOfTwo
from penstock.core.routing.predicted_ttft import PredictedTtft
from penstock.core.routing.prefix import Prefix
from penstock.core.routing.round_robin import RoundRobin
from penstock.core.routing.session import Session
from penstock.core.settings import RoutingSettings

Draw = Callable[[], float]

POLICIES: dict[str, Callable[[RoutingSettings, Draw], RoutingPolicy]] = {
    "predicted_ttft": lambda settings, _: PredictedTtft(settings.affinity_escape_s),
    "least_loaded": lambda _settings, _draw: LeastLoaded(),
    "round_robin": lambda _settings, _draw: RoundRobin(),
    "power_of_two": lambda _, draw: PowerOfTwo(draw),
    "session": lambda _settings, _draw: Session(),
    "prefix": lambda _settings, _draw: Prefix(),
    "kv": lambda _settings, _draw: Kv(),
    "load_balanced_kv": lambda settings, _: LoadBalancedKv(settings.imbalance_threshold),
    "lmetric": lambda _settings, _draw: Lmetric(),
}
