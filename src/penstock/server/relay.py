"""One request's journey: wait, send, stream, end.

A journey is a sink of its engine call and a listener of its client's exchange; it has no task of its own. It holds
an engine's head back until the first byte of the body: until then nothing was promised to the client, and a failure
can be taken back. After that the bytes pass as they come.

Ownership: from `dispatched` on the journey owns the lease, and tells the scheduler exactly once how it ended
(`finished`, `failed` or `cancelled`), always by way of `_settle`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.core.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.outcome import Outcome, Reason
from penstock.core.request import Request, Usage
from penstock.core.retry import Failure, final_reason
from penstock.server import wire
from penstock.server.answer import Answer
from penstock.server.body import is_multipart, set_field
from penstock.server.driver import Driver
from penstock.server.http1 import Exchange
from penstock.server.identity import KEY_HEADERS, Caller
from penstock.server.metrics import Metrics
from penstock.server.upstream import Call, Headers, Upstream, UpstreamError, UpstreamErrorKind

logger = logging.getLogger(__name__)

ERROR_BODY_BYTES_MAX = 65536  # an engine's error answer is kept up to here, in case the request can't go elsewhere
DIRECT_ATTEMPTS_MAX = 3
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
    }
)
_REQUEST_ONLY = HOP_BY_HOP | {b"host", b"expect"}
_RESPONSE_OWN = HOP_BY_HOP | {b"x-request-id"}
_CREDENTIALS = frozenset(KEY_HEADERS)
_PRIORITY_HEADERS = frozenset({b"x-vllm-priority", b"x-override-priority"})  # engines let them override the body
PROGRESS_TOKENS = 32  # an answer's growth is told to the scheduler in such steps
_SHUTTING_DOWN = b"cannot schedule new futures after shutdown"  # vLLM's 500 while it drains

FAILURES: dict[UpstreamErrorKind, Failure] = {
    UpstreamErrorKind.CONNECT: Failure.CONNECT,
    UpstreamErrorKind.CONNECT_TIMEOUT: Failure.CONNECT,
    UpstreamErrorKind.RESET: Failure.RESET,
    UpstreamErrorKind.BROKEN: Failure.RESET,  # in the head, or before the first byte of the body
    UpstreamErrorKind.FIRST_BYTE_TIMEOUT: Failure.FIRST_BYTE_TIMEOUT,
    UpstreamErrorKind.IDLE_TIMEOUT: Failure.FIRST_BYTE_TIMEOUT,
    UpstreamErrorKind.PROTOCOL: Failure.SERVER_ERROR,
}


class Target:
    """An endpoint as the relay needs it: its transport, the credential it wants, whom to tell when it is gone."""

    __slots__ = ("api_key", "takes_priority", "unreachable", "upstream")

    def __init__(self, upstream: Upstream, api_key: str | None = None) -> None:
        self.upstream = upstream
        self.api_key = api_key
        self.unreachable: Callable[[], None] | None = None
        self.takes_priority = False  # its engine orders by the body's `priority`, lower first


def request_headers(
    headers: Headers,
    *,
    api_key: str | None,
    request_id: bytes,
    inflated: bool,
    has_key: bool = False,
    ranked: bool = False,
) -> Headers:
    """What goes upstream of a client's headers: all but those of one hop, and the engine's own credential."""
    drop = _REQUEST_ONLY
    for name, value in headers:
        if name.lower() == b"connection":
            drop = drop | {token.strip().lower() for token in value.split(b",")}
    if api_key is not None or has_key:  # a key of ours stays here
        drop = drop | _CREDENTIALS
    if ranked:
        drop = drop | _PRIORITY_HEADERS
    if inflated:
        drop = drop | {b"content-encoding"}
    kept = [
        (name, value) for name, value in headers if (lower := name.lower()) not in drop and lower != b"x-request-id"
    ]
    kept.append((b"x-request-id", request_id))
    if api_key is not None:
        kept.append((b"authorization", b"Bearer " + api_key.encode()))
    return kept


def response_headers(headers: Headers) -> Headers:
    """What goes back of an engine's headers."""
    drop = _RESPONSE_OWN
    for name, value in headers:
        if name.lower() == b"connection":
            drop = drop | {token.strip().lower() for token in value.split(b",")}
    return [(name, value) for name, value in headers if name.lower() not in drop]


