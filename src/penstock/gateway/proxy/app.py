"""Where does a request go: engines' paths begin a journey, others are served by the part that owns them.

Checks come in the order of their cost, so refusals are cheap: path, method and key before the body is read, the body
(`intake.py`) before the scheduler is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.config.model import Settings
from penstock.core.values.catalogue import Reason
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.identity.caller import Caller, Key, Sender, Unauthorized
from penstock.gateway.identity.callers import KNOWN_S, Callers
from penstock.gateway.identity.clients import Clients
from penstock.gateway.identity.origins import Origins
from penstock.gateway.openai.routes import Paths, Ways
from penstock.gateway.proxy.arrival import Means
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.intake import Intake, Reached
from penstock.gateway.proxy.journey import QueuedJourney
from penstock.gateway.proxy.refusals import Refusals
from penstock.gateway.proxy.ties import Affinities, stored_answer
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.http.server.server import Exchange, Header, Refusal, SocketExchange

if TYPE_CHECKING:
    from penstock.gateway.identity.cors import Cors


class Part(Protocol):
    """Serves some of the gateway's own paths."""

    def owns(self, path: str, /) -> bool: ...
    def begin(self, exchange: SocketExchange, /) -> int | None: ...
    def complete(self, exchange: SocketExchange, /) -> None: ...


class PickedPart(Protocol):
    """Serves some of them to a proxy's requests, too."""

    def owns(self, path: str, /) -> bool: ...
    def begin(self, exchange: Exchange, /) -> int | None: ...
    def complete(self, exchange: Exchange, /) -> None: ...


class LatePart:
    """A part that few callers ask. It is built, and its code imported, at the first request for its paths."""

    def __init__(self, owns: Callable[[str], bool], build: Callable[[], PickedPart]) -> None:
        self.owns = owns
        self._build = build
        self._part: PickedPart | None = None

    def begin(self, exchange: Exchange) -> int | None:
        """Refuse what the head alone shows not to be served. Returns the body's limit; None: that of all bodies."""
        if self._part is None:
            self._part = self._build()
        return self._part.begin(exchange)

    def complete(self, exchange: Exchange) -> None:
        """Serve a request with its whole body."""
        assert self._part is not None, "`begin` built it"
        self._part.complete(exchange)


