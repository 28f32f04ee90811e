"""One ext_proc stream: one HTTP request of a proxy, from its head to the end of its answer.

Messages of the proxy become events of a `Pick`, and its verbs become messages. All is done in the turn of the loop in
which a message came; what is to be sent is written by one coroutine at a time, in order. The stream's end is the
answer's end: a proxy closes it when the answer is over, or when its client hung up. In each state the next message is
due within some time (`timeouts`): a proxy that is silent for longer gets the end of the stream, which makes it give up
its engine. Only while the request is queued nothing is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from penstock.core.values.catalogue import Reason
from penstock.gateway.epp.filters import Modes
from penstock.gateway.epp.pick import Pick
from penstock.gateway.epp.picked_journey import PickedJourney
from penstock.gateway.epp.picker import NOWHERE, Picker, is_closed
from penstock.http.client.call import Payload
from penstock.http.client.pool import Headers, Upstream, UpstreamError, UpstreamErrorKind
from penstock.http.server.server import Header, Refusal
from penstock.http.server.timer import DeadlineTimer

logger = logging.getLogger(__name__)

Request, Response = ext_proc.ProcessingRequest, ext_proc.ProcessingResponse
PIECE_BYTES_MAX = 62_000  # of a body in one message: protocol 004
DESTINATION = "x-gateway-destination-endpoint"
FALLBACK = "x-penstock-fallback-endpoint"  # for a cluster that takes one address from a header
LB_SPACE, SERVED = "envoy.lb", "x-gateway-destination-endpoint-served"
SUBSET_SPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
_WITH_BODY = ProcessingMode(  # of an answer that is sampled
    response_header_mode=ProcessingMode.SEND,
    request_body_mode=ProcessingMode.BUFFERED,
    response_body_mode=ProcessingMode.STREAMED,
    response_trailer_mode=ProcessingMode.SEND,
)
_PROXYS_ERRORS = frozenset({503, 504})
UNSEEN_S = 3600.0  # of an answer whose body does not come: longer than any, so a stream that is forgotten ends
END_S = 5.0  # from the end of an answer to that of its stream
LENGTH_DIGITS_MAX = 15
KEYS_KEPT = (
    "This port gives out no engine's API key, because proxies need no proof (`epp.client_ca`, `epp.secret`), and every "
    "endpoint has one."
)
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_APPEND = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD


class OutOfOrder(Exception):  # noqa: N818
    """A message that can't come now. The text says which."""