class Relay:
    """The way of an engine's answer to a client, whoever decided where it comes from."""

    __slots__ = (
        "_answer",
        "_call",
        "_committed",
        "_error_body",
        "_head",
        "_headers",
        "_length",
        "_packed",
        "_sse",
        "body",
        "exchange",
        "target",
    )

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        self.exchange = exchange
        self.target = exchange.target_path + (f"?{exchange.query}" if exchange.query else "")
        self.body = body
        self._call: Call | None = None
        self._headers: Headers = []
        self._head: tuple[int, Headers] | None = None  # the engine's, until it is committed to the client
        self._length: int | None = None
        self._error_body: bytearray | None = None  # being collected: the answer is an error that may be taken back
        self._committed = False
        self._packed = False  # nothing can be read of it, or taken out
        self._sse = False
        self._answer = Answer(streamed=False, hides_usage=False)

    # --- what differs ---------------------------------------------------------------------------------------

    def own_headers(self) -> Headers:
        """Headers that Penstock adds to the answer."""
        raise NotImplementedError

    def first_byte(self) -> None:
        """The first byte of the body is here."""

    def progressed(self) -> None:
        """More of the body was passed on."""

    def hides_usage(self) -> bool:
        """Whether the stream's usage was asked for by Penstock and not by the client."""
        return False

    def succeeded(self, status: int) -> None:
        """The answer is complete."""
        raise NotImplementedError

    def failed(self, failure: Failure, detail: str) -> None:
        """There is no answer, or an error that may be taken back, or the answer broke off."""
        raise NotImplementedError

    # --- the engine's side ----------------------------------------------------------------------------------

    def send(self, target: Target, headers: Headers, body: bytes) -> None:
        self._head = None
        self._error_body = None
        self._length = None
        self._packed = self._sse = False
        self._call = target.upstream.send(self.exchange.method, self.target, headers, body, self)
        self.exchange.on_pause = self._call.pause
        self.exchange.on_resume = self._call.resume

    def on_response(self, status: int, headers: Headers, /) -> None:
        self._head = (status, headers)
        if status == 429 or status >= 500:
            self._error_body = bytearray()
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length":
                self._length = int(value)
            elif lower == b"content-type":
                self._sse = value[:17].lower() == b"text/event-stream"
            elif lower == b"content-encoding":
                self._packed = value.strip().lower() not in (b"", b"identity")

    def on_data(self, data: bytes, /) -> None:
        if self._committed:
            self.exchange.write(self._answer.take(data))
            self.progressed()
            return
        if self._error_body is not None:
            self._error_body += data
            if len(self._error_body) <= ERROR_BODY_BYTES_MAX:
                return
            data, self._error_body = bytes(self._error_body), None  # too large to keep: it is the answer
        self.first_byte()
        self._commit(data)

    def on_end(self) -> None:
        assert self._head is not None
        status = self._head[0]
        self._call = None
        if self._error_body is not None:
            busy = status in (429, 503) or _SHUTTING_DOWN in self._error_body
            self.failed(Failure.BUSY if busy else Failure.SERVER_ERROR, f"status {status}")
            return
        if not self._committed:
            self._commit(b"")
        self.exchange.write(self._answer.rest())
        self.exchange.end()
        if not self._answer.ended_well(self.exchange.target_path):
            self.failed(Failure.BROKEN, "an error in the stream")
        else:
            self.succeeded(status)

    def on_error(self, error: UpstreamError, /) -> None:
        self._call = None
        if self._committed:
            self.failed(Failure.BROKEN, error.detail)
        else:
            self._head = self._error_body = None
            self.failed(FAILURES[error.kind], error.detail)

    def hang_up(self) -> None:
        """Stop the engine's work."""
        if self._call is not None:
            self._call.abort()
            self._call = None

    # --- the client's side ----------------------------------------------------------------------------------

    def _commit(self, data: bytes) -> None:
        """Pass the head on, and with it the first bytes: from here on nothing can be taken back."""
        assert self._head is not None
        status, headers = self._head
        self._committed = True
        self._answer = Answer(streamed=self._sse, hides_usage=self.hides_usage())
        data = self._answer.take(data)
        out = response_headers(headers) + self.own_headers()
        if self._sse and not any(name.lower() == b"x-accel-buffering" for name, _ in out):
            out.append((b"x-accel-buffering", b"no"))
        if self._length is not None and len(data) == self._length:
            self.exchange.respond(status, out, data)
            return
        self.exchange.start(status, out, length=self._length)
        self.exchange.write(data)

    def engine_error(self, extra: Headers) -> bool:
        """Pass on the engine's own error answer, if there is one."""
        if self._head is None or self._error_body is None:
            return False
        status, headers = self._head
        extra_names = {name for name, _ in extra}
        kept = [(name, value) for name, value in response_headers(headers) if name.lower() not in extra_names]
        self.exchange.respond(status, kept + self.own_headers() + extra, bytes(self._error_body))
        return True

    def break_off(self, api: wire.Api, reason: Reason) -> None:
        """End an answer that has begun: with an error event in a stream, else by closing the connection."""
        if self._sse:
            apart = b"\n\n" if self._answer.mid_event() else b""  # from half an event
            self.exchange.write(apart + wire.error_event(api, reason, wire.MESSAGE[reason]))
            self.exchange.end()
        else:
            self.exchange.abort()