class App:
    """The handler behind the HTTP server."""

    def __init__(
        self,
        *,
        driver: Driver[Decides],
        endpoints: Reached,
        metrics: Metrics,
        catalog: Catalog,
        origins: Origins,
        callers: Callers,
        heartbeats: Heartbeats,
        affinities: Affinities,
        reporting: Reporting,
        elsewhere: Callable[[str], bool] | None = None,
        answers_pages: bool = True,
    ) -> None:
        self._callers = callers
        self._clients = Clients()
        self._now = driver.now
        self._answers_pages = answers_pages  # False: the process that passes requests on does
        self._cors: Cors | None = None  # None: no page of another site may ask
        self._origins = origins
        self.routes = Paths()
        self.refusals = refusals = Refusals(driver, metrics)
        self._targets = endpoints.targets
        self._means = means = Means(
            driver=driver, targets=endpoints.targets, metrics=metrics, heartbeats=heartbeats, reporting=reporting
        )
        self._intake = Intake(
            means,
            refusals=refusals,
            endpoints=endpoints,
            catalog=catalog,
            callers=callers,
            affinities=affinities,
        )

        def stored_answers() -> PickedPart:
            from penstock.gateway.proxy.stored_answers import StoredAnswers  # noqa: PLC0415

            return StoredAnswers(means, callers=callers, responses=affinities.responses, refusals=refusals)

        stored = LatePart(lambda path: stored_answer(path) is not None, stored_answers)
        self._parts: list[Part] = [stored]
        self._picked: list[PickedPart] = [stored]
        self._guarded: list[Part] = []
        self._elsewhere = elsewhere  # paths served at another address only
        self._root_path = ""

    def serve(self, part: Part, *, guarded: bool = False) -> None:
        """Let `part` answer its paths. A `guarded` one checks the origin itself."""
        self._parts.append(part)
        if guarded:
            self._guarded.append(part)

    def serve_picked(self, part: PickedPart, *, guarded: bool = False) -> None:
        """Let `part` answer its paths for callers, whether a proxy carries their bytes or not."""
        self.serve(part, guarded=guarded)
        self._picked.append(part)

    def follow(self, settings: Settings) -> None:
        """Serve new requests by `settings`."""
        self._means.attempts_max = settings.retry.max_attempts
        self._means.background_s = settings.timeouts.background
        self.routes.follow(settings)
        self._intake.follow(settings)
        self._clients.follow(settings)
        self._cors = None
        if settings.cors.origins and self._answers_pages:
            from penstock.gateway.identity.cors import Cors  # noqa: PLC0415 - off by default

            self._cors = Cors(settings)
        self._root_path = settings.root_path
        self._moves_in = bool(self._root_path) or self._clients.looks  # paths or addresses are others than they came
        self._knows_senders = self._cors is None  # otherwise each answer to a page has headers of its own

    # --- the server's hooks ---------------------------------------------------------------------------------

    def begin(self, exchange: SocketExchange) -> int | None:
        """Refuse what the head alone shows not to be served. Returns the body's limit; None: that of all bodies."""
        head = exchange.head
        if head is not None and isinstance(sender := head.note, Sender):
            if self._callers.knows(sender, exchange.lookup.get, self._now()):
                exchange.target_path, exchange.client, exchange.note = sender.path, sender.client, sender
                return None
            head.note = None
        if self._moves_in:
            self._place(exchange)
        if self._origins.looks and (foreign := self._origins.foreign(exchange)) is not None and self._bars(exchange):
            self.refusals.refuse(exchange, Reason.FORBIDDEN, foreign)
            return None
        path, cors = exchange.target_path, self._cors
        found = self.routes.exact.get(path) or self.routes.get(path)
        if cors is not None and cors.allows(exchange, passes=found is not None) and cors.is_preflight(exchange):
            cors.answer(exchange)
            return None
        if found is None:
            part = self._part(path)
            if part is not None:
                return part.begin(exchange)
            self._unknown(exchange)
        else:
            self._begin(exchange, found)
        return None

    def _place(self, exchange: Exchange) -> None:
        """Take the root path off its target, and find its client behind trusted proxies."""
        if self._root_path and exchange.target_path.startswith(self._root_path + "/"):
            exchange.target_path = exchange.target_path[len(self._root_path) :]
        if self._clients.looks:
            exchange.client = self._clients.address(exchange)

    def _begin(self, exchange: Exchange, ways: Ways) -> None:
        """Refuse a request to engines' paths by its method, its key or a path that no engine has, or note its sender.

        A connection brings the same head again and again: its sender stays known with it.
        """
        found = ways.get(exchange.method)
        if found is None:
            allow = ", ".join(ways).encode()
            self.refusals.refuse(exchange, Reason.METHOD_NOT_ALLOWED, extra=[(b"allow", allow)])
            return
        lookup = exchange.lookup  # usually no header is given twice, so none is searched for
        key = self._callers.key(lookup.get, None if len(lookup) == len(exchange.headers) else exchange.repeats)
        if isinstance(key, Unauthorized):
            exchange.note = key
            self.refusals.refuse(exchange, key.reason, key.message)
        elif found.bare and not self._served_bare():
            self._unknown(exchange)
        else:
            until_s = self._now() + KNOWN_S
            exchange.note = sender = Sender(
                key, found, path=exchange.target_path, client=exchange.client, era=self._callers.era, until_s=until_s
            )
            if exchange.head is not None and self._knows_senders and not found.bare:
                exchange.head.note = sender

    def _unknown(self, exchange: Exchange) -> None:
        """Refuse a path that is not served, with the one that is meant."""
        from penstock.gateway.openai.wrong_paths import meant_instead, without_v1  # noqa: PLC0415

        path = exchange.target_path
        meant = meant_instead(path, self._serves) if self.routes.get(path) is None else without_v1(path)
        self.refusals.refuse(exchange, Reason.PATH_NOT_FOUND, meant)

    # --- a proxy's hooks (`gateway/epp`): it carries the bytes --------------------------------------------------

    def begin_pick(self, exchange: Exchange, closed: Callable[[str], bool]) -> int | None:
        """Refuse what the head alone shows not to be served, by the same table as `begin`, without the `closed` paths.

        Returns the body's limit; None: that of all bodies.
        """
        self._place(exchange)
        path = exchange.target_path
        found = self.routes.get(path)
        if found is not None:
            self._begin(exchange, found)
        elif closed(path):
            self.refusals.refuse(exchange, Reason.PATH_NOT_FOUND)
        elif (part := _owner(self._picked, path)) is not None:
            return part.begin(exchange)
        else:
            self._unknown(exchange)
        return None

    def complete_pick(self, exchange: Exchange, journey: type[QueuedJourney]) -> None:
        """Serve a request with its whole body; `journey` hands it over to the endpoint that is picked."""
        if isinstance(sender := exchange.note, Sender):
            self._intake.take(exchange, sender, journey)
        elif (part := _owner(self._picked, exchange.target_path)) is not None:
            part.complete(exchange)

    def _bars(self, exchange: Exchange) -> bool:
        """Whether a page of another site, or a foreign host name, is refused. A request with a key is no page's."""
        if any(part.owns(exchange.target_path) for part in self._guarded):
            return False
        return not isinstance(self._callers.key(exchange.lookup.get, exchange.repeats), Key)

    def complete(self, exchange: SocketExchange) -> None:
        """Serve a request with its whole body."""
        if isinstance(sender := exchange.note, Sender):
            self._intake.take(exchange, sender)
        else:
            part = self._part(exchange.target_path)
            assert part is not None, "`begin` refuses other paths"
            part.complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        """Returns the response to a request that is not valid HTTP."""
        return self.refusals.refused(exchange, refusal, detail)

    def submit(self, exchange: Exchange, caller: Caller, journey: type[QueuedJourney]) -> None:
        """Take a request made inside (of a batch), as `caller`, by the way of all others."""
        found = self.routes.get(exchange.target_path)
        assert found is not None
        self._intake.submit(exchange, found[exchange.method], caller, journey)

    def _serves(self, path: str) -> bool:
        return self.routes.get(path) is not None or self._part(path) is not None

    def _served_bare(self) -> bool:
        """Whether any engine here may serve OpenAI's paths without `/v1`; true without engines."""
        return not self._targets or any(target.engine.bare_paths for target in self._targets.values())

    def _part(self, path: str) -> Part | None:
        if self._elsewhere is not None and self._elsewhere(path):
            return None
        return next((part for part in self._parts if part.owns(path)), None)


def _owner(parts: Sequence[PickedPart], path: str) -> PickedPart | None:
    return next((part for part in parts if part.owns(path)), None)
