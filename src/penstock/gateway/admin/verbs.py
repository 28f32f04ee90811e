"""An operator's verbs for endpoints: add, drain, resume, remove, set slots.

Nothing is stored: the next start goes by the settings again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

import msgspec

from penstock.config import values
from penstock.config.address import NOWHERE
from penstock.config.problems import Refused
from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, body_of, settings_of
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Exchange

LIST = "/admin/endpoints"


class EndpointVerbs:
    """The verbs, as handlers of routes."""

    def __init__(
        self, endpoints: EndpointRegistry, driver: Driver, state_s: Callable[[Snapshot], Mapping[str, float]]
    ) -> None:
        self._endpoints = endpoints
        self._driver = driver
        self._state_s = state_s  # for how long they have been in their states

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", LIST, self._list)
        routes.add("POST", LIST, self._add)
        routes.add("DELETE", LIST + "/{name}", self._remove)
        routes.add("POST", LIST + "/{name}/drain", self._drain)
        routes.add("POST", LIST + "/{name}/resume", self._resume)
        routes.add("POST", LIST + "/{name}/slots", self._slots)

    def _list(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        snapshot = self._driver.scheduler.snapshot(now=self._driver.now())
        load = {endpoint.name: endpoint for endpoint in snapshot.endpoints}
        state_s = self._state_s(snapshot)
        found = [
            {
                **msgspec.to_builtins(view),
                **msgspec.to_builtins(load.get(view.name)),
                "source": view.source,
                "state_s": state_s.get(view.name),
            }
            for view in self._endpoints.views()
        ]
        answer(exchange, {"endpoints": found})

    def _add(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        endpoint = settings_of({"listen": NOWHERE, "endpoints": [body_of(exchange)]}, "endpoints[0]").endpoints[0]
        try:
            self._endpoints.add(endpoint)
        except ValueError as error:
            raise AdminError(409, "conflict", str(error)) from None
        self._answer(exchange, endpoint.name, 201)

    def _remove(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._known(names)
        self._endpoints.remove(name, at_once=_flag(exchange.query, "force"))
        self._answer(exchange, name, 202 if name in self._endpoints else 200)

    def _drain(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._known(names)
        self._endpoints.drain(name)
        self._answer(exchange, name)

    def _resume(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._known(names)
        self._endpoints.resume(name)
        self._answer(exchange, name)

    def _slots(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._known(names)
        try:
            slots = values.slots(body_of(exchange).get("slots"))
        except Refused as refused:
            raise AdminError(400, "bad_request", f"slots: {refused}", param="slots") from None
        self._endpoints.slots(name, slots)
        self._answer(exchange, name)

    def _known(self, names: Mapping[str, str]) -> str:
        name = names["name"]
        if name not in self._endpoints:
            raise AdminError(404, "endpoint_not_found", f"There is no endpoint `{name[:200]}`.", param="name")
        return name

    def _answer(self, exchange: Exchange, name: str, status: int = 200) -> None:
        snapshot = self._driver.scheduler.snapshot(now=self._driver.now())
        now = next((endpoint for endpoint in snapshot.endpoints if endpoint.name == name), None)
        if now is None:
            answer(exchange, {"name": name, "state": "removed"}, status)
        else:
            answer(exchange, {"name": name, "state": now.state, "slots": now.slots, "leases": now.leases}, status)


def _flag(query: str, name: str) -> bool:
    try:
        return parse_qs(query, max_num_fields=100).get(name, ["false"])[-1].lower() in ("true", "1", "yes")
    except ValueError:
        return False