class ProxyStream:
    """One stream."""

    def __init__(self, picker: Picker, context: Any) -> None:
        self._picker = picker
        self._context = context
        self._out: list[Any] = []
        self._writing = False
        self._closing = False  # nothing follows what is in `_out`
        self._broken = False
        self._modes = Modes()
        self._pick: Pick | None = None
        self._body_bytes_max = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._bodyless = False  # the request has no body
        self._whole = False  # the request has come
        self._request_trailers = False  # it has some
        self._came = ""  # its target, as the proxy has it
        self._turn = False  # a message is being processed
        self._head_s = 0.0
        self._task = asyncio.current_task()
        self._answering = False  # the head of the answer came
        self._began = False  # a part of its body came
        self._ended = False  # the answer's end came, or does not come any more
        self._cut = False  # it does not come any more
        self._events = False  # it is a stream of events
        self._due_trailers: Any = None
        self._rest: bytes | None = None  # the last piece of the answer, until its end comes
        self._address = ""  # as it was picked, `ip:port`
        self._others: list[str] = []  # that were named besides, likewise
        self._samples = False  # the body of this answer is asked for, though the filter keeps bodies to itself
        self._shows_served = False  # the answer's head names its endpoint, which is for us only
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, self._overdue)  # when the next message has to be there
        self._body_until_s = 0.0
        self._woken: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the stream to its end."""
        context = self._context
        self._within(self._picker.timeouts.client_header)
        wrong = ""
        try:
            while not self._closing:
                message = await context.read()
                if message is grpc.aio.EOF:
                    break
                self._turn = True
                self._take(message)
                self._turn = False
                if self._out and not self._writing:
                    await self._write()
            if self._woken is not None:
                await self._woken
        except OutOfOrder as problem:
            wrong = str(problem)
        except asyncio.CancelledError:
            if not self._closing:  # the proxy reset the stream
                raise
        except Exception as error:  # whatever a message does ends its own stream only
            logger.debug("a message could not be processed", exc_info=True)
            wrong = f"a message that can't be processed ({type(error).__name__}: {str(error)[:100]})"
        finally:
            self._turn = True
            self._end()
        if wrong:
            self._picker.filters.strange(context.peer(), wrong)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        if self._broken:
            await context.abort(grpc.StatusCode.ABORTED, "the answer broke off")

    async def _write(self) -> None:
        self._writing = True
        try:
            while self._out:
                out, self._out = self._out, []
                for message in out:
                    await self._context.write(message)
        finally:
            self._writing = False

    def _wake(self) -> None:
        """Write what a decision of another turn brought."""
        if self._out and not (self._turn or self._writing) and self._woken is None:
            self._woken = self._loop.create_task(self._write_later())

    async def _write_later(self) -> None:
        try:
            if not self._writing:
                await self._write()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self._out.clear()  # the proxy is gone: `run` sees it, too
        finally:
            self._woken = None
            if self._closing:
                self._close()

    def _close(self) -> None:
        """End the stream once all is written."""
        self._closing = True
        if not (self._turn or self._writing or self._out or self._woken) and self._task is not None:
            self._task.cancel()  # it waits for a message

    def _end(self) -> None:
        """The stream is over, whatever the reason."""
        self._timer.close()
        pick, self._body = self._pick, []
        if pick is None:
            return
        if pick.unseen and self._answering and pick.sent:
            self._picker.filters.ended(self._picker.driver.now() - self._head_s, streamed=self._events)
            pick.ended()
        else:
            pick.gone()

    # --- time -----------------------------------------------------------------------------------------------------

    def _within(self, seconds: float) -> None:
        """The next message is due within so many seconds."""
        self._timer.set(self._loop.time() + seconds)

    def _overdue(self) -> None:
        pick, timeouts = self._pick, self._picker.timeouts
        if pick is None or pick.over:
            self._close()
        elif not self._whole:
            self._refuse(Refusal.CLIENT_TIMEOUT)
        elif pick.sent:
            self._ended = self._cut = True
            if self._began or (self._modes.unseen and self._answering):
                error = UpstreamError(UpstreamErrorKind.IDLE_TIMEOUT, f"no payload for {timeouts.between_bytes:g} s")
            else:
                late = f"no answer within {timeouts.first_byte:g} s"
                error = UpstreamError(UpstreamErrorKind.FIRST_BYTE_TIMEOUT, late)
            self._fail(error)
        self._wake()

    # --- from the proxy -------------------------------------------------------------------------------------------

    def _take(self, message: Any) -> None:
        if message is None:
            raise OutOfOrder("bytes that are no message")
        kind = message.WhichOneof("request")
        pick = self._pick
        if kind == "response_body":
            self._response_body(message.response_body)
        elif kind == "request_headers":
            self._request_headers(message)
        elif kind == "request_body":
            self._request_body(message.request_body)
        elif kind == "response_headers":
            self._response_headers(message)
        elif kind == "response_trailers":
            if not self._answering or (self._ended and not self._cut):
                raise OutOfOrder("trailers of an answer that has not begun, or twice")
            self._due_trailers = Response(response_trailers=ext_proc.TrailersResponse())
            self._answer_ended()
        elif kind == "request_trailers":
            if pick is None or self._request_trailers:
                raise OutOfOrder("trailers before the request's headers, or twice")
            self._request_trailers = True
            if self._address:  # otherwise they are answered after head and body
                self._out.append(Response(request_trailers=ext_proc.TrailersResponse()))
            self._complete()
        else:
            raise OutOfOrder("an empty message")

    def _request_headers(self, message: Any) -> None:
        if self._pick is not None:
            raise OutOfOrder("request headers twice")
        picker, head = self._picker, message.request_headers
        if message.HasField("protocol_config"):
            self._modes = Modes(message.protocol_config.request_body_mode, message.protocol_config.response_body_mode)
        pick = self._pick = picker.pick(self._context.peer(), self, head.headers.headers)
        pick.unseen = self._modes.unseen
        if (problem := self._modes.problem) is not None:
            picker.filters.found(problem)
            picker.app.refusals.refuse(pick, Reason.UPSTREAM_ERROR, problem)
            return
        if SUBSET_SPACE in message.metadata_context.filter_metadata and not self._narrow(
            message.metadata_context.filter_metadata[SUBSET_SPACE]
        ):
            picker.app.refusals.refuse(pick, Reason.NO_ENDPOINT, "No endpoint of the subset is served here.")
            return
        self._came = pick.target_path + (f"?{pick.query}" if pick.query else "")
        body_bytes_max = picker.app.begin_pick(pick, is_closed)
        self._body_bytes_max = min(picker.body_bytes_max, body_bytes_max or picker.body_bytes_max)
        if pick.only == NOWHERE and not pick.over and picker.app.routes.get(pick.target_path) is not None:
            picker.app.refusals.refuse(pick, Reason.NO_ENDPOINT, KEYS_KEPT)
        if pick.over:
            return
        self._bodyless = head.end_of_stream
        if self._bodyless:
            self._complete()
            return
        length = pick.lookup.get(b"content-length", b"")
        if length.isdigit() and (len(length) > LENGTH_DIGITS_MAX or int(length) > self._body_bytes_max):
            self._refuse(Refusal.REQUEST_TOO_LARGE)
            return
        self._body_until_s = self._loop.time() + picker.timeouts.client_body_total
        self._await_body()
        if self._modes.buffered:
            self._out.append(Response(request_headers=ext_proc.HeadersResponse()))

    def _narrow(self, hint: Any) -> bool:
        """Keep to the endpoints of a subset. Returns False if there are none."""
        assert self._pick is not None
        value = hint.fields.get(SUBSET)
        if value is None:
            return True
        given = [v.string_value for v in value.list_value.values] or value.string_value.split(",")
        return self._picker.narrow(self._pick, [place.strip() for place in given])

    def _request_body(self, body: Any) -> None:
        pick = self._pick
        if pick is None or self._whole:
            raise OutOfOrder("a part of the request's body before its headers, or after its end")
        if pick.over:
            return
        self._body_bytes += len(body.body)
        if self._body_bytes <= self._body_bytes_max and pick.on_body is not None:
            if body.body:
                pick.on_body(body.body)
        else:
            self._body.append(body.body)
        if self._body_bytes > self._body_bytes_max:
            self._refuse(Refusal.REQUEST_TOO_LARGE)
        elif pick.on_body is None and not pick.hold(len(body.body)):
            self._refuse(Refusal.TOO_MANY_BYTES)
        elif body.end_of_stream or self._modes.buffered:
            self._complete()
        else:
            self._await_body()

    def _await_body(self) -> None:
        self._within(min(self._picker.timeouts.client_body, self._body_until_s - self._loop.time()))

    def _complete(self) -> None:
        pick = self._pick
        if pick is None or pick.over or self._whole:
            return
        self._timer.clear()  # its turn may take any time
        self._whole = True
        pick.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._picker.app.complete_pick(pick, PickedJourney)

    def _refuse(self, refusal: Refusal) -> None:
        assert self._pick is not None
        self._body = []
        detail = "The request's body is too large, or too slow."
        self._pick.respond(*self._picker.app.refusals.refused(self._pick, refusal, detail))

    def _response_headers(self, message: Any) -> None:
        pick, head = self._pick, message.response_headers
        if pick is None or self._answering:
            raise OutOfOrder("the head of an answer before its request, or twice")
        self._answering = True
        status, headers, served = self._head_of(head)
        if not pick.sent:
            self._out.append(Response(response_headers=ext_proc.HeadersResponse()))  # an answer of the proxy's own
            return
        if LB_SPACE in (spaces := message.metadata_context.filter_metadata):
            served = spaces[LB_SPACE].fields[SERVED].string_value or served
        named = served in self._others or (served and served != self._address and self._picker.fallbacks_max)
        if named and isinstance(pick.sink, PickedJourney):
            pick.sink.rerouted(self._picker.places.at(served))
        if status in _PROXYS_ERRORS and _is_proxys(headers):
            kind = UpstreamErrorKind.RESET if status == 503 else UpstreamErrorKind.FIRST_BYTE_TIMEOUT
            self._fail(UpstreamError(kind, f"the proxy got no answer: {status}"))
            return
        if self._modes.unseen:
            self._head_s = self._picker.driver.now()
            readable = status < 300 and not any(name == b"content-encoding" for name, _ in headers)
            self._samples = readable and isinstance(pick.sink, PickedJourney) and self._picker.samples()
            self._events = any(value.startswith(b"text/event-stream") for _, value in headers)
            self._within(UNSEEN_S)
            pick.answered_alone(status, headers)
            return
        pick.answered(status, headers)
        if head.end_of_stream:
            self._answer_ended()

    def _head_of(self, head: Any) -> tuple[int, Headers, str]:
        """Returns status, headers and the endpoint that served, if the proxy names it."""
        status, headers, served = 200, [], ""
        for header in head.headers.headers:
            value = header.raw_value or header.value.encode()
            if header.key == SERVED and self._address:
                served, self._shows_served = value.decode("latin-1"), True
            elif header.key == ":status":
                status = int(value) if len(value) == 3 and value.isdigit() else 0
            elif not header.key.startswith(":"):
                if header.key.lower() == "content-length" and not (value.isdigit() and len(value) <= LENGTH_DIGITS_MAX):
                    raise OutOfOrder("an answer whose content-length is no number")
                headers.append((header.key.encode(), value))
        if status < 200:
            raise OutOfOrder("an answer whose status is no number from 200 on")
        return status, headers, served

    def _response_body(self, body: Any) -> None:
        pick = self._pick
        if pick is None or not self._answering or self._ended:
            raise OutOfOrder("a part of an answer that has not begun, or has ended")
        sink = pick.sink
        if self._modes.unseen:
            if isinstance(sink, PickedJourney):
                sink.sampled(body.body)
            self._out.append(Response(response_body=ext_proc.BodyResponse()))
            return
        if sink is None:
            self._out.append(_response_piece(body.body, end=body.end_of_stream))
            return
        if body.body and not sink.on_data(body.body):
            self._began = True
            self._within(self._picker.timeouts.between_bytes)
        if body.end_of_stream:
            self._answer_ended()

    def _answer_ended(self) -> None:
        self._ended = True
        self._within(END_S)
        pick = self._pick
        if pick is not None:
            pick.ended()
        if self._rest is not None:
            rest, self._rest = self._rest, None
            self.last(rest)
        elif self._due_trailers is not None:
            self._flush_trailers()

    # --- from the pick --------------------------------------------------------------------------------------------

    def picked(
        self, upstream: Upstream, target: str, added: Headers, removed: list[bytes], body: Payload | None
    ) -> None:
        """Name the endpoint, with the changed head and the body."""
        address = self._picker.places.address(upstream)
        if address is None:  # its name has none, or it is at a unix socket
            pick = self._pick
            assert pick is not None
            self._loop.call_soon(
                self._fail, UpstreamError(UpstreamErrorKind.CONNECT, "it has no address that a proxy could reach")
            )
            return
        self._address = address
        self._within(self._picker.timeouts.first_byte)
        listed = self._picker.fallbacks_max
        if self._pick is not None and isinstance(self._pick.sink, PickedJourney):
            others = self._pick.sink.fallbacks(max(1, listed))
            self._others = [place for place in map(self._picker.places.address, others) if place]
            address = ",".join([address, *self._others[:listed]])
        if upstream.prefix or target != self._came:  # below `root_path`, or for another model
            added = [*added, (b":path", upstream.prefix.encode() + target.encode())]
        self._body = []
        given: list[bytes | memoryview] = [] if body is None else [body] if isinstance(body, bytes) else [*body]
        answer, whole = Response(), self._modes.buffered and not self._bodyless
        common = (answer.request_body if whole else answer.request_headers).response
        common.clear_route_cache = True
        changes = common.header_mutation
        _mutate(changes, added, removed)
        _set(changes, DESTINATION, address.encode())
        if self._others:
            _set(changes, FALLBACK, self._others[0].encode())
        else:
            changes.remove_headers.append(FALLBACK)  # its client may have written it
        if not self._bodyless:
            _set(changes, "content-length", b"%d" % sum(map(len, given)))
        answer.dynamic_metadata.fields[LB_SPACE].struct_value.fields[DESTINATION].string_value = address
        self._out.append(answer)
        if whole:
            common.body_mutation.body = b"".join(given)
        elif not self._bodyless:
            self._pieces(given, ends=not self._request_trailers)
        if self._request_trailers:
            self._out.append(Response(request_trailers=ext_proc.TrailersResponse()))
        self._wake()

    def _pieces(self, body: list[bytes | memoryview], *, ends: bool) -> None:
        """The request's body, in pieces that a message holds. It `ends` with the last one, or with trailers."""
        pieces = [
            piece[at : at + PIECE_BYTES_MAX] for piece in body for at in range(0, len(piece), PIECE_BYTES_MAX)
        ] or [b""]
        for piece in pieces[:-1]:
            self._out.append(_request_piece(bytes(piece), end=False))
        self._out.append(_request_piece(bytes(pieces[-1]), end=ends))

    def _fail(self, error: UpstreamError) -> None:
        if self._pick is not None:
            self._pick.failed(error)
            self._wake()

    def refused(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Answer the request ourselves; nothing follows."""
        answer = Response()
        immediate = answer.immediate_response
        immediate.status.code, immediate.body, immediate.details = status, body, "penstock"
        _mutate(immediate.headers, headers, [SERVED.encode()] if self._shows_served else [])
        self._closing = True
        self._later(answer)

    def head(self, status: int | None, added: Headers, removed: list[bytes]) -> None:
        """Let the head of the answer pass, with these changes."""
        answer = Response(mode_override=_WITH_BODY if self._samples else None)
        changes = answer.response_headers.response.header_mutation
        changes.SetInParent()  # also without any
        _mutate(changes, added, removed)
        if self._shows_served:
            changes.remove_headers.append(SERVED)
        if status is not None:
            _set(changes, ":status", b"%d" % status)
        self._later(answer)

    def piece(self, data: bytes) -> None:
        """A part of the answer."""
        self._later(_response_piece(data, end=False))

    def last(self, data: bytes) -> None:
        """The last part of the answer. It is held until the engine's answer has ended, too."""
        if not self._ended:
            self._rest = data
            return
        if self._due_trailers is None:
            self._closing = self._closing or self._cut  # the proxy gives its engine up when the stream ends here
            self._later(_response_piece(data, end=True))
            return
        if data:
            self._later(_response_piece(data, end=False))
        self._flush_trailers()

    def _flush_trailers(self) -> None:
        trailers, self._due_trailers = self._due_trailers, None
        self._later(trailers)

    def broken(self) -> None:
        """Break the answer off: an error of the stream, on which the proxy resets its client."""
        self._broken = True
        self._out.clear()
        self._close()

    def _later(self, message: Any) -> None:
        self._out.append(message)
        self._wake()


def _is_proxys(headers: Headers) -> bool:
    """True if an error is the proxy's own: Envoy marks what came from an engine with the time that took."""
    names = {name for name, _ in headers}
    return b"x-envoy-upstream-service-time" not in names and (b"content-type", b"text/plain") in headers


def _mutate(changes: Any, added: Sequence[Header], removed: list[bytes]) -> None:
    """Let a head change so. Messages are filled in place: each one that is put into another is copied."""
    changes.remove_headers.extend([name.decode("latin-1") for name in removed])
    seen: set[bytes] = set()
    for name, value in added:
        lower = name.lower()
        _set(changes, lower.decode("latin-1"), value, _APPEND if lower in seen else _OVERWRITE)
        seen.add(lower)


def _set(changes: Any, name: str, value: bytes, action: int = _OVERWRITE) -> None:
    option = changes.set_headers.add()
    option.append_action = action
    header = option.header
    header.key, header.raw_value = name, value


def _request_piece(data: bytes, *, end: bool) -> Any:
    answer = Response()
    piece = answer.request_body.response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = data, end
    return answer


def _response_piece(data: bytes, *, end: bool) -> Any:
    answer = Response()
    piece = answer.response_body.response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = data, end
    return answer
