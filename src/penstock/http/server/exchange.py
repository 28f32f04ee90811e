"""What does the gateway see of one request, and how does it answer?

An `Exchange` is one request with its response: what came, and the verbs to answer with. Either `respond` once,
or `start`, `write` …, `end`. Nothing here waits. When the client hangs up first, `on_disconnect` is called
once and every later verb does nothing, so a relay needs no checks of its own. The server owns what belongs to
the connection: `connection`, `keep-alive`, `content-length` and `transfer-encoding` among the given headers are
left out and written as the framing needs; all others go out in the order and case given.
"""

from __future__ import annotations

import http
from typing import TYPE_CHECKING, Final, Protocol

from penstock.http.head import head_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.http.server.connection import Connection
    from penstock.http.server.limits import Refusal

Header = tuple[bytes, bytes]

# How the end of a response body is told.
_NO_BODY: Final = 0
_LENGTH: Final = 1
_CHUNKED: Final = 2
_CLOSE: Final = 3

_JOIN_BYTES_MAX: Final = 16 * 1024  # up to here one copy is cheaper than a write of several pieces
_BODYLESS: Final = frozenset({204, 304})
_SERVER_OWNED: Final = frozenset({b"connection", b"keep-alive", b"content-length", b"transfer-encoding"})
_LOOKED_AT_SIZES: Final = frozenset(len(name) for name in (*_SERVER_OWNED, b"date"))
_STATUS_LINES: Final = {int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in http.HTTPStatus}


