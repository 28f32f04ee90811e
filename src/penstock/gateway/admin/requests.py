"""An operator's verbs for requests: find, explain, bump or cancel one; pause, drain or resume all or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qs

import msgspec

from penstock.core.dispatch.operator_pauses import TooManyStoppedError
from penstock.core.explain.snapshot import ALL
from penstock.core.values.lifecycle import State
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer, body_of
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Exchange

REQUEST = "/admin/requests/{id}"
FOUND_MAX = 100  # that are shown: with more, people add a word
WORDS_MAX = 10
PAUSE, DRAIN = "pause", "drain"


class StoppedBy(msgspec.Struct, frozen=True):
    """The author of a pause or drain, and its duration so far."""

    by: str  #: a name, if the token has one, and an address
    for_s: float


class RequestVerbs:
    """The verbs, as handlers of routes."""

    def __init__(self, driver: Driver, who: Callable[[Exchange], str]) -> None:
        self._who = who
        self._driver = driver
        self._scheduler = driver.scheduler
        self._stops: dict[tuple[str, str], tuple[str, float]] = {}  # by verb and model: the first operator, and when

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", "/admin/requests", self._find, full=True)
        routes.add("GET", REQUEST, self._explain)
        routes.add("POST", REQUEST + "/bump", self._bump)
        routes.add("POST", REQUEST + "/cancel", self._cancel)
        routes.add("POST", "/admin/pause", partial(self._stop, PAUSE))
        routes.add("POST", "/admin/drain", partial(self._stop, DRAIN))
        routes.add("POST", "/admin/resume", self._resume)

    # --- one request ----------------------------------------------------------------------------------------------

    def _find(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        """Search the present requests and the last that ended, newest first. Each word has to stand in some field."""
        try:
            text = parse_qs(exchange.query, max_num_fields=100).get("find", [""])[-1]
        except ValueError:
            raise AdminError(400, "bad_request", "The query has too many fields.") from None
        words, searched, found = text.lower().split()[:WORDS_MAX], 0, []
        for row in self._scheduler.requests(now=self._driver.now()):
            searched += 1
            fields = (row.id, row.tenant, row.band, row.model, row.state, row.endpoint, row.cause, row.reason)
            line = "\n".join([field for field in fields if field]).lower()
            if all(word in line for word in words):
                found.append(row)
        answer(exchange, {"requests": found[:FOUND_MAX], "found": len(found), "searched": searched})

    def _explain(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        name = names["id"]
        explanation = self._scheduler.explain(name, now=self._driver.now())
        if explanation is None:
            raise AdminError(404, "request_not_found", f"No request `{name[:200]}` is known (any more).")
        from penstock.gateway.admin.story import story  # noqa: PLC0415 - nobody has asked so far

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
        """Return the authors of pauses and drains, by verb and model (`ALL` for all)."""
        now = self._driver.now()
        return {key: StoppedBy(by, now - at_s) for key, (by, at_s) in self._stops.items()}

    def _stop(self, verb: str, exchange: Exchange, _: Mapping[str, str]) -> None:
        model, now = self._served(exchange), self._driver.now()
        stop = self._scheduler.paused if verb == PAUSE else self._scheduler.drained
        try:
            self._driver.tell(stop(model, now=now))
        except TooManyStoppedError as error:
            raise AdminError(409, "conflict", str(error)) from None
        self._stops.setdefault((verb, ALL if model is None else model), (self._who(exchange), now))
        self._answer(exchange)

    def _resume(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        model, before = _model(exchange), self._stopped()
        self._driver.tell(self._scheduler.resumed(model, now=self._driver.now()))
        for key in [key for key in self._stops if model in (None, key[1])]:
            del self._stops[key]
        self._answer(exchange, resumed=sorted(before - self._stopped()))

    def _served(self, exchange: Exchange) -> str | None:
        """The model to stop; None for all. A model without endpoints is a typing error, or an alias."""
        model = _model(exchange)
        if model is not None and self._scheduler.knows(model, now=self._driver.now()) is False:
            message = f"No endpoint serves the model `{model[:200]}`. Aliases are stopped by the name of their model."
            raise AdminError(404, "model_not_found", message, param="model")
        return model

    def _stopped(self) -> set[str]:
        snapshot = self._scheduler.snapshot(requests=False, now=self._driver.now())
        return {*snapshot.paused, *snapshot.drained}

    def _answer(self, exchange: Exchange, **more: list[str]) -> None:
        snapshot = self._scheduler.snapshot(requests=False, now=self._driver.now())
        told = {"paused": snapshot.paused, "drained": snapshot.drained, "waiting": snapshot.waiting}
        answer(exchange, {**told, **more})


def _model(exchange: Exchange) -> str | None:
    """The model that a verb is about; None for all."""
    given = body_of(exchange)
    if given and "model" not in given:  # a misspelt one would stop everything
        raise AdminError(400, "bad_request", "Name the `model`, or send nothing for all.", param="model")
    model = given.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise AdminError(400, "bad_request", "`model` has to be a model's name, or left out for all.", param="model")
    return model
