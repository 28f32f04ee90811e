"""What an operator may do to requests at run time: see why one waits, stop and go on sending, bump one, cancel one."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.dispatch.operator_pauses import TooManyStoppedError
from penstock.core.explain.snapshot import ALL
from penstock.core.values.lifecycle import State
from penstock.gateway.admin.headline import DRAIN, PAUSE, StoppedBy
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
        self._stops: dict[tuple[str, str], tuple[str, float]] = {}  # by verb and model: whose word it was, and when

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

    def stops(self) -> dict[tuple[str, str], StoppedBy]:
        """Whose word pauses and drains are, by verb and model (`ALL` for all)."""
        now = self._driver.now()
        return {key: StoppedBy(by, now - at_s) for key, (by, at_s) in self._stops.items()}

    def _pause(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        model = self._served(exchange)
        try:
            self._driver.tell(self._scheduler.paused(model, now=self._driver.now()))
        except TooManyStoppedError as error:
            raise AdminError(409, "conflict", str(error)) from None
        self._note(PAUSE, model, exchange)
        self._stopped(exchange)

    def _drain(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        model = self._served(exchange)
        try:
            self._driver.tell(self._scheduler.drained(model, now=self._driver.now()))
        except TooManyStoppedError as error:
            raise AdminError(409, "conflict", str(error)) from None
        self._note(DRAIN, model, exchange)
        self._stopped(exchange)

    def _resume(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        model = _model(exchange)
        self._driver.tell(self._scheduler.resumed(model, now=self._driver.now()))
        for key in [key for key in self._stops if model in (None, key[1])]:
            del self._stops[key]
        self._stopped(exchange)

    def _served(self, exchange: Exchange) -> str | None:
        """The model that is to be stopped; None for all. One that no endpoint has is a slip of the pen, or an alias."""
        model = _model(exchange)
        if model is not None and self._scheduler.knows(model, now=self._driver.now()) is False:
            message = f"No endpoint serves the model `{model[:200]}`. Aliases are stopped by the name of their model."
            raise AdminError(404, "model_not_found", message, param="model")
        return model

    def _note(self, verb: str, model: str | None, exchange: Exchange) -> None:
        """Remember whose word it is; of one that is said again, who said it first."""
        self._stops.setdefault((verb, ALL if model is None else model), (exchange.client, self._driver.now()))

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