class Handler(Protocol):
    """The gateway, as this server sees it. All three are called from the loop and must not block."""

    def begin(self, exchange: Exchange) -> int | None:
        """The head is here, the body is not. May respond at once: then the body is never read.

        Returns this request's own limit on body bytes, None for the server's.
        """

    def complete(self, exchange: Exchange) -> None:
        """The whole body is here. Not called for a request that `begin` answered, or that was refused."""

    def refused(self, exchange: Exchange | None, refusal: Refusal, detail: str) -> tuple[int, Sequence[Header], bytes]:
        """The answer to a request that the server refuses; None when its head could not be read.

        For an exchange that `begin` has seen, this is the last call about it.
        """


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_connection",
        "_framing",
        "_held_bytes",
        "_left_bytes",
        "_transport",
        "body",
        "ended",
        "headers",
        "http_version",
        "lookup",
        "method",
        "note",
        "on_body",
        "on_disconnect",
        "on_over",
        "on_pause",
        "on_resume",
        "peer",
        "query",
        "started",
        "status",
        "target_path",
    )

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection: Connection | None = connection  # None once the exchange is over
        self._transport = transport
        self._framing = _NO_BODY
        self._left_bytes = 0
        self._held_bytes = 0  # of its body, in the server's sum
        # The head, filled in by the reader.
        self.method = ""
        self.target_path = ""  # percent-encoded, as it came
        self.query = ""
        self.headers: list[Header] = []  # names in the order and case they came
        self.lookup: dict[bytes, bytes] = {}  # lower-case name to first value
        self.http_version = "1.1"
        self.body = b""  # whole from Handler.complete on
        self.peer = connection.peer
        self.note: object = None  # the handler's own, from begin to complete
        self.started = False
        self.status = 0  # that of the response, once it has begun
        self.ended = False
        # Set in Handler.begin: takes the body as it comes, of any size; `body` stays empty. It must not raise.
        self.on_body: Callable[[bytes], None] | None = None
        # The client is gone before end(): at most once, never after end() or abort().
        self.on_disconnect: Callable[[], None] | None = None
        # The exchange is over, in whatever way: answered, refused by the server, broken off, or its client gone. Once,
        # and before on_disconnect: who holds something for the exchange lets go of it here.
        self.on_over: Callable[[], None] | None = None
        # The write buffer is over, or under, its marks. No on_resume follows an on_disconnect.
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    def repeats(self, name: bytes) -> bool:
        """Whether a header is given more than once; `name` in lower case."""
        return len(self.lookup) != len(self.headers) and sum(given.lower() == name for given, _ in self.headers) > 1

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; `name` in lower case."""
        return self.lookup.get(name)

    def pause_body(self) -> None:
        """Take no more of the body for now. What was read already may still come."""
        if self._connection is not None:
            self._connection.pause_body()

    def resume_body(self) -> None:
        if self._connection is not None:
            self._connection.resume_body()

    def hold(self, body_bytes: int) -> bool:
        """Count bytes that are kept of its body until the exchange is over; False when all together are too many."""
        connection = self._connection
        if connection is None:
            return True  # nothing is kept of it any more
        self._held_bytes += body_bytes
        return connection.server.hold(body_bytes)

    def let_go(self) -> None:
        """Nothing is kept of its body any more."""
        if self._held_bytes and self._connection is not None:
            self._connection.server.hold(-self._held_bytes)
            self._held_bytes = 0

    @property
    def over(self) -> bool:
        """The response has ended, or never will."""
        return self._connection is None

    @property
    def gone(self) -> bool:
        """The exchange is over without an ended response."""
        return self._connection is None and not self.ended

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response."""
        connection = self._connection
        if connection is None:
            return
        assert not self.started, "a response was already started"
        bodyless = status in _BODYLESS
        framing = b"" if bodyless else b"content-length: %d" % len(body)
        head = self._head(connection, status, headers, framing)
        self.started = True
        if bodyless or not body or self.method == "HEAD":
            self._transport.write(head)
        elif len(body) < _JOIN_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self._over(connection)

    def start(self, status: int, headers: Sequence[Header], *, length: int | None) -> None:
        """Begin a response whose body follows in pieces; None for a length that is not known yet."""
        connection = self._connection
        if connection is None:
            return
        assert not self.started, "a response was already started"
        framing = b""
        if length is not None and status != 204:
            framing = b"content-length: %d" % length
        if self.method == "HEAD" or status in _BODYLESS:
            self._framing = _NO_BODY
        elif length is not None:
            self._framing = _LENGTH
            self._left_bytes = length
        elif self.http_version == "1.1":
            self._framing = _CHUNKED
            framing = b"transfer-encoding: chunked"
        else:
            self._framing = _CLOSE
            connection.keep_alive = False
        head = self._head(connection, status, headers, framing)
        self.started = True
        self._transport.write(head)

    def write(self, data: bytes) -> None:
        """Send a piece of the body of a started response."""
        if self._connection is None or not data:
            return
        assert self.started, "write() before start()"
        framing = self._framing
        if framing == _CHUNKED:
            size = len(data)
            if size < _JOIN_BYTES_MAX:
                self._transport.write(b"%x\r\n%b\r\n" % (size, data))
            else:
                self._transport.writelines((b"%x\r\n" % size, data, b"\r\n"))
        elif framing != _NO_BODY:
            if framing == _LENGTH:
                self._left_bytes -= len(data)
                assert self._left_bytes >= 0, "more was written than the length given to start()"
            self._transport.write(data)

    def end(self) -> None:
        """The body is whole. With a piece of the promised length missing, the same as `abort`."""
        connection = self._connection
        if connection is None:
            return
        assert self.started, "end() before start()"
        if self._framing == _LENGTH and self._left_bytes > 0:
            self.abort()
            return
        if self._framing == _CHUNKED:
            self._transport.write(b"0\r\n\r\n")
        self._over(connection)

    def abort(self) -> None:
        """Break off: what was written goes out, then the connection closes and the body stays incomplete."""
        connection = self._connection
        if connection is None:
            return
        self.on_disconnect = None
        self._detach()
        connection.break_off(reset=self.started and self._framing == _CLOSE)

    def disconnected(self) -> None:
        """The connection tells that its client is gone."""
        if self._connection is None:
            return
        callback = self.on_disconnect
        self._detach()
        if callback is not None:
            callback()

    def _over(self, connection: Connection) -> None:
        self.ended = True
        self._detach()
        connection.response_ended()

    def _detach(self) -> None:
        """Forget the connection and the callbacks: what they hold must not outlive the exchange."""
        self.let_go()
        self._connection = None
        over = self.on_over
        self.on_body = self.on_disconnect = self.on_over = self.on_pause = self.on_resume = None
        if over is not None:
            over()

    def _head(self, connection: Connection, status: int, headers: Sequence[Header], framing: bytes) -> bytes:
        self.status = status
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        dated = False
        for header in headers:
            if len(header[0]) in _LOOKED_AT_SIZES:
                lower = header[0].lower()
                if lower in _SERVER_OWNED:
                    continue
                dated = dated or lower == b"date"
            lines.append(b": ".join(header))
        if framing:
            lines.append(framing)
        if not dated:
            lines.append(connection.server.date_line())
        if connection.closes_after_response():
            lines.append(b"connection: close")
        elif self.http_version == "1.0":
            lines.append(b"connection: keep-alive")
        return head_of(lines)
