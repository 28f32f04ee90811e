"""Routing: the requests of one session go to one endpoint.

A session that is new is given a home by consistent hashing with bounded load (Mirrokni et al. 2018): of the endpoints
in an order that depends on the session alone (the highest random weight first), the first that is open and would not
exceed the average load by more than a quarter. From then on it stays there; when it has to move, because its home
failed or `affinity_wait` passed, it stays where it moved to, for that is where its cache is. So an endpoint that leaves
moves only its own sessions, and one that comes back is given new ones, not a stampede of its old ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.routing.policies.base import Context, RoutingPolicy

LOAD_BOUND = 1.25  # times the average; less moves more new sessions away from the home their hash says
_PRIME = (1 << 61) - 1
_MASK = (1 << 64) - 1


class SessionAffinity(RoutingPolicy):
    """Home first; a home by hash for those that have none."""

    uses_session = True

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        session = context.request.session
        if session is None:
            return least_loaded(endpoints, context.now)
        if context.home in endpoints:
            assert context.home is not None
            return context.home
        now, key = context.now, _number(session)
        loads = {e: e.ledger.load(now) for e in endpoints}
        share = LOAD_BOUND * (sum(loads.values()) + 1.0) / max(1, sum(e.slots for e in endpoints))
        within = [e for e in endpoints if loads[e] + 1.0 <= math.ceil(share * e.slots)] or endpoints
        return max(within, key=lambda e: (_weight(key, e.name), -e.index))

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        return () if context.home is None else (context.home,)


def _number(text: str) -> int:
    """The same for the same text in every process, which Python's own hashes are not."""
    return int.from_bytes(text.encode(), "little") % _PRIME


def _weight(key: int, name: str) -> int:
    """A session's and an endpoint's lot together (the finalizer of splitmix64, which mixes every bit into all)."""
    z = (key + 0x9E3779B97F4A7C15 * (_number(name) + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