class QueuedJourney(Relay):
    """A request that waits its turn and holds a lease while it is answered."""

    __slots__ = (
        "_driver",
        "_endpoint",
        "_has_key",
        "_inflated",
        "_injected_usage",
        "_lease",
        "_metrics",
        "_progress_at",
        "_queue_s",
        "_request_id",
        "_targets",
        "_waiting_since_s",
        "api",
        "band",
        "caller",
        "first_s",
        "request",
        "started_s",
    )

    def __init__(
        self,
        exchange: Exchange,
        body: bytes,
        request: Request,
        *,
        request_id: bytes,
        api: wire.Api,
        band: str,
        driver: Driver,
        targets: Mapping[str, Target],
        metrics: Metrics,
        caller: Caller,
        inflated: bool,
        injected_usage: bool,
    ) -> None:
        super().__init__(exchange, body)
        self.request = request
        self.api = api
        self.band = band
        self.started_s = driver.now()
        self._request_id = request_id
        self._driver = driver
        self._targets = targets
        self._metrics = metrics
        self.caller = caller
        self._has_key = caller.has_key
        self._inflated = inflated
        self._injected_usage = injected_usage
        self._progress_at = PROGRESS_TOKENS
        self._lease: int | None = None
        self._endpoint = ""
        self._queue_s = 0.0  # in finished visits to the queue
        self._waiting_since_s: float | None = self.started_s
        self.first_s: float | None = None

    def begin(self) -> None:
        """Tell the scheduler that the request is here."""
        driver = self._driver
        self.exchange.on_disconnect = self._client_gone
        driver.join(self.request.id, self)
        driver.tell(driver.scheduler.arrived(self.request, now=self.started_s))

    # --- from the scheduler ---------------------------------------------------------------------------------

    def dispatched(self, action: Dispatch, /) -> None:
        self._lease = action.lease
        self._endpoint = action.endpoint
        self._queue_s = action.queue_s
        self._waiting_since_s = None
        self._metrics.dispatched(self, action)
        target = self._targets[action.endpoint]
        rank = action.rank if target.takes_priority else None
        headers = request_headers(
            self.exchange.headers,
            api_key=target.api_key,
            request_id=self._request_id,
            inflated=self._inflated,
            has_key=self._has_key,
            ranked=rank is not None,
        )
        body = self.body
        if rank is not None and not is_multipart(self.exchange.header(b"content-type")):
            body = set_field(body, "priority", b"%d" % rank)
        self.send(target, headers, body)

    def requeued(self, action: Requeue, /) -> None:
        self._waiting_since_s = self._driver.now()
        self._metrics.requeued(action)

    def ended(self, action: Reject | Evict | Fail, /) -> None:
        reason = action.reason
        extra: Headers = [(b"x-penstock-reason", reason.encode())]
        if action.retry_after_s is not None:
            extra.append(wire.retry_after(action.retry_after_s))
        if self._committed:
            self.break_off(self.api, reason)
        elif not (isinstance(action, Fail) or reason is Reason.QUEUE_TIMEOUT) or not self.engine_error(extra):
            message = _message(reason, self.request.model, self.request.pinned)
            status, headers, body = wire.refusal(
                self.api, reason, message, param=_PARAMS.get(reason), retry_after_s=action.retry_after_s
            )
            self.exchange.respond(status, headers + self.own_headers(), body)
        self._leave(action.outcome, reason)

    def aborted(self, action: Abort, /) -> None:
        self.hang_up()
        if self._committed:
            self.break_off(self.api, action.reason)
        else:
            status, headers, body = wire.refusal(self.api, action.reason, retry_after_s=1.0)
            self.exchange.respond(status, headers + self.own_headers(), body)
        self._leave(Outcome.FAILED, action.reason)
        self._driver.tell(self._driver.scheduler.cancelled(self.request.id, now=self._driver.now()))

    # --- from the engine ------------------------------------------------------------------------------------

    def own_headers(self) -> Headers:
        headers: Headers = [(b"x-request-id", self._request_id), (b"x-penstock-band", self.band.encode())]
        if self._endpoint:
            headers.append((b"x-penstock-endpoint", self._endpoint.encode()))
        headers.append((b"x-penstock-queue-ms", b"%d" % (self.waited_s() * 1000)))
        return headers

    def first_byte(self) -> None:
        now = self.first_s = self._driver.now()
        assert self._lease is not None
        self._driver.tell(self._driver.scheduler.first_token(self._lease, now=now))

    def progressed(self) -> None:
        tokens = self._answer.tokens
        if tokens >= self._progress_at and self._lease is not None:
            self._progress_at = tokens + PROGRESS_TOKENS
            now = self._driver.now()
            self._driver.tell(self._driver.scheduler.progressed(self._lease, tokens, now=now))

    def hides_usage(self) -> bool:
        return self._injected_usage and self._length is None and not self._packed

    def succeeded(self, status: int) -> None:
        usage = self._answer.usage() if status < 400 else Usage(0, 0)  # an engine's refusal cost nothing
        self._leave(Outcome.COMPLETED, None)
        self._metrics.used(self, usage, self._answer.tokens)
        self._settle(lambda lease, now: self._driver.scheduler.finished(lease, usage, now=now))

    def failed(self, failure: Failure, detail: str) -> None:
        logger.debug("%s at %s: %s, %s", self.request.id, self._endpoint, failure, detail)
        unreachable = self._targets[self._endpoint].unreachable
        if failure is Failure.CONNECT and unreachable is not None:
            unreachable()
        self._settle(lambda lease, now: self._driver.scheduler.failed(lease, failure, now=now))

    # --- from the client ------------------------------------------------------------------------------------

    def elapsed_s(self) -> float:
        """Since the whole request was here."""
        return self._driver.now() - self.started_s

    def waited_s(self) -> float:
        """In the queue, all visits together, the present one included."""
        since_s = self._waiting_since_s
        return self._queue_s if since_s is None else self._queue_s + self._driver.now() - since_s

    def _client_gone(self) -> None:
        self.hang_up()
        waited = self._lease is None
        self._leave(Outcome.EVICTED if waited else Outcome.FAILED, Reason.CANCELLED if waited else Reason.CLIENT_GONE)
        self._driver.tell(self._driver.scheduler.cancelled(self.request.id, now=self._driver.now()))

    def _settle(self, report: Callable[[int, float], list[Action]]) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        self._driver.tell(report(lease, self._driver.now()))

    def _leave(self, outcome: Outcome, reason: Reason | None) -> None:
        self.exchange.on_disconnect = self.exchange.on_pause = self.exchange.on_resume = None
        self._driver.leave(self.request.id)
        self._metrics.ended(self, outcome, reason)


