"""The paths by which people look: the state, its events as they come, the history, and the rights of who looks."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer
from penstock.gateway.admin.watch import LISTENERS_MAX, Watch
from penstock.http.server.server import Exchange

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Looks:
    """Those paths, as handlers of routes."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", "/admin/state", lambda exchange, _: answer(exchange, self._watch.state()))
        routes.add("GET", "/admin/events", self._listen)
        routes.add("GET", "/admin/history", lambda exchange, _: answer(exchange, self._watch.curves()))
        routes.add(
            "GET",
            "/admin/access",
            lambda exchange, _: answer(
                exchange, {"writes": routes.auth.may_change(exchange), "name": routes.auth.operator(exchange)}
            ),
        )

    def _listen(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        if self._watch.is_full:
            raise AdminError(429, "overload", f"{LISTENERS_MAX} listeners are connected already.")
        exchange.start(200, _SSE_HEADERS, length=None)
        if exchange.method == "HEAD":
            exchange.end()
        else:
            self._watch.listen(exchange)
