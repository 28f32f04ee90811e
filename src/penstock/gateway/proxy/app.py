"""What happens to a request that came: engines' paths begin a journey, others are served by the part that owns them.

The order of checks is that of their cost, so that what is refused is refused cheaply: path and method before the
body is read, the body before the scheduler is asked.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

from penstock.batch.api.routes import BatchRoutes
from penstock.config.model import Settings
from penstock.core.values.outcome import Reason
from penstock.core.values.request import Request
from penstock.gateway.admin.routes import AdminRoutes
from penstock.gateway.builtin.paths import OwnPaths
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.identity.caller import Caller, Key, Unauthorized
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.origins import Origins
from penstock.gateway.openai import body as bodies
from penstock.gateway.openai import errors
from penstock.gateway.openai.body import BadBody
from penstock.gateway.openai.fields import Peek, Read
from penstock.gateway.openai.forms import read_form
from penstock.gateway.openai.routes import PathKind, Route, api_of, route
from penstock.gateway.openai.scan import ONE_STEP_BYTES
from penstock.gateway.openai.splice import Spliced
from penstock.gateway.proxy.direct import DirectJourney
from penstock.gateway.proxy.disagg import sequential
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.journey import QueuedJourney
from penstock.gateway.proxy.model_profiles import PLAIN, Profile, profiles
from penstock.gateway.proxy.slices import Slices
from penstock.gateway.proxy.stored_answers import StoredAnswers
from penstock.gateway.proxy.ties import RESPONSES_PATH, Affinities
from penstock.gateway.queueing import queueing
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.http.inflate import BadGzip, InflatesTooFar, TooMuchAtOnce, inflate
from penstock.http.server.server import Exchange, Header, Refusal, SocketExchange

if TYPE_CHECKING:
    from penstock.gateway.telemetry.tracing import RequestTrace, Tracer  # needs an extra

logger = logging.getLogger(__name__)

REQUEST_ID_BYTES_MAX = 128

_REFUSALS = {
    Refusal.BAD_REQUEST: Reason.BAD_REQUEST,
    Refusal.CLIENT_TIMEOUT: Reason.CLIENT_TIMEOUT,
    Refusal.REQUEST_TOO_LARGE: Reason.REQUEST_TOO_LARGE,
    Refusal.HEADER_TOO_LARGE: Reason.HEADER_TOO_LARGE,
    Refusal.WEBSOCKET_UNSUPPORTED: Reason.WEBSOCKET_UNSUPPORTED,
    Refusal.EXPECTATION_FAILED: Reason.BAD_REQUEST,
    Refusal.TOO_MANY_CONNECTIONS: Reason.OVERLOAD,
    Refusal.TOO_MANY_BYTES: Reason.OVERLOAD,
}


class Part(Protocol):
    """Serves some paths that are no engine's."""

    def owns(self, path: str, /) -> bool: ...
    def begin(self, exchange: SocketExchange, /) -> int | None: ...
    def complete(self, exchange: SocketExchange, /) -> None: ...


