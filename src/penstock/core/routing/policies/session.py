"""Routing: the requests of one session go to one endpoint.

A session that is new is given a home by consistent hashing with bounded load (Mirrokni et al. 2018): of the endpoints
in an order that depends on the session alone (the highest random weight first), the first that is open and would not
exceed the average load by more than a quarter. From then on it stays there; when it has to move, because its home
failed or `affinity_wait` passed, it stays at the new endpoint, which then has its cache. So an endpoint that leaves
moves only its own sessions, and one that comes back is given new ones, not a stampede of its old ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.base import Context, RoutingPolicy
from penstock.core.routing.policies.least_loaded import LeastLoaded
from penstock.core.values.settings import RoutingSettings

LOAD_BOUND = 1.25  # times the average; less moves more new sessions away from their hashed home
_PRIME = (1 << 61) - 1
_MASK = (1 << 64) - 1


class SessionAffinity(RoutingPolicy):
    """Home first; a home by hash for those that have none."""

    uses_session = True

    def __init__(self, settings: RoutingSettings, draw: Callable[[], float]) -> None:
        super().__init__(settings, draw)
        self.by_load = LeastLoaded(settings, draw)

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        """Home first; otherwise the pair's hash, or infinity if the load is too high."""
        home, session = context.home, context.request.session
        if session is None:
            return self.by_load.score(endpoints, context)
        if home in endpoints:
            return [0.0 if e is home else math.inf for e in endpoints]
        loads = [context.load(e) for e in endpoints]
        sizes = [e.slots * e.weight for e in endpoints]
        share = LOAD_BOUND * (sum(loads) + 1.0) / (sum(sizes) or 1.0)
        within = [load + 1.0 <= math.ceil(share * size) for size, load in zip(sizes, loads, strict=True)]
        key, bounded = _number(session), any(within)
        return [_lot(key, e) if fits or not bounded else math.inf for e, fits in zip(endpoints, within, strict=True)]

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        return () if context.home is None else (context.home,)


def _number(text: str) -> int:
    """The same for the same text in every process, which Python's own hashes are not."""
    return int.from_bytes(text.encode(), "little") % _PRIME


def _lot(key: int, endpoint: Endpoint) -> float:
    """Returns the hash of a session and an endpoint: the least is its home.

    With weights w the chance to draw the least is w / sum of w, if a draw u in (0, 1) counts as w / ln u.
    """
    drawn = _drawn(key, endpoint.name)
    return endpoint.weight / math.log((drawn + 0.5) / (_MASK + 1)) if endpoint.weighted else -float(drawn)


def _drawn(key: int, name: str) -> int:
    """A session's and an endpoint's number together (the finalizer of splitmix64, which mixes every bit into all)."""
    z = (key + 0x9E3779B97F4A7C15 * (_number(name) + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
