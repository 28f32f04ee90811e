"""An engine's answer on its way to a client: headers, bytes, and what becomes of them when something breaks.

A relay is the sink of its engine call. It holds the engine's head back until the first token of a stream, the end of a
small whole answer, or the first bytes of a large one: until then nothing was promised to the client, and a failure can
be retried. After that the bytes pass as they come. Comments before the first token pass at once, with the head: then a
retry can only be a stream again. Where the answer comes from and what its end means is decided by the journey
(`journey.py`).

A relay and its journey are one object. Calls go two ways, each by a list: a relay asks its journey and reports to it by
the methods of `for its journey to answer`, which are all that a journey overrides; a journey sends, refuses and breaks
off by the other public ones. It reads the fields of its relay, and writes `progress_at` alone (tests/tidy).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import clock
from penstock.core.values.catalogue import Failure, Reason
from penstock.engines import orca
from penstock.engines.base import Engine
from penstock.gateway.openai import errors
from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.gateway.openai.answers.events import says_at_once
from penstock.gateway.openai.answers.opening import Opening
from penstock.gateway.openai.answers.stream_end import (
    aborted,
    ends_itself,
    is_api_error,
    json_cut_off,
    of_caller,
    tells_error,
    whole_error,
)
from penstock.gateway.openai.body import renamed
from penstock.gateway.openai.routes import api_of
from penstock.gateway.openai.splice import Body, Spliced
from penstock.gateway.proxy.headers import RESPONSE_OWN, response_headers, retry_after_s, unnamed
from penstock.gateway.proxy.target import NOTHING_ADDED, USAGE, Target
from penstock.http.client.pool import Call, Headers, Sink, UpstreamError, UpstreamErrorKind
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.openai.answers.packed import Packed

KEY_REFUSED: Final = frozenset({401, 403})
ERROR_BODY_BYTES_MAX: Final = 65536  # of an engine's error, kept in case the request can't go elsewhere
WHOLE_BYTES_MAX: Final = 65536  # a whole answer up to this size is held until complete, so that it can be retried
CUT_JSON: Final = "a JSON text that stops before its end"
NEVER: Final = 1 << 62  # tokens
_LINES: Final = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines")
#: Names of an answer's headers that are read here, or do not pass.
_READ: Final = RESPONSE_OWN | {b"content-type", b"content-encoding", orca.HEADER}
_EVENTS_BEGIN: Final = (b":", b"data:", b"event:", b"id:", b"retry:")
_NO_HEADERS: Final[Headers] = []  # never written
_STREAM_HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

FAILURES: Final[dict[UpstreamErrorKind, Failure]] = {
    UpstreamErrorKind.CONNECT: Failure.CONNECT,
    UpstreamErrorKind.CONNECT_TIMEOUT: Failure.CONNECT,
    UpstreamErrorKind.STALE: Failure.STALE,
    UpstreamErrorKind.RESET: Failure.RESET,
    UpstreamErrorKind.BROKEN: Failure.RESET,  # in the head, or before the first byte of the body
    UpstreamErrorKind.FIRST_BYTE_TIMEOUT: Failure.FIRST_BYTE_TIMEOUT,
    UpstreamErrorKind.IDLE_TIMEOUT: Failure.FIRST_BYTE_TIMEOUT,
    UpstreamErrorKind.PROTOCOL: Failure.SERVER_ERROR,
}


_NO_ANSWER: Final = AnswerReader(streamed=False, hides_usage=False)  # until one begins


class Relay:
    """The way of an engine's answer to a client."""

    __slots__ = (
        "_answer", "_asked_load", "_beating", "_call", "_committed", "_error_body", "_field", "_head", "_json",
        "_length", "_lines", "_opaque", "_opening", "_packed", "_refuses_key", "_request_target", "_sse", "_suspect",
        "_target", "_whole", "added", "body", "exchange", "model", "progress_at",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, body: Body, model: str, field: str) -> None:
        self.exchange = exchange
        self.model = model  # as the scheduler knows it
        self._field = field  # of the body, that names it
        self._request_target = exchange.target_path + (f"?{exchange.query}" if exchange.query else "")
        self.body: Body = body  # until an answer begins
        self.added: frozenset[str] = NOTHING_ADDED  #: fields of ours in the body sent last
        self._call: Call | None = None
        # The engine's status and its headers that pass, until they are committed to the client.
        self._head: tuple[int, Headers] | None = None
        self._length: int | None = None
        self._error_body: bytearray | None = None  # being collected: an error that may be retried
        self._whole: bytearray | None = None  # being collected: a whole answer that is not complete
        self._committed = False
        # Status 200 went out before an answer, maybe while another model was asked: only a stream can follow.
        self._beating = exchange.status != 0
        self._packed: Packed | None = None
        self._opaque = False  # packed in a coding unknown here: nothing can be read of it, added or taken out
        self._json = False  # its head says that it is one JSON text
        self._opening: Opening | None = None  # the beginning of a stream, until its first token
        self._sse = False  # it is a stream of events
        self._lines = False  # it is a stream of JSON lines
        self._refuses_key = False  # the engine refused the credential it got, and that was not the caller's
        self._suspect = False  # the answer may not be an engine's: it is held back until that is clear
        self._asked_load = False
        self.progress_at = NEVER  #: tokens of the answer at which `progressed` is called next
        self._target: Target | None = None
        self._answer = _NO_ANSWER

    # --- for its journey to answer ----------------------------------------------------------------------------

    def own_headers(self) -> Headers:
        """Returns Penstock's own headers of the answer."""
        raise NotImplementedError

    def asks_stream(self) -> bool:
        """True if the client asked for a stream."""
        return False

    def answer_begins(self) -> None:
        """The answer begins: the first token of a stream, or the first bytes of another answer or of an error."""

    def progressed(self) -> None:
        """More of the body was passed on, and its tokens reached `progress_at`."""

    def suspects(self, status: int) -> bool:  # noqa: ARG002
        """True if an answer of this status, 300 or more, may not be an engine's."""
        return False

    def is_failure(self, status: int) -> bool:
        """True if another endpoint may do better. A 501 is the engine's own answer: it never does that."""
        return status == 429 or (status >= 500 and status != 501) or status in self._engine().failures

    def may_mend(self, status: int) -> bool:  # noqa: ARG002
        """True if a refusal of this status may be mended: sent again in another form, or elsewhere."""
        return False

    def mended(self, status: int, body: bytearray) -> bool:  # noqa: ARG002
        """Mend a refusal, if possible. Returns True if it goes no further."""
        return False

    def callers_key(self, target: Target) -> bool:
        """True if a credential that `target` refuses is the caller's own."""
        raise NotImplementedError

    def stranger(self) -> bool:
        """True if the endpoint has yet to prove that it is an engine."""
        return False

    def succeeded(self, status: int) -> None:
        """Settle a complete answer; `status` may be the engine's refusal."""
        raise NotImplementedError

    def failed(self, failure: Failure, detail: str) -> None:
        """Handle a failure: no answer, an error that may be retried, or an answer that broke off."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Abort the call to the engine; of a divided request, those to both."""
        if self._call is not None:
            self._call.abort()
            self._call = None

    # --- the engine's side ----------------------------------------------------------------------------------

    def send(  # noqa: PLR0917
        self,
        target: Target,
        headers: Headers,
        body: Body,
        sink: Sink | None = None,
        added: frozenset[str] = NOTHING_ADDED,
        asked_load: bool = False,  # noqa: FBT001, FBT002 - named arguments cost more
    ) -> Call:
        """Ask an engine. The answer goes to the client, or to `sink`. Returns the call.

        `added`: fields of ours in `body`. `asked_load`: Penstock asks for the engine's load, not the client.
        """
        self.added, self._asked_load = added, asked_load
        if self._target is not None:  # it was asked before
            self._head = self._error_body = self._whole = None
            self._length = None
            self._opaque = self._sse = self._lines = self._json = False
            self._suspect = self._refuses_key = False
            self._packed = self._opening = None
        self._target = target
        exchange, request_target = self.exchange, self._request_target
        if target.names and self.named != self.model:
            body, query = renamed(body, exchange.query, self.named, self._field)
            request_target = exchange.target_path + (f"?{query}" if query else "")
        self._call = call = exchange.forward(
            target.upstream,
            request_target,
            headers,
            body.pieces() if isinstance(body, Spliced) else body,
            sink or self,
        )
        exchange.on_pause = call.pause
        exchange.on_resume = call.resume
        return call

    def on_response(self, status: int, headers: Headers, /) -> None:
        passing: Headers = []
        coding = named = b""
        for header in headers:
            name = header[0].lower()
            if name not in _READ:
                passing.append(header)
            elif name == b"content-type":
                passing.append(header)
                self._is_of_kind(header[1].partition(b";")[0].strip().lower(), status)
            elif name == b"content-length":
                self._length = int(header[1])
            elif name == b"content-encoding":
                passing.append(header)
                coding = header[1]
            elif name == b"connection":
                named += b"," + header[1]
            elif name == orca.HEADER:
                if not self._asked_load:  # otherwise only Penstock asked for it
                    passing.append(header)
                self._heard_load(header[1])
        self._head = (status, unnamed(passing, named) if named else passing)
        if status >= 300:
            self._may_be_refused(status)
        if coding or (self._target is not None and self._target.names):
            self._is_packed(coding)
        if self._sse or self._lines:
            self._length = None  # events may be added, or taken out
        if self._beating and (status >= 300 or not self._sse or self._opaque):
            self._error_body = bytearray()  # it can't follow what went out: it is sent as an event

    def _is_of_kind(self, kind: bytes, status: int) -> None:
        self._json = kind == b"application/json"
        self._sse = kind == b"text/event-stream"
        self._lines = kind in _LINES
        if status < 300 and kind == b"text/html":  # a web page, which no engine makes
            self._suspect, self._error_body = True, bytearray()

    def _heard_load(self, value: bytes) -> None:
        """Note the load that an answer's header carries."""
        if self._target is not None and self._target.heard_load is not None:
            self._target.heard_load(value)

    def _may_be_refused(self, status: int) -> None:
        """Hold an answer that may have to be tried again back, and judge it at its end."""
        self._suspect = self.suspects(status)
        self._refuses_key = status in KEY_REFUSED and self._blames_key(status)
        mends = status >= 400 and self.may_mend(status)
        if self.is_failure(status) or self._suspect or self._refuses_key or mends:
            self._error_body = bytearray()

    def on_data(self, data: bytes, /) -> bool:
        """Take the next bytes. Returns True if they show no progress: comments, or announcements of an answer."""
        packed = self._packed
        if packed is not None and not packed.passes:
            data = self._unpack(packed, data)
            if not data:
                return True
        if not self._committed:
            return self._before_commit(data)
        answer, target = self._answer, self._target
        if packed is None or not packed.passes:
            self.exchange.write(answer.take(data))
        else:
            answer.take(packed.read(data))
            self.exchange.write(data)
        if answer.idle:
            return True
        assert target is not None
        target.moved = True
        if answer.tokens >= self.progress_at:
            self.progressed()
        return False

    def _before_commit(self, data: bytes) -> bool:
        """Take the next bytes while nothing was promised to the client. Returns what `on_data` does."""
        assert self._target is not None
        if not (self._sse or self._lines or self._opaque) and self.asks_stream():
            self._may_be_events(data)
        if self._error_body is not None:
            self._keep_error(self._error_body, data)
        elif (self._sse or self._lines) and not self._opaque:
            return self._open(data)
        elif self._is_held():
            self._collect(data)
        elif self._json and self._head is not None and self._head[0] < 300 and whole_error(data):
            self._error_body = bytearray(data)
        else:
            self.answer_begins()
            self._commit(data)
        self._target.moved = True
        return False

    def _is_packed(self, content_encoding: bytes) -> None:
        """Prepare to read an answer that is packed, or may have the engine's name for the model."""
        streams = self._sse or self._lines or self.asks_stream()
        if content_encoding:
            from penstock.gateway.openai.answers.packed import packed  # noqa: PLC0415 - few engines pack

            found = packed(content_encoding, streams=streams)
        else:
            from penstock.gateway.openai.answers.renamed import renames  # noqa: PLC0415 - few have names of their own

            found = renames(self.named, self.model, self._field) if streams or self._json else None
        if found is None:
            return
        self._packed, self._opaque = found, found.opaque
        if not found.passes:
            assert self._head is not None
            status, headers = self._head
            self._head = (status, [line for line in headers if line[0].lower() != b"content-encoding"])
            self._length = None

    def _unpack(self, packed: Packed, data: bytes) -> bytes:
        """Returns what a piece of a stream unpacks to: nothing if there is nothing yet, or the stream has failed."""
        from penstock.http.inflate import BadPacking, InflatesTooFar  # noqa: PLC0415

        try:
            return packed.unpack(data)
        except (BadPacking, InflatesTooFar) as problem:
            self.hang_up()
            self.on_error(UpstreamError(UpstreamErrorKind.PROTOCOL, str(problem)))
            return b""

    def _may_be_events(self, data: bytes) -> None:
        """Recognize a stream that was asked for by its first bytes, if the head does not say so."""
        assert self._head is not None
        if self._head[0] < 300 and not (self._whole or self._error_body or self._suspect):
            begins = data.lstrip(b"\xef\xbb\xbf\r\n")
            if begins.startswith(_EVENTS_BEGIN):
                self._sse, self._length = True, None
                if self._beating:
                    self._error_body = None
            elif (
                self._length is None
                and begins[:1] == b"{"
                and begins.find(b"}\n") > 0
                and (api_of(self.exchange.target_path) is errors.Api.OLLAMA)
            ):
                self._lines, self._length = True, None

    def _open(self, data: bytes) -> bool:
        """Look for the first token of a stream. Returns True if it has not come."""
        assert self._target is not None
        opening = self._opening
        if opening is None:
            if not self._lines and says_at_once(data):
                self._target.moved = True
                self.answer_begins()
                self._commit(data)
                return False
            opening = self._opening = Opening(lines=self._lines)
        asides, begun = opening.take(data)
        if asides:
            self._pass_asides(asides)
        if begun is None:
            return True
        self._target.moved = True
        assert self._head is not None
        if opening.stillborn or (opening.ended and tells_error(begun) and self.may_mend(self._head[0])):
            self._error_body = bytearray(begun)
        else:
            self.answer_begins()
            self._commit(begun)
        return False

    def _pass_asides(self, asides: bytes) -> None:
        """Pass comments and pings on before the first token, and with the first of them the head."""
        assert self._head is not None
        if not self._beating:
            self._beating = True
            self._start(*self._head)
        self.exchange.write(asides)

    def _is_held(self) -> bool:
        """True if a whole answer is held until complete: a small one, or JSON of unknown length while small."""
        if self._length is not None:
            return self._length <= WHOLE_BYTES_MAX
        return self._json and not self.asks_stream()

    def _collect(self, data: bytes) -> None:
        """Hold a small answer until it is complete, usually at once, and check how it ended."""
        length = self._length
        if length is None or len(data) < length:
            whole = self._whole = self._whole or bytearray()
            whole += data
            if length is None and len(whole) > WHOLE_BYTES_MAX:
                self._whole = None
                self.answer_begins()
                self._commit(bytes(whole))
                return
            if length is None or len(whole) < length:
                return
            data = bytes(whole)
        self._came_whole(data)

    def _came_whole(self, data: bytes) -> None:
        """Pass a small answer on, unless it is an error."""
        assert self._head is not None
        self._whole = None
        status, plain = self._head[0], self._plain(data)
        if whole_error(plain) if status < 300 else status == 404 and self._engine().lacks(self.named, plain):
            self._error_body = bytearray(data)
        elif aborted(self.exchange.target_path, plain):
            self._error_body = bytearray()
        else:
            self.answer_begins()
            self._commit(data, plain)

    def _plain(self, data: bytes) -> bytes:
        """Returns a whole answer unpacked; nothing if that fails."""
        return data if self._packed is None else self._packed.whole(data)

    def on_end(self) -> None:
        assert self._head is not None
        if self._packed is not None and (not self._packed.ends(self) or self._call is None):
            return
        status = self._head[0]
        self._call = None
        if self._whole is not None:  # JSON of unknown length
            if json_cut_off(self._plain(bytes(self._whole))):
                self.on_error(UpstreamError(UpstreamErrorKind.BROKEN, CUT_JSON))
                return
            self._length = len(self._whole)
            self._came_whole(bytes(self._whole))
        if self._error_body is not None and self._suspect and self._is_honest(status, self._error_body):
            data, self._error_body = bytes(self._error_body), None
            self.answer_begins()
            self._commit(data)
        if self._error_body is not None:
            self._ended_in_error(status, self._error_body)
            return
        if not self._committed and not self._begins_at_end(status):
            return
        if not (self._sse or self._lines):  # it came whole, by its framing
            if self._length is None and self._json and self._answer.cut_off():
                self.failed(Failure.BROKEN, CUT_JSON)
                return
            self.exchange.end()
            self.succeeded(status)
            return
        if self._answer.cut_off():
            self.failed(Failure.BROKEN, "a stream that stops inside an event")
            return
        path = self.exchange.target_path
        rest = self._answer.rest()
        well = self._answer.ended_well(path)
        if not well and self._ends_silently(path) and self._may_insert():
            self.exchange.write(self._broken_event(api_of(path), Reason.STREAM_BROKEN))
        self.exchange.write(rest)
        self.exchange.end()
        if well:
            self.succeeded(status)
        else:
            self.failed(Failure.BROKEN, "a stream that did not end well")

    def on_head_alone(self, status: int, headers: Headers) -> None:
        """Take the head of an answer whose body goes another way: only its end is reported (`on_end_alone`)."""
        self.on_response(status, headers)
        if self.is_failure(status) or self._refuses_key:
            self._ended_in_error(status, self._error_body or bytearray())
            return
        self.answer_begins()
        self._committed = True
        self.body, self._error_body = b"", None
        self.exchange.let_go()
        self._answer = AnswerReader(streamed=False, hides_usage=False)
        assert self._head is not None
        self._start(*self._head)

    def on_end_alone(self) -> None:
        """Settle an answer whose body went another way."""
        self._call = None
        assert self._head is not None
        self.exchange.end()
        self.succeeded(self._head[0])

    def _begins_at_end(self, status: int) -> bool:
        """Pass on an answer that ended before it was committed. Returns False if it is a stream without a token."""
        begun = None if self._opening is None else self._opening.end()
        if begun is not None:
            self.answer_begins()
        elif status == 200 and (self._sse or self._lines) and not self._opaque:
            self.no_answer()
            self.failed(Failure.SERVER_ERROR, "a stream that ended before its first token")
            return False
        self._commit(begun or b"")
        return True

    def _ends_silently(self, path: str) -> bool:
        """True if the client can't see that an answer did not end well."""
        return not self._answer.tells_error() and (self._answer.tells_abort() or not ends_itself(path))

    def on_error(self, error: UpstreamError, /) -> None:
        self._call = None
        if self._committed:
            self.failed(Failure.BROKEN, error.detail)
        else:
            self._head = self._error_body = None
            self.failed(FAILURES[error.kind], error.detail)

    def _blames_key(self, status: int) -> bool:
        """True if the engine refuses the gateway's key.

        A 403 of an engine that answered well on this path is about the request; one of a stranger may be a bucket's.
        """
        target = self._target
        assert target is not None
        if self.callers_key(target):
            return False
        if status == 401:
            return True
        return self.exchange.target_path not in target.served and (target.api_key is not None or not self._suspect)

    def _is_honest(self, status: int, body: bytearray) -> bool:
        """True if a suspect answer is an engine's after all, and goes to the client."""
        if self._refuses_key or self._beating or (status == 404 and self._engine().lacks(self.named, body)):
            return False  # reported in another way
        return is_api_error(body) and not (status == 404 and self.stranger())

    @property
    def named(self) -> str:
        """The model, as the engine that was asked last knows it."""
        return self.model if self._target is None else self._target.name_of(self.model)

    def _engine(self) -> Engine:
        assert self._target is not None
        return self._target.engine

    def take_call(self) -> Call | None:
        """Returns the call to the engine, if there is one; the relay forgets it."""
        call, self._call = self._call, None
        return call

    def moved_to(self, target: Target) -> None:
        """Note that another engine answers than the one asked last."""
        self._target = target

    def read_copies(self) -> None:
        """Read an answer anew of which only copies come, unchanged."""
        self._answer = AnswerReader(streamed=self._sse or self._lines, hides_usage=False, lines=self._lines)

    # --- the client's side ----------------------------------------------------------------------------------

    def _commit(self, data: bytes, plain: bytes | None = None) -> None:
        """Pass on the head and the first bytes: from here on nothing can be retried.

        `plain`: those bytes unpacked, if that was done before.
        """
        assert self._head is not None
        status, headers = self._head
        self._committed = True
        self.body = b""  # it is sent nowhere else
        self.exchange.let_go()
        streamed = (self._sse or self._lines) and not self._opaque
        hides = streamed and USAGE in self.added  # the client did not ask for it
        self._answer = AnswerReader(streamed, hides, self._lines)
        if self._packed is not None and self._packed.passes:
            self._answer.take(self._packed.read(data) if plain is None else plain)
        elif data:
            data = self._answer.take(data)
        if self._beating:
            self.exchange.write(data)
            return
        if self._length is not None and len(data) == self._length:
            self.exchange.respond(status, headers + self.own_headers(), data)
            return
        self._start(status, headers)
        self.exchange.write(data)

    def _start(self, status: int, headers: Headers) -> None:
        """Begin a response with an engine's head; its body follows in pieces."""
        out = headers + self.own_headers()
        if self._sse or self._lines:
            for name, _ in headers:
                if len(name) == 17 and name.lower() == b"x-accel-buffering":
                    break
            else:
                out.append((b"x-accel-buffering", b"no"))
            self._head = (status, _NO_HEADERS)  # they tell no use of a stream
        self.exchange.start(status, out, length=self._length)

    def beat(self, event: bytes) -> None:
        """Send a waiting client an event before its answer. The first one commits status 200."""
        if not self._beating:
            self._beating = True
            self.exchange.start(200, [*_STREAM_HEADERS, *self.own_headers()], length=None)
        self.exchange.write(event)

    def refuse(
        self, api: errors.Api, reason: Reason, message: str, *, param: str | None, retry_after_s: float | None
    ) -> None:
        """Respond with an error of our own, or send it as an event if status 200 went out."""
        if self._beating:
            self.exchange.write(errors.error_event(api, reason, message, param=param))
            self.exchange.end()
        else:
            status, headers, body = errors.refusal(api, reason, message, param=param, retry_after_s=retry_after_s)
            self.exchange.respond(status, headers + self.own_headers(), body)

    def engine_error(self, extra: Headers) -> bool:
        """Pass on the engine's own error answer, with `extra` headers. Returns False if there is none."""
        if self._head is None or self._error_body is None:
            return False
        status, headers = self._head
        if self._beating:
            event = bytes(self._error_body)
            if not self._sse:
                event = errors.engine_error_event(api_of(self.exchange.target_path), status, event)
            self.exchange.write(event)
            self.exchange.end()
            return True
        extra_names = {name for name, _ in extra}
        kept = [(name, value) for name, value in headers if name.lower() not in extra_names]
        self.exchange.respond(status, kept + self.own_headers() + extra, bytes(self._error_body))
        return True

    def told_retry_after_s(self) -> float:
        """Returns the seconds of the engine's Retry-After; 0.0: none."""
        return 0.0 if self._head is None else retry_after_s(self._head[1], clock.wall())

    def refused(self, status: int, body: bytearray) -> None:
        """Handle an engine's error whose `body` went to another sink."""
        self._call = None
        self._error_body = body
        self._sse = self._lines = False
        self._ended_in_error(status, body)

    def refused_by(self, target: Target, head: tuple[int, Headers], body: bytearray) -> None:
        """Handle a refusal by `target`, an engine other than the one asked last, whose work is useless now."""
        self.hang_up()
        self._target, self._head = target, (head[0], response_headers(head[1]))
        self._length = self._whole = None
        self.refused(head[0], body)

    def no_answer(self) -> None:
        """Forget the bytes received so far: they are not passed on."""
        self._call = self._head = self._error_body = None

    def _keep_error(self, kept: bytearray, data: bytes) -> None:
        """Collect an error that may be retried, while it is small."""
        kept += data
        if len(kept) > ERROR_BODY_BYTES_MAX:
            if self._beating or self._sse or self._lines or self._suspect or self._refuses_key:
                del kept[ERROR_BODY_BYTES_MAX:]
            else:  # too large to keep: it is the answer
                self._error_body = None
                self.answer_begins()
                self._commit(bytes(kept))

    def _ended_in_error(self, status: int, body: bytearray) -> None:
        """Judge a complete answer that is an error, or cannot follow the head that went out."""
        if self.mended(status, body):
            return
        if self._refuses_key:
            self.no_answer()
            self.failed(Failure.KEY_REFUSED, f"status {status}")
        elif self.is_failure(status):
            busy = status in (429, 503) or any(text in body for text in self._engine().refusals)
            self.failed(Failure.BUSY if busy else Failure.SERVER_ERROR, f"status {status}")
        elif status == 404 and self._engine().lacks(self.named, body):
            assert self._target is not None
            if self._target.disowned is not None:
                self._target.disowned()
            self.no_answer()
            self.failed(Failure.MODEL_GONE, "the model is not there")
        elif self._suspect and is_api_error(body) and status == 404:
            self.failed(Failure.MODEL_GONE, "a stranger does not have the model")
        elif self._suspect and not is_api_error(body):
            self.no_answer()
            self.failed(Failure.NOT_AN_ENGINE, f"status {status}, and not as an engine answers")
        elif (self._sse or self._lines) and not self._opaque:
            if of_caller(body):  # it was held in case it is about a field of ours
                self._error_body = None
                self.answer_begins()
                self._commit(bytes(body))
                self.on_end()
                return
            if not self._lines and not tells_error(body):
                self._error_body = None  # a bare `[DONE]` is not passed on
            self.failed(Failure.SERVER_ERROR, "a stream that failed at once")
        elif status >= 300:
            self.engine_error([])
            self.succeeded(status)
        else:
            self._ended_as_no_answer(status, body)

    def _ended_as_no_answer(self, status: int, body: bytearray) -> None:
        """Judge an answer with a good status that is an error, was aborted, or is not the promised stream."""
        plain = self._plain(bytes(body))
        if whole_error(plain):
            if of_caller(plain):
                self.engine_error([])
                self.succeeded(400)  # as if that were its status
            else:
                self.failed(Failure.SERVER_ERROR, f"status {status}, and an error")
        elif not self._beating:
            self.no_answer()
            self.failed(Failure.SERVER_ERROR, "an answer that its engine aborted")
        else:
            self._committed = True
            self.failed(Failure.BROKEN, "not a stream")

    def break_off(self, api: errors.Api, reason: Reason) -> None:
        """End an answer that has begun: with an error event in a stream, otherwise by closing the connection."""
        if self._may_insert():
            self.exchange.write(self._broken_event(api, reason))
            self.exchange.end()
        else:
            self.exchange.abort()

    def _may_insert(self) -> bool:
        """True if an event of ours can be inserted into the answer."""
        return self._beating or ((self._sse or self._lines) and self._length is None and not self._opaque)

    def _broken_event(self, api: errors.Api, reason: Reason) -> bytes:
        apart = (b"\n" if self._lines else b"\n\n") if self._answer.mid_event() else b""  # from half an event
        return apart + errors.error_event(api, reason, reason.message)
