"""What an operator may do to requests at run time: see why one waits, stop and go on sending, bump one, cancel one."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.dispatch.operator_pauses import TooManyStoppedError
from penstock.core.values.lifecycle import State
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, body_of
from penstock.gateway.admin.story import story
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Exchange

REQUEST = "/admin/requests/{id}"


class RequestVerbs:
    """The verbs, as handlers of routes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._scheduler = driver.scheduler

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", REQUEST, self._explain)
        routes.add("POST", REQUEST + "/bump", self._bump)
        routes.add("POST", REQUEST + "/cancel", self._cancel)
        routes.add("POST", "/admin/pause", self._pause)
        routes.add("POST", "/admin/resume", self._resume)
        routes.add("POST", "/admin/drain", self._drain)

    # --- one request ----------------------------------------------------------------------------------------------

    def _explain(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = names["id"]
        explanation = self._scheduler.explain(name, now=self._driver.now())
        if explanation is None:
            raise AdminError(404, "request_not_found", f"Nothing is known of a request `{name[:200]}` (any more).")
        answer(exchange, {"explanation": explanation, "story": story(explanation)})

    def _bump(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._here(names)
        if self._scheduler.state_of(name) is not State.WAITING:
            raise AdminError(409, "conflict", f"The request `{name[:200]}` does not wait.")
        self._driver.tell(self._scheduler.bumped(name, now=self._driver.now()))
        answer(exchange, {"id": name, "state": self._scheduler.state_of(name)})

    def _cancel(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = self._here(names)
        self._driver.tell(self._scheduler.evicted(name, now=self._driver.now()))
        answer(exchange, {"id": name, "state": self._scheduler.state_of(name) or "cancelled"})

    def _here(self, names: Mapping[str, str]) -> str:
        name = names["id"]
        if self._scheduler.state_of(name) is None:
            raise AdminError(404, "request_not_found", f"The request `{name[:200]}` has ended, or never came.")
        return name

    # --- all, or a model ------------------------------------------------------------------------------------------

    def _pause(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        model = _model(exchange)
        try:
            self._driver.tell(self._scheduler.paused(model, now=self._driver.now()))
        except TooManyStoppedError as error:
            raise AdminError(409, "conflict", str(error)) from None
        self._stopped(exchange)

    def _drain(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        model = _model(exchange)
        try:
            self._driver.tell(self._scheduler.drained(model, now=self._driver.now()))
        except TooManyStoppedError as error:
            raise AdminError(409, "conflict", str(error)) from None
        self._stopped(exchange)

    def _resume(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        self._driver.tell(self._scheduler.resumed(_model(exchange), now=self._driver.now()))
        self._stopped(exchange)

    def _stopped(self, exchange: Exchange) -> None:
        """What is stopped now."""
        snapshot = self._scheduler.snapshot(now=self._driver.now())
        answer(exchange, {"paused": snapshot.paused, "drained": snapshot.drained, "waiting": snapshot.waiting})


def _model(exchange: Exchange) -> str | None:
    """The model that a verb is about; None for all."""
    given = body_of(exchange)
    if given and "model" not in given:  # a misspelt one would stop everything
        raise AdminError(400, "bad_request", "Name the `model`, or send nothing for all.", param="model")
    model = given.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise AdminError(400, "bad_request", "`model` has to be a model's name, or left out for all.", param="model")
    return model