class App:
    """The handler behind the HTTP server."""

    def __init__(
        self,
        *,
        driver: Driver,
        endpoints: EndpointRegistry,
        metrics: Metrics,
        catalog: Catalog,
        admin: AdminRoutes,
        origins: Origins,
        callers: Callers,
        heartbeats: Heartbeats,
        affinities: Affinities,
        reporting: Reporting,
        batch: BatchRoutes | None = None,
    ) -> None:
        self._driver = driver
        self._endpoints = endpoints
        self._targets = targets = endpoints.targets
        self._metrics = metrics
        self._catalog = catalog
        self._callers = callers
        self._origins = origins
        self._admin = admin
        self._heartbeats = heartbeats
        self._affinities = affinities
        self._reporting = reporting
        self._serial = itertools.count(1)
        self._slices = Slices()
        own = OwnPaths(
            driver=driver,
            callers=callers,
            catalog=catalog,
            metrics=metrics,
            refuse=self._refuse,
            request_id=self._request_id,
            queueing=lambda: self._queueing,
        )
        stored = StoredAnswers(
            driver=driver,
            callers=callers,
            metrics=metrics,
            targets=targets,
            responses=affinities.responses,
            refuse=self._refuse,
            request_id=self._request_id,
        )
        self._parts: list[Part] = [own, admin, stored] if batch is None else [own, admin, stored, batch]

    def follow(self, settings: Settings) -> None:
        """Take requests that come from now on by these settings."""
        self._levels = settings.fairness.levels
        self._bands = [band.name for band in settings.bands]
        self._asks_usage = settings.accounting.usage == "auto"
        self._body_bytes_max = settings.limits.max_body
        self._profiles = profiles(settings)
        self._queueing = queueing(settings)

    # --- the server's hooks ---------------------------------------------------------------------------------

    def begin(self, exchange: SocketExchange) -> int | None:
        """Refuse what the head alone tells is not to be served."""
        if self._origins.looks and (foreign := self._foreign(exchange)) is not None:
            self._refuse(exchange, Reason.FORBIDDEN, foreign)
            return None
        if route(exchange.target_path) is None:
            part = self._part(exchange.target_path)
            if part is not None:
                return part.begin(exchange)
            self._refuse(exchange, Reason.PATH_NOT_FOUND)
        elif exchange.method != "POST":
            self._refuse(exchange, Reason.METHOD_NOT_ALLOWED, extra=[(b"allow", b"POST")])
        else:
            key = self._callers.key(exchange.lookup.get, exchange.repeats)
            if isinstance(key, Unauthorized):
                self._refuse(exchange, key.reason, key.message)
            else:
                exchange.note = key
        return None

    def _foreign(self, exchange: Exchange) -> str | None:
        """Why a page of another site, or a name that is not ours, is not served; who shows a key is no page."""
        foreign = self._origins.foreign(exchange)
        if foreign is None or self._admin.owns(exchange.target_path):  # which asks for tokens, and looks itself
            return None
        return None if isinstance(self._callers.key(exchange.lookup.get, exchange.repeats), Key) else foreign

    def complete(self, exchange: SocketExchange) -> None:
        """Serve a request that is wholly here."""
        passed = route(exchange.target_path)
        if passed is None:
            part = self._part(exchange.target_path)
            assert part is not None, "`begin` refuses other paths"
            part.complete(exchange)
            return
        encoding = exchange.header(b"content-encoding")
        if encoding is not None and exchange.repeats(b"content-encoding"):
            self._refuse(exchange, Reason.BAD_REQUEST, "The body's content-encoding is given more than once.")
        elif encoding is None or encoding.strip().lower() == b"identity":
            self._read(exchange, passed, exchange.body)
        elif encoding.strip().lower() in (b"gzip", b"x-gzip"):
            self._inflate(exchange, passed, exchange.body)
        else:
            self._refuse(exchange, Reason.BAD_REQUEST, "The body's content-encoding is not supported; gzip is.")

    def _part(self, path: str) -> Part | None:
        return next((part for part in self._parts if part.owns(path)), None)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        """Answer for the server what is not HTTP as it should be."""
        reason = _REFUSALS[refusal]
        api = api_of(exchange.target_path) if exchange is not None else errors.Api.OPENAI
        self._metrics.refused(reason)
        retry_after_s = 1.0 if reason is Reason.OVERLOAD else None
        status, headers, body = errors.refusal(api, reason, detail, retry_after_s=retry_after_s)
        if exchange is not None and exchange.method:
            headers.append((b"x-request-id", self._request_id(exchange)))
        return status, headers, body

    # --- the engines' paths ---------------------------------------------------------------------------------

    def submit(self, exchange: Exchange, caller: Caller, journey: type[QueuedJourney]) -> None:
        """Let a request that was made inside go the way of all others."""
        passed = route(exchange.target_path)
        assert passed is not None
        self._read(exchange, passed, exchange.body, caller=caller, journey=journey)

    def _inflate(self, exchange: SocketExchange, passed: Route, packed: bytes) -> None:
        """Unpack a body, and go on with it."""
        exchange.body = b""

        def failed(failure: Exception) -> None:
            if isinstance(failure, BadGzip):
                self._refuse(exchange, Reason.BAD_REQUEST, str(failure))
            elif isinstance(failure, InflatesTooFar):
                self._refuse(exchange, Reason.REQUEST_TOO_LARGE, str(failure))
            elif isinstance(failure, TooMuchAtOnce):
                self._refuse(exchange, Reason.OVERLOAD, "The bodies that are kept are too many bytes together.")
            else:
                _broken(exchange, failure)

        self._slices.do(
            inflate(packed, self._body_bytes_max, exchange.hold),
            done=lambda body: self._read(exchange, passed, body, inflated=True),
            failed=failed,
            gone=lambda: exchange.over,
        )

    def _read(
        self,
        exchange: Exchange,
        passed: Route,
        body: bytes,
        *,
        inflated: bool = False,
        caller: Caller | None = None,
        journey: type[QueuedJourney] = QueuedJourney,
    ) -> None:
        """Read what scheduling needs of a body, and go on: at once with a small one, with a large one by and by."""
        content_type = exchange.header(b"content-type")
        form = bodies.is_multipart(content_type)
        if len(body) <= ONE_STEP_BYTES and not form:
            try:
                read = bodies.read(body, pooled=passed.pooled)
            except BadBody as problem:
                self._refuse_body(exchange, problem)
            else:
                self._pass_through(exchange, passed, read, inflated=inflated, caller=caller, journey=journey)
            return
        exchange.body = b""  # the steps have it

        def failed(failure: Exception) -> None:
            if isinstance(failure, BadBody):
                self._refuse_body(exchange, failure)
            else:
                _broken(exchange, failure)

        if form:
            steps = read_form(body, content_type or b"", exchange.target_path, pooled=passed.pooled)
        else:
            steps = bodies.read_large(body, pooled=passed.pooled)
        self._slices.do(
            steps,
            done=lambda read: self._pass_through(
                exchange, passed, read, inflated=inflated, caller=caller, journey=journey
            ),
            failed=failed,
            gone=lambda: exchange.over,
        )

    def _refuse_body(self, exchange: Exchange, problem: BadBody) -> None:
        self._refuse(exchange, Reason.BAD_REQUEST, str(problem), param=problem.param)

    def _pass_through(
        self,
        exchange: Exchange,
        passed: Route,
        read: Read,
        *,
        inflated: bool,
        caller: Caller | None,
        journey: type[QueuedJourney],
    ) -> None:
        request_id = self._request_id(exchange)
        peek, body = read.peek, read.body
        try:
            model = peek.model or self._sole_model(passed)
            profile = self._profiles.get(model, PLAIN)
            caller = caller or self._caller(exchange, peek, profile)
            target = self._catalog.aliases.get(model)
            if target is not None:
                body = bodies.replace_model(body, target)
            served = self._served(passed, target or model)
            pinned = self._pinned(exchange)
        except BadBody as problem:
            self._refuse_body(exchange, problem)
            return
        except _Refused as refused:
            self._refuse(exchange, refused.reason, str(refused), param=refused.param)
            return
        if passed.kind is PathKind.DIRECT:
            if self._driver.draining:
                self._refuse(exchange, Reason.DRAINING)
                return
            DirectJourney(
                exchange,
                body,
                served,
                pinned=pinned,
                request_id=request_id,
                api=passed.api,
                driver=self._driver,
                targets=self._targets,
                metrics=self._metrics,
                has_key=caller.has_key,
                inflated=inflated,
            ).begin()
            return
        body_bytes = len(body)
        asking = None
        if self._asks_usage and passed.tells_usage and peek.stream:
            asking = bodies.ask_usage(body, peek.stream_options)
        exchange.body = b""  # the journey has it; a renamed or unpacked one would be held twice
        flow, weights = caller.flow(self._levels, model, profile.weight)
        now = self._driver.now()
        search, locator, tracer = None, self._endpoints.locator, self._reporting.tracer
        if locator is not None and pinned is None and not isinstance(body, Spliced):
            search = locator.search(exchange.target_path, body, served)
        session, prefix, home = self._affinities.ties(exchange, body, peek, served)
        request = Request(
            id=self._unique(request_id),
            model=served,
            band=caller.band,
            tenant=caller.tenant,
            account=caller.part,
            flow=flow,
            weights=weights,
            body_bytes=body_bytes,
            contents=read.contents,
            output_tokens_max=peek.output_tokens_max,
            streamed=peek.stream or passed.streams or (passed.streams_unless and not peek.whole),
            pinned=pinned,
            deadline_s=None if caller.deadline_s is None else now + caller.deadline_s,
            priority=caller.priority,
            prices=profile.prices,
            locate_s=0.0 if search is None else search.wait_s,
            session=session,
            prefix=prefix,
            prefix_chunk_bytes=None,
            home=home,
            divisible=not self._driver.scheduler.divides or sequential.divisible(exchange.target_path, body),
        )
        journey(
            exchange,
            body if asking is None else asking,
            request,
            request_id=request_id,
            api=passed.api,
            band=self._bands[caller.band],
            driver=self._driver,
            targets=self._targets,
            metrics=self._metrics,
            caller=caller,
            inflated=inflated,
            injected_usage=asking is not None,
            ranks_itself=peek.priority is not None,
            heartbeats=self._heartbeats if request.streamed and passed.events else None,
            remember=self._remembering(caller) if exchange.target_path == RESPONSES_PATH else None,
            trace=None if tracer is None else _traced(tracer, exchange, request),
            on_end=self._reporting.on_end,
        ).begin()
        if locator is not None and search is not None:
            locator.begin(request.id, search)

    def _remembering(self, caller: Caller) -> Callable[[bytes, str], bool]:
        """Who remembers where this caller's answers are made."""
        owner = caller.tenant if caller.has_key else None
        return lambda head, endpoint: self._affinities.responses.made(head, endpoint, owner)

    def _served(self, passed: Route, model: str) -> str:
        """The name that endpoints list a model by: Ollama takes one without a tag for its latest."""
        if passed.api is not errors.Api.OLLAMA or ":" in model:
            return model
        scheduler, now = self._driver.scheduler, self._driver.now()
        latest = f"{model}:latest"
        if scheduler.knows(model, now=now) is not True and scheduler.knows(latest, now=now) is True:
            return latest
        return model

    def _caller(self, exchange: Exchange, peek: Peek, profile: Profile) -> Caller:
        key = exchange.note  # `begin` has looked
        assert key is None or isinstance(key, Key)
        caller = self._callers.identify(
            key,
            exchange.lookup.get,
            exchange.peer[0],
            user=peek.user,
            service_tier=peek.service_tier,
            priority=peek.priority,
            model_band=profile.band,
            now=self._driver.now(),
        )
        if isinstance(caller, Unauthorized):
            raise _Refused(caller.reason, caller.message)
        return caller

    def _sole_model(self, passed: Route) -> str:
        """The model that is meant where none is named: the only one there is, on the paths that need no name."""
        if passed.needs_model:
            raise BadBody("The request names no `model`.", "model")
        names = [str(entry["id"]) for entry in self._catalog.entries()]
        names = [name for name in names if name not in self._catalog.aliases]
        if len(names) != 1:
            raise BadBody("The request names no `model`, and not exactly one is served.", "model")
        return names[0]

    def _pinned(self, exchange: Exchange) -> str | None:
        if "id=" not in exchange.query:
            return None
        try:
            named = parse_qs(exchange.query, keep_blank_values=True, max_num_fields=100).get("id")
        except ValueError:
            raise BadBody("The query has too many fields.") from None
        if named is None:
            return None
        if len(named) != 1:
            raise BadBody("The query names several endpoints (`id`); one is allowed.", "id")
        return named[0]

    def _request_id(self, exchange: Exchange) -> bytes:
        given = exchange.header(b"x-request-id")
        if given and len(given) <= REQUEST_ID_BYTES_MAX and given.isascii() and given.decode().isprintable():
            return given
        return b"req-%x-%x" % (int(self._driver.now() * 1000), next(self._serial))

    def _unique(self, request_id: bytes) -> str:
        """The id under which the scheduler knows it: the caller's own, unless that one is under way."""
        name = request_id.decode()
        return f"{name}~{next(self._serial)}" if self._driver.knows(name) else name

    def _refuse(
        self,
        exchange: Exchange,
        reason: Reason,
        message: str | None = None,
        *,
        param: str | None = None,
        extra: Sequence[Header] = (),
    ) -> None:
        self._metrics.refused(reason)
        retry_after_s = 1.0 if reason is Reason.DRAINING else None
        status, headers, body = errors.refusal(
            api_of(exchange.target_path), reason, message, param=param, retry_after_s=retry_after_s
        )
        exchange.respond(status, [*headers, (b"x-request-id", self._request_id(exchange)), *extra], body)


class _Refused(Exception):  # noqa: N818
    """A refusal other than a bad body."""

    def __init__(self, reason: Reason, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.param = param


def _broken(exchange: Exchange, failure: Exception) -> None:
    """A fault of ours: the client must not hang for it, and the log has it."""
    exchange.abort()
    raise failure


def _traced(tracer: Tracer, exchange: Exchange, request: Request) -> RequestTrace:
    parent, state = exchange.header(b"traceparent"), exchange.header(b"tracestate")
    return tracer.begin(request, method=exchange.method, path=exchange.target_path, parent=parent, state=state)
