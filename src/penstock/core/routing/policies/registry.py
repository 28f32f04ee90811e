"""The routing policies by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.routing.policies.base import RoutingPolicy
from penstock.core.routing.policies.kv import KvAware
from penstock.core.routing.policies.least_loaded import LeastLoaded
from penstock.core.routing.policies.lmetric import Lmetric
from penstock.core.routing.policies.load_balanced_kv import LoadBalancedKv
from penstock.core.routing.policies.power_of_two import PowerOfTwo
from penstock.core.routing.policies.predicted_ttft import PredictedTtft
from penstock.core.routing.policies.prefix import PrefixAware
from penstock.core.routing.policies.round_robin import RoundRobin
from penstock.core.routing.policies.session import SessionAffinity
from penstock.core.values.settings import RoutingSettings

Draw = Callable[[], float]

POLICIES: dict[str, Callable[[RoutingSettings, Draw], RoutingPolicy]] = {
    "predicted_ttft": lambda settings, _: PredictedTtft(settings.affinity_escape_s),
    "least_loaded": lambda _settings, _draw: LeastLoaded(),
    "round_robin": lambda _settings, _draw: RoundRobin(),
    "power_of_two": lambda _, draw: PowerOfTwo(draw),
    "session": lambda _settings, _draw: SessionAffinity(),
    "prefix": lambda _settings, _draw: PrefixAware(),
    "kv": lambda _settings, _draw: KvAware(),
    "load_balanced_kv": lambda settings, _: LoadBalancedKv(settings.imbalance_threshold),
    "lmetric": lambda _settings, _draw: Lmetric(),
}