class DirectJourney(Relay):
    """A request that costs an engine next to nothing: sent at once, without a lease."""

    __slots__ = (
        "_attempts",
        "_driver",
        "_endpoint",
        "_has_key",
        "_inflated",
        "_metrics",
        "_request_id",
        "_targets",
        "api",
        "model",
        "pinned",
    )

    def __init__(
        self,
        exchange: Exchange,
        body: bytes,
        model: str,
        *,
        pinned: str | None,
        request_id: bytes,
        api: wire.Api,
        driver: Driver,
        targets: Mapping[str, Target],
        metrics: Metrics,
        has_key: bool,
        inflated: bool,
    ) -> None:
        super().__init__(exchange, body)
        self._has_key = has_key
        self._inflated = inflated
        self.model = model
        self.pinned = pinned
        self.api = api
        self._request_id = request_id
        self._driver = driver
        self._targets = targets
        self._metrics = metrics
        self._endpoint = ""
        self._attempts = 0

    def begin(self) -> None:
        """Send it to the endpoint it names, else to the least loaded one."""
        scheduler = self._driver.scheduler
        endpoint = self.pinned
        if endpoint is None:
            endpoint = scheduler.least_loaded(self.model, now=self._driver.now())
        if endpoint is None:
            known = scheduler.knows(self.model) is not False
            self._refuse(Reason.NO_ENDPOINT if known else Reason.MODEL_NOT_FOUND)
            return
        target = self._targets.get(endpoint)
        if target is None:
            self._refuse(Reason.ENDPOINT_NOT_FOUND)
            return
        self._endpoint = endpoint
        self.exchange.on_disconnect = self._client_gone
        headers = request_headers(
            self.exchange.headers,
            api_key=target.api_key,
            request_id=self._request_id,
            inflated=self._inflated,
            has_key=self._has_key,
        )
        self.send(target, headers, self.body)

    def own_headers(self) -> Headers:
        return [(b"x-request-id", self._request_id), (b"x-penstock-endpoint", self._endpoint.encode())]

    def succeeded(self, status: int) -> None:  # noqa: ARG002
        self._metrics.passed(self.model, Outcome.COMPLETED, None)

    def failed(self, failure: Failure, detail: str) -> None:  # noqa: ARG002
        self._attempts += 1
        if failure is Failure.CONNECT and self.pinned is None and self._attempts < DIRECT_ATTEMPTS_MAX:
            self._driver.tell(self._driver.scheduler.endpoint_down(self._endpoint, now=self._driver.now()))
            unreachable = self._targets[self._endpoint].unreachable
            if unreachable is not None:
                unreachable()
            self.begin()
            return
        reason = final_reason(failure)
        if self._committed:
            self.break_off(self.api, reason)
        elif not self.engine_error([]):
            self._refuse(reason)
            return
        self._metrics.passed(self.model, Outcome.FAILED, reason)

    def _client_gone(self) -> None:
        self.hang_up()
        self._metrics.passed(self.model, Outcome.FAILED, Reason.CLIENT_GONE)

    def _refuse(self, reason: Reason) -> None:
        message = _message(reason, self.model, self.pinned)
        retry_after_s = 1.0 if reason is Reason.NO_ENDPOINT else None
        status, headers, body = wire.refusal(
            self.api, reason, message, param=_PARAMS.get(reason), retry_after_s=retry_after_s
        )
        self.exchange.respond(status, [*headers, (b"x-request-id", self._request_id)], body)
        self._metrics.passed(self.model, Outcome.FAILED if self._endpoint else Outcome.REJECTED, reason)


_PARAMS = {Reason.MODEL_NOT_FOUND: "model", Reason.ENDPOINT_NOT_FOUND: "id"}


def _message(reason: Reason, model: str, pinned: str | None) -> str | None:
    """What a reason's own sentence can't say: the name in question."""
    if reason is Reason.MODEL_NOT_FOUND:
        return model_not_found(model)
    if reason is Reason.ENDPOINT_NOT_FOUND:
        return f"There is no endpoint `{(pinned or '')[:200]}`."
    return None


def model_not_found(model: str) -> str:
    """What to tell a caller who named a model that nobody serves."""
    return f"The model `{model[:200]}` does not exist. GET /v1/models lists those that do."
