"""What may an operator do about who decides? `POST /admin/decider/step-down`: let another gateway of the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer
from penstock.http.server.server import Exchange


class DeciderVerbs:
    """The verb, as a handler of a route. `step_down` returns why it can't be, or nothing."""

    def __init__(self, step_down: Callable[[], str]) -> None:
        self._step_down = step_down

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("POST", "/admin/decider/step-down", self._steps_down)

    def _steps_down(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        if why := self._step_down():
            raise AdminError(409, "conflict", why)
        answer(exchange, {"decides": False})
