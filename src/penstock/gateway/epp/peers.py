"""Whose word about endpoints counts how far? A proxy's own word counts for its own requests only.

A proxy reports what became of a request, and nobody here has seen it: it may lie, or only its own network is broken. So
its failures eject an endpoint from the choice of its own connection, by the rule for everybody
(`core/endpoints/health.py`), and have the endpoint probed at once. If the probe finds no engine either, all leave it.
An endpoint that is the only one for a model is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.dispatch import fit
from penstock.core.dispatch.fit import Kind
from penstock.core.endpoints.endpoint import LACKS_S
from penstock.core.endpoints.health import Health
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Request
from penstock.core.values.settings import HealthSettings

PEERS_MAX = 1_000  # connections with failures; a fleet of Envoys has some hundreds
ENDPOINTS_MAX = 4_096


class ProxyView:
    """The endpoints as one proxy's connection finds them."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._health: dict[str, Health] = {}  # of endpoints that failed since they last answered well
        self._lacks: dict[tuple[str, Kind], float] = {}  # what they refused to it: until when

    def failed(self, endpoint: str, failure: Failure, now: float, *, retry_after_s: float = 0.0) -> None:
        """Note a failure of one of its requests."""
        health = self._health.get(endpoint)
        if health is None:
            if len(self._health) >= ENDPOINTS_MAX:  # most of them are gone by now
                self._health.clear()
            health = self._health[endpoint] = Health(self._settings, up=True)
        if failure is Failure.BUSY:
            health.refused(now, retry_after_s)
        else:
            health.failed(now)

    def well(self, endpoint: str) -> None:
        """Note a good answer."""
        self._health.pop(endpoint, None)

    def refused(self, endpoint: str, kinds: Iterable[Kind], now: float) -> None:
        """Note that an endpoint does not take requests of these kinds."""
        if len(self._lacks) >= ENDPOINTS_MAX:
            self._lacks.clear()
        for kind in kinds:
            self._lacks[endpoint, kind] = now + LACKS_S

    def avoided(self, request: Request, now: float) -> list[str]:
        """Returns the endpoints that do not get its request now."""
        names = [name for name, health in self._health.items() if health.ejected(now) or health.held(now)]
        if self._lacks:
            kinds = fit.kinds_of(request)
            names += [name for (name, kind), until in self._lacks.items() if now < until and kind in kinds]
        return names


class ProxyViews:
    """All of them, by connection."""

    def __init__(self) -> None:
        self._settings = HealthSettings()
        self._peers: BoundedMap[str, ProxyView] = BoundedMap(PEERS_MAX)

    def follow(self, settings: HealthSettings) -> None:
        """Judge by these settings from now on; what was seen before is forgotten."""
        if settings != self._settings:
            self._settings = settings
            self._peers = BoundedMap(PEERS_MAX)

    def of(self, connection: str) -> ProxyView:
        """Returns the peer at the other end."""
        return self._peers.renewed_or(connection, lambda: ProxyView(self._settings))
