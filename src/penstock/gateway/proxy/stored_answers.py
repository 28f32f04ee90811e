"""Answers that engines keep (OpenAI's responses): read, deleted or cancelled where they were made.

An answer is in the memory of the engine that made it, which is remembered (`Responses`). If it is not, as after a
restart of the gateway, all endpoints are asked in turn, and the first that knows the answer responds; asking another
changes nothing. Nothing is computed, so no turn and no lease is needed.
"""

from __future__ import annotations

from penstock.core.values.catalogue import Failure, Reason
from penstock.gateway.identity.caller import Unauthorized
from penstock.gateway.identity.callers import Callers
from penstock.gateway.openai.routes import STORED
from penstock.gateway.proxy.arrival import Arrival, Means
from penstock.gateway.proxy.direct import DirectJourney
from penstock.gateway.proxy.refusals import Refusals
from penstock.gateway.proxy.ties import ANSWER_METHODS, stored_answer
from penstock.gateway.sessions.kept_answers import Responses
from penstock.http.server.server import Exchange

ASKED_MAX = 64  # endpoints asked for an answer that is not remembered: a call each, seconds in all
UNKNOWN = frozenset({404, 405})  # 405: an engine without this API


class StoredAnswers:
    """Serves the paths of stored answers."""

    def __init__(self, means: Means, *, callers: Callers, responses: Responses, refusals: Refusals) -> None:
        self._means = means
        self._driver = means.driver
        self._targets = means.targets
        self._callers = callers
        self._responses = responses
        self._refusals = refusals
        self._refuse = refusals.refuse

    def owns(self, path: str) -> bool:
        """True if the path is one of a stored answer."""
        return stored_answer(path) is not None

    def begin(self, exchange: Exchange) -> None:
        """Refuse a wrong method, or a caller without the right."""
        found = stored_answer(exchange.target_path)
        assert found is not None
        methods = ANSWER_METHODS[found[1]]
        if exchange.method not in methods:
            self._refuse(exchange, Reason.METHOD_NOT_ALLOWED, extra=[(b"allow", ", ".join(methods).encode())])
            return
        key = self._callers.key(exchange.lookup.get, exchange.repeats)
        if isinstance(key, Unauthorized):
            exchange.note = key
            self._refuse(exchange, key.reason, key.message)

    def complete(self, exchange: Exchange) -> None:
        """Ask the endpoint that made the answer, or every one if that is not remembered."""
        header = exchange.lookup.get
        key = self._callers.key(header, exchange.repeats)
        caller = self._callers.identify(key, header, exchange.peer[0], client=exchange.client, now=self._driver.now())
        if isinstance(caller, Unauthorized):
            exchange.note = caller
            self._refuse(exchange, caller.reason, caller.message)
            return
        if self._driver.draining:
            self._refuse(exchange, Reason.DRAINING)
            return
        found = stored_answer(exchange.target_path)
        assert found is not None
        name = found[0]
        made = self._responses.find(name)
        if made is not None and made.owner not in (None, caller.tenant):
            self._refuse(exchange, Reason.PATH_NOT_FOUND, _unknown(name))
            return
        home = made.endpoint if made is not None and made.endpoint in self._targets else None
        arrival = Arrival(exchange, STORED, self._refusals.request_id(exchange), caller)
        arrival.body = exchange.body
        StoredJourney(
            arrival,
            self._means,
            candidates=list(self._targets)[:ASKED_MAX] if home is None else [home],
            name=name,
            remembered=home is not None,
            responses=self._responses,
        ).begin()


class StoredJourney(DirectJourney):
    """Asks endpoints in turn, until one knows the answer."""

    __slots__ = ("_alive", "_candidates", "_name", "_remembered", "_responses")

    def __init__(
        self,
        arrival: Arrival,
        means: Means,
        *,
        candidates: list[str],
        name: str,
        remembered: bool,
        responses: Responses,
    ) -> None:
        super().__init__(arrival, means)
        self._candidates = candidates
        self._name = name
        self._remembered = remembered
        self._responses = responses
        self._alive = False  # any of them has answered

    def begin(self) -> None:
        """Ask the next one; refuse if all were asked."""
        while self._candidates:
            name = self._candidates.pop(0)
            if name in self._targets:
                self.send_to(name, self._targets[name])
                return
        if self._alive:
            self._refuse(Reason.PATH_NOT_FOUND, _unknown(self._name))
        else:
            self._refuse(Reason.NO_ENDPOINT)

    def succeeded(self, status: int) -> None:
        if self.exchange.method == "DELETE" and status < 300:
            self._responses.forget(self._name)
        self._responses.asked(self._name)
        super().succeeded(status)

    def failed(self, failure: Failure, detail: str) -> None:
        if self._sends_again(failure):
            return
        status = 0 if self._head is None else self._head[0]
        self._alive = self._alive or status in UNKNOWN
        if self._committed or (status and status not in UNKNOWN and not self._candidates):
            super().failed(failure, detail)
        elif status in UNKNOWN and self._remembered:  # the endpoint that made it knows best
            self.engine_error([])
            self.succeeded(status)
        else:
            self.no_answer()
            self.begin()

    def is_failure(self, status: int) -> bool:
        """Whether another endpoint may know better."""
        return status in UNKNOWN or super().is_failure(status)


def _unknown(name: str) -> str:
    return f"There is no answer `{name[:200]}` at any of the endpoints."
