"""How is a request written to an engine's connection, and its answer read?

A connection carries one request at a time and belongs to its pool. httptools finds the borders of the answer; this file
adds the rest: the largest head, that the answer to HEAD has no body, that some bodies end with the connection, that
unrequested bytes make a connection unfit for reuse. Everything is a callback: there is no task, coroutine or timer per
request or chunk. Sinks are called only after the parser has returned, so they may abort or pause in any callback; all
payload of one read reaches its sink in one piece.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from penstock.http.client.values import UpstreamError, UpstreamErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.http.client.answer_turns import AnswerTurns
    from penstock.http.client.call import Call
    from penstock.http.client.values import Headers, UpstreamLimits, UpstreamTimeouts

JOIN_BYTES_MAX: Final = 4096  # up to this size one copy is cheaper than a second buffer in the transport
CLOSING_S: Final = 0.1  # an engine's front end closes within a turn of its loop: some 10 ms when it is busy
WRITE_BYTES_MAX: Final = 1024 * 1024  # chunk of a large body: encrypting more would delay other requests
# Closed or reset by the engine, or it sent bytes that nobody asked for.
_UNFIT: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLIN
_NO_HEADERS: Final[Headers] = []  # never written
_HEAD, _PAYLOAD, _BODY, _DONE = 0, 1, 2, 3  # the next part of the answer: its head, first payload, rest, nothing


class ConnectionOwner(Protocol):
    """A connection's interface to its pool: bounds, a clock, and callbacks."""

    timeouts: UpstreamTimeouts
    limits: UpstreamLimits
    turns: AnswerTurns

    def time(self) -> float: ...
    def opened(self, connection: UpstreamConnection, /) -> None: ...
    def release(self, connection: UpstreamConnection, /) -> None: ...
    def forget(self, connection: UpstreamConnection, /) -> None: ...
    def close_idle(self) -> None: ...


class _RefusedAnswerError(Exception):
    """Raised inside a parser's callback to stop the parser."""


