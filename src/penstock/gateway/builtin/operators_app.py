"""The operators' paths, maybe at a separate address (`admin.listen`).

Paths that show or change the gateway as a whole: `/admin`, `/metrics`, `/autoscale`, putting engines to sleep. With a
separate address they are 404 at `listen`, like any unknown path. The paths that probes ask are at both.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.model import Settings
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.clients import Clients
from penstock.gateway.identity.origins import Origins
from penstock.gateway.proxy.app import Part
from penstock.gateway.proxy.refusals import Refusals
from penstock.http.server.server import Header, Refusal, SocketExchange

_ALONE = frozenset({"/admin", "/metrics", "/autoscale", "/sleep", "/wake_up"})
#: Engines by their names (`engine_paths.py`).
ENGINE_PATHS = frozenset({"/engines", "/sleep", "/wake_up", "/is_sleeping"})
_BELOW = ("/admin/", "/autoscale/")
_PROBED = frozenset({"/health", "/healthz", "/livez", "/ready", "/readyz", "/version"})


def is_admin(path: str) -> bool:
    return path.startswith("/admin/") or path == "/admin"


def is_engine_path(path: str) -> bool:
    return path in ENGINE_PATHS


def is_operators(path: str) -> bool:
    return path in _ALONE or path.startswith(_BELOW)


class OperatorsApp:
    """The handler behind the server at `admin.listen`."""

    def __init__(self, parts: Sequence[Part], guarded: Part, origins: Origins, refusals: Refusals) -> None:
        self._parts = (guarded, *parts)
        self._guarded = guarded  # checks the sender and its page itself
        self._origins = origins
        self._refusals = refusals
        self._clients = Clients()
        self._root_path = ""

    def follow(self, settings: Settings) -> None:
        self._clients.follow(settings)
        self._root_path = settings.root_path

    def begin(self, exchange: SocketExchange) -> int | None:
        """Refuse other paths. Returns the limit on the body."""
        if self._root_path and exchange.target_path.startswith(self._root_path + "/"):
            exchange.target_path = exchange.target_path[len(self._root_path) :]
        exchange.client = self._clients.address(exchange)
        part = self._part(exchange.target_path)
        if part is None:
            self._refusals.refuse(exchange, Reason.PATH_NOT_FOUND)
            return None
        if part is not self._guarded and self._origins.looks:
            foreign = self._origins.foreign(exchange)
            if foreign is not None:
                self._refusals.refuse(exchange, Reason.FORBIDDEN, foreign)
                return None
        return part.begin(exchange)

    def complete(self, exchange: SocketExchange) -> None:
        part = self._part(exchange.target_path)
        assert part is not None, "`begin` refuses other paths"
        part.complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        """Returns the status, headers and body of the server's refusal of bad HTTP."""
        return self._refusals.refused(exchange, refusal, detail)

    def _part(self, path: str) -> Part | None:
        if not is_operators(path) and path not in _PROBED:
            return None
        return next((part for part in self._parts if part.owns(path)), None)
