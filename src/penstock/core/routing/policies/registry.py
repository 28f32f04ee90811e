"""The routing policies by their names in the settings.

A new one needs its file, its section or page in docs/policies and a line here: the conformance suite tests every entry.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.routing.policies.base import RoutingPolicy
from penstock.core.routing.policies.kv import KvAware
from penstock.core.routing.policies.least_loaded import LeastLoaded
from penstock.core.routing.policies.load_balanced_kv import LoadBalancedKv
from penstock.core.routing.policies.predicted_ttft import PredictedTtft
from penstock.core.routing.policies.prefix import PrefixAware
from penstock.core.routing.policies.round_robin import RoundRobin
from penstock.core.routing.policies.session import SessionAffinity
from penstock.core.values.settings import RoutingSettings

Draw = Callable[[], float]

POLICIES: dict[str, Callable[[RoutingSettings, Draw], RoutingPolicy]] = {
    "predicted_ttft": PredictedTtft,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "session": SessionAffinity,
    "prefix": PrefixAware,
    "kv": KvAware,
    "load_balanced_kv": LoadBalancedKv,
}