class UpstreamConnection:
    """A socket to an engine, the parser on the socket, and the call that it carries, if any."""

    __slots__ = (
        "_closing",
        "_fresh_head",
        "_headers",
        "_keep_alive",
        "_on_closed",
        "_overhead_bytes",
        "_parser",
        "_phase",
        "_pieces",
        "_poll",
        "_pool",
        "_quiet_since",
        "_response",
        "_stale_until",
        "_status",
        "_turns",
        "_unsent",
        "_until_close",
        "_write_paused",
        "call",
        "connecting",
        "heard",
        "idle_since",
        "is_closed",
        "is_open",
        "on_body",
        "transport",
    )
    transport: asyncio.Transport
    _parser: httptools.HttpResponseParser | None

    def __init__(self, pool: ConnectionOwner, call: Call) -> None:
        self._pool = pool
        self._turns = pool.turns
        self.call: Call | None = call
        call.connection = self
        self.connecting: asyncio.Task[None] | None = None
        self.is_open = self.is_closed = False
        self._on_closed: Callable[[], None] | None = None  # called when the engine has seen our hang-up
        self._closing: asyncio.TimerHandle | None = None
        self.heard = True  # something happened since the pool last looked
        self.idle_since = self._quiet_since = self._stale_until = 0.0
        self._headers: Headers = []  # of the head, or of the trailers, being read
        self._response = _NO_HEADERS
        self._pieces: list[bytes] = []  # the payload of one read
        self.on_body = self._pieces.append  # the parser's callback for payload, without a Python frame
        self._unsent: list[memoryview] = []  # of a large body, the last piece first
        self._write_paused = False
        self._poll: select.poll | None = None  # of the socket
        self._phase = _HEAD
        self._status = self._overhead_bytes = 0
        self._fresh_head = self._keep_alive = self._until_close = False

    # --- For the pool

    def start(self, call: Call, stale_until: float) -> None:
        """Write the request of `call`.

        The call ends as STALE if the connection is lost before `stale_until` (a loop time) without a byte of an answer.
        """
        self.call = call
        call.connection = self
        self._stale_until = stale_until
        self._phase = _HEAD
        self._overhead_bytes = 0
        self.heard = True
        if call.paused:
            asyncio.get_running_loop().call_soon(self._hold)  # uvloop starts to read after `connection_made`
        body = call.body
        if isinstance(body, list):
            self.transport.write(call.head)
            self._unsent = [
                memoryview(piece)[at : at + WRITE_BYTES_MAX]
                for piece in reversed(body)
                for at in reversed(range(0, len(piece), WRITE_BYTES_MAX))
            ]
            self._write_on()
        elif len(body) <= JOIN_BYTES_MAX:
            self.transport.write(call.head + body)
        else:
            self.transport.writelines((call.head, body))

    def close(self) -> None:
        """Drop the socket at once, with its unsent bytes: flushing them would wait for an engine that may not read."""
        self.call = None
        self._unsent.clear()
        if self.is_closed:
            return
        self.is_closed = True
        self._pool.forget(self)
        if self.is_open:
            self.is_open = False
            self.transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()
        if self._closing is not None:
            self._closing.cancel()
            on_closed, self._on_closed, self._closing = self._on_closed, None, None
            if on_closed is not None:
                on_closed()

    def hang_up(self, on_closed: Callable[[], None]) -> None:
        """Close our side, because the answer is no longer wanted; the engine confirms by closing its side.

        `on_closed` is called once the engine has closed, or after `CLOSING_S`. It is called at once if the engine was
        not sent the whole request, or the connection can't be closed by halves (TLS).
        """
        transport = self.transport if self.is_open else None
        if (
            transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
            or self._unsent
            or not transport.can_write_eof()
        ):
            self.close()
            on_closed()
            return
        if self.call is not None and self.call.paused:
            transport.resume_reading()  # or its end would not be seen
        self.call = None
        self._on_closed = on_closed
        self._closing = asyncio.get_running_loop().call_later(CLOSING_S, self.close)
        transport.write_eof()

    def fail(self, kind: UpstreamErrorKind, detail: str) -> None:
        """Close the connection and end its call, if any, with an error of this `kind`."""
        call = self.call
        self.close()
        if call is not None:
            call.end().on_error(UpstreamError(kind, detail))

    def lose(self, detail: str) -> None:
        """Close the connection and end its call as lost: RESET if no byte of the answer came, otherwise BROKEN."""
        self.fail(UpstreamErrorKind.RESET if self._is_silent else UpstreamErrorKind.BROKEN, detail)

    def give_up(self, detail: str) -> None:
        """End the call as timed out before the first byte, unless payload of its answer has come."""
        if self.call is not None and self._phase <= _PAYLOAD:
            self.fail(UpstreamErrorKind.FIRST_BYTE_TIMEOUT, detail)

    def check(self, now: float) -> None:
        """Time out a call that was quiet for too long at `now`, a loop time.

        Chunks only set `heard`, so that none of them has to read the clock.
        """
        call = self.call
        if call is None:
            return
        timeouts = self._pool.timeouts
        quiet_s = now - self._quiet_since
        if self.heard or call.paused:
            self.heard = False
            self._quiet_since = now
        elif self._phase <= _PAYLOAD and quiet_s >= timeouts.first_byte_s:
            # An engine sends the head of a stream at once and its first token when it has one.
            self.fail(UpstreamErrorKind.FIRST_BYTE_TIMEOUT, f"no answer within {timeouts.first_byte_s:g} s")
        elif self._phase == _BODY and quiet_s >= timeouts.between_bytes_s:
            self.fail(UpstreamErrorKind.IDLE_TIMEOUT, f"no payload for {timeouts.between_bytes_s:g} s")

    # --- From the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's behaves like one without being a subclass
        self._parser = httptools.HttpResponseParser(self)
        if self.call is None:
            self.transport.abort()
            return
        self.is_open = True
        self._pool.opened(self)
        self.start(self.call, 0.0)

    def data_received(self, data: bytes) -> None:  # noqa: PLR0912 - calls cost more than branches
        call = self.call
        if call is None:
            if self._closing is None:
                self.close()  # bytes without a request: the connection can't be trusted any more
            return
        parser = self._parser
        assert parser is not None
        self._overhead_bytes += len(data)
        refusal = ""
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            refusal = str(error.__context__ or error) or "not HTTP"
        if self._fresh_head:
            self._fresh_head = False
            self._overhead_bytes = 0
            call.head = b""
            call.body = b""  # an answer has begun, so the request is never sent again
            response, self._response = self._response, _NO_HEADERS
            call.sink.on_response(self._status, response)
        pieces = self._pieces
        if pieces:
            self._overhead_bytes = 0
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if not call.is_head_request and not call.sink.on_data(payload):
                self.heard = True
                if self._phase == _PAYLOAD:
                    self._phase = _BODY
        else:
            refusal = refusal or self._excess()
        if self.call is not call:
            return  # aborted in a callback
        if self._phase == _DONE:
            self._finish(call, reusable=self._keep_alive and not refusal)
        elif refusal:
            self.fail(UpstreamErrorKind.PROTOCOL, refusal)
        elif self._turns.left > 1:
            self._turns.left -= 1
        else:
            self._turns.read(self)

    def pause_turn(self) -> None:
        """Read nothing until `resume_turn`: other answers are next."""
        self.transport.pause_reading()

    def resume_turn(self) -> None:
        self.heard = True  # as far as we know
        if self.is_open and not self.is_paused:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Only a large body stops being written here. Senders are not held back: their data is in memory anyway."""
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._unsent:
            self._write_on()

    def _write_on(self) -> None:
        """Write a piece of a large body. The next follows in the loop's next turn, or when the buffer has drained."""
        if self._unsent and not self._write_paused and self.is_open:
            self.transport.write(self._unsent.pop())
            if self._unsent and not self._write_paused:
                asyncio.get_running_loop().call_soon(self._write_on)

    def eof_received(self) -> None:
        self._lost("closed by the engine", is_orderly=True)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(str(error or "closed by the engine"), is_orderly=error is None)
        self._parser = None  # the parser holds our methods: a reference cycle

    # --- From the parser

    def on_message_begin(self) -> None:
        if self._phase == _DONE:
            raise _RefusedAnswerError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        limits = self._pool.limits
        if len(headers) > limits.header_count_max or self._overhead_bytes > limits.header_bytes_max:
            self._check_size(headers, limits)  # the head is no larger than all that was read
        if status < 200:
            if status not in (100, 102, 103):
                raise _RefusedAnswerError(f"status {status}")
            return
        self._until_close = not _is_framed(headers)
        self._status, self._response = status, headers
        self._fresh_head = True
        assert self.call is not None
        if self.call.is_head_request:
            self._phase = _DONE  # and the connection is not reused: parser, and maybe engine, expect a body to follow
            self._keep_alive = False
        else:
            self._phase = _PAYLOAD

    def on_message_complete(self) -> None:
        if self._phase in (_PAYLOAD, _BODY):
            assert self._parser is not None
            self._phase = _DONE
            self._keep_alive = self._parser.should_keep_alive()

    # --- Its own

    @property
    def is_dropped(self) -> bool:
        """True if an idle connection was closed by the engine, or has unrequested bytes, maybe unread by the loop."""
        if self.transport.is_closing():
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), _UNFIT)
        return bool(self._poll.poll(0))

    @property
    def has_begun(self) -> bool:
        """True if payload of an answer has come and more is expected."""
        return self.call is not None and self._phase == _BODY

    @property
    def is_paused(self) -> bool:
        """True if the sender of the call has paused its answer."""
        return self.call is not None and self.call.paused

    @property
    def _is_silent(self) -> bool:
        """True if not one byte came for this call."""
        return self._phase == _HEAD and not self._overhead_bytes

    def _hold(self) -> None:
        if self.call is not None and self.call.paused:
            self.transport.pause_reading()

    def _check_size(self, headers: Headers, limits: UpstreamLimits) -> None:
        if len(headers) > limits.header_count_max:
            raise _RefusedAnswerError(f"more than {limits.header_count_max} header lines")
        if sum(len(name) + len(value) + 4 for name, value in headers) > limits.header_bytes_max:
            raise _RefusedAnswerError(f"a head of more than {limits.header_bytes_max} bytes")

    def _excess(self) -> str:
        """Returns the bound that bytes without payload exceed, or an empty text.

        The check comes after a read, so at most one read passes unchecked, and memory stays bounded.
        """
        limits = self._pool.limits
        if self._overhead_bytes > limits.header_bytes_max:
            return f"more than {limits.header_bytes_max} bytes without payload"
        if len(self._headers) > limits.header_count_max:
            return f"more than {limits.header_count_max} header lines"
        return ""

    def _finish(self, call: Call, *, reusable: bool) -> None:
        if (
            reusable
            and not self._unsent
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        ):
            self._headers.clear()  # trailers
            if call.paused:
                self.transport.resume_reading()
            self.call = None
            self._pool.release(self)
        else:
            self.close()
        call.end().on_end()

    def _lost(self, detail: str, *, is_orderly: bool) -> None:
        """The connection has ended: decide how its call ends. `is_orderly` if the engine closed it without an error."""
        call = self.call
        if call is None:
            self.close()
        elif self._phase in (_PAYLOAD, _BODY) and self._until_close and is_orderly:
            self._finish(call, reusable=False)
        elif self._is_silent and self._pool.time() < self._stale_until:
            self._pool.close_idle()  # they have probably been closed too
            self.fail(UpstreamErrorKind.STALE, f"a reused connection: {detail}")
        else:
            self.lose(detail)


def _is_framed(headers: Headers) -> bool:
    """True if the body has a delimited end, False if it ends with the connection.

    The parser itself refuses bad or repeated lengths, and a length beside a coding. Raises _RefusedAnswerError for any
    coding but chunked.
    """
    is_framed = False
    for name, value in headers:
        size = len(name)
        if size == 14 and name.lower() == b"content-length":
            is_framed = True
        elif size == 17 and name.lower() == b"transfer-encoding":
            if is_framed or value.strip().lower() != b"chunked":
                raise _RefusedAnswerError("a transfer coding other than chunked")
            is_framed = True
    return is_framed
