"""The routing policies by their names in the settings. One is imported when it is used.

A new one needs its file, its section or page in docs/policies and a line here: the conformance suite tests every entry.
"""

# ruff: noqa: PLC0415  (most gateways use the first one alone)

from __future__ import annotations

from collections.abc import Callable

from penstock.core.routing.policies.base import RoutingPolicy
from penstock.core.routing.policies.predicted_ttft import PredictedTtft
from penstock.core.values.settings import RoutingSettings

Draw = Callable[[], float]


def _least_loaded(settings: RoutingSettings, draw: Draw) -> RoutingPolicy:
    from penstock.core.routing.policies.least_loaded import LeastLoaded

    return LeastLoaded(settings, draw)


def _round_robin(settings: RoutingSettings, draw: Draw) -> RoutingPolicy:
    from penstock.core.routing.policies.round_robin import RoundRobin

    return RoundRobin(settings, draw)


def _session(settings: RoutingSettings, draw: Draw) -> RoutingPolicy:
    from penstock.core.routing.policies.session import SessionAffinity

    return SessionAffinity(settings, draw)


def _prefix(settings: RoutingSettings, draw: Draw) -> RoutingPolicy:
    from penstock.core.routing.policies.prefix import PrefixAware

    return PrefixAware(settings, draw)


def _kv(settings: RoutingSettings, draw: Draw) -> RoutingPolicy:
    from penstock.core.routing.policies.kv import KvAware

    return KvAware(settings, draw)


def _load_balanced_kv(settings: RoutingSettings, draw: Draw) -> RoutingPolicy:
    from penstock.core.routing.policies.load_balanced_kv import LoadBalancedKv

    return LoadBalancedKv(settings, draw)


POLICIES: dict[str, Callable[[RoutingSettings, Draw], RoutingPolicy]] = {
    "predicted_ttft": PredictedTtft,
    "least_loaded": _least_loaded,
    "round_robin": _round_robin,
    "session": _session,
    "prefix": _prefix,
    "kv": _kv,
    "load_balanced_kv": _load_balanced_kv,
}
