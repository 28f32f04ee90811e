"""How does a connection carry an exchange: the framing of its response, its body, its end?

The server owns the connection's part: `connection`, `keep-alive`, `content-length` and `transfer-encoding` among the
given headers are left out and written as the framing needs; all others go out in the order and case given.
"""

from __future__ import annotations

import http
from typing import TYPE_CHECKING, Final, Protocol

from penstock.http.head import head_of
from penstock.http.server.exchange import Exchange, Header

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.http.server.connection import Connection
    from penstock.http.server.limits import Refusal

# How the response body is delimited.
_NO_BODY: Final = 0
_LENGTH: Final = 1
_CHUNKED: Final = 2
_CLOSE: Final = 3

_JOIN_BYTES_MAX: Final = 16 * 1024  # up to this size one copy is cheaper than a write of several pieces
_SIZE_LINES: Final = tuple([b"%x\r\n" % size for size in range(1024)])  # of chunks, as most events are
_BODYLESS: Final = frozenset({204, 304})
_SERVER_OWNED: Final = frozenset({b"connection", b"keep-alive", b"content-length", b"transfer-encoding"})
_LOOKED_AT_SIZES: Final = frozenset(len(name) for name in (*_SERVER_OWNED, b"date"))
_STATUS_LINES: Final = {int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in http.HTTPStatus}


class Handler(Protocol):
    """The gateway, as the server sees it. All three methods are called from the loop and must not block."""

    def begin(self, exchange: SocketExchange) -> int | None:
        """The head of `exchange` has been read, the body has not. May respond at once; then the body is never read.

        Returns the limit on this request's body in bytes; None means the server's own limit.
        """

    def complete(self, exchange: SocketExchange) -> None:
        """The whole body has been read. Not called for a request that `begin` answered, or that was refused."""

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        """Returns the answer (status, headers, body) to a request that the server refuses.

        `exchange` is None if the head of the request could not be read. After `begin`, this is the last call. `detail`
        is a sentence for people.
        """


class SocketExchange(Exchange):
    """A request that came over a connection, and its response."""

    __slots__ = (
        "_connection",
        "_framing",
        "_held_bytes",
        "_left_bytes",
        "_transport",
        "ended",
        "http_version",
    )

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        super().__init__(connection.peer, brought=connection.brought is not None)
        self._connection: Connection | None = connection  # None once the exchange is over
        self._transport = transport
        self._framing = _NO_BODY
        self._left_bytes = 0
        self._held_bytes = 0  # of its body, in the server's sum
        self.http_version = "1.1"
        self.ended = False

    def pause_body(self) -> None:
        if self._connection is not None:
            self._connection.pause_body()

    def resume_body(self) -> None:
        if self._connection is not None:
            self._connection.resume_body()

    def hold(self, body_bytes: int) -> bool:
        """Count `body_bytes` that are kept of the request's body, until `let_go` or the end of the exchange.

        Returns False if the bodies of all clients together are now too large; they are counted anyway.
        """
        connection = self._connection
        if connection is None:
            return True  # nothing is kept for an exchange that is over
        self._held_bytes += body_bytes
        return connection.server.hold(body_bytes)

    def let_go(self) -> None:
        """Stop counting the request's body: nothing of it is kept any more."""
        if self._held_bytes and self._connection is not None:
            self._connection.server.hold(-self._held_bytes)
            self._held_bytes = 0

    @property
    def over(self) -> bool:
        """True once the response has ended, or can't be sent any more. Every verb does nothing then."""
        return self._connection is None

    @property
    def gone(self) -> bool:
        """True if the exchange is over without a whole response."""
        return self._connection is None and not self.ended

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response and end the exchange. `body` is omitted if HTTP allows none (HEAD, 204, 304).

        Raises ValueError if a header holds a line break.
        """
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
        self.ended = True
        self._detach()
        connection.response_ended()

    def start(self, status: int, headers: Sequence[Header], *, length: int | None) -> None:
        """Begin a response with a body in chunks. `length` is that of the body in bytes, None if unknown.

        Raises ValueError if a header holds a line break.
        """
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
        """Send `data`, the next piece of the body of a started response. Empty pieces are skipped."""
        if self._connection is None or not data:
            return
        assert self.started, "write() before start()"
        framing = self._framing
        if framing == _CHUNKED:
            size = len(data)
            if size < len(_SIZE_LINES):
                self._transport.write(_SIZE_LINES[size] + data + b"\r\n")
            elif size < _JOIN_BYTES_MAX:
                self._transport.write(b"%x\r\n%b\r\n" % (size, data))
            else:
                self._transport.writelines((b"%x\r\n" % size, data, b"\r\n"))
        elif framing != _NO_BODY:
            if framing == _LENGTH:
                self._left_bytes -= len(data)
                assert self._left_bytes >= 0, "more was written than the length given to start()"
            self._transport.write(data)

    def end(self) -> None:
        """End the response: its body is whole. If bytes of the length given to `start` are missing, `abort` instead."""
        connection = self._connection
        if connection is None:
            return
        assert self.started, "end() before start()"
        if self._framing == _LENGTH and self._left_bytes > 0:
            self.abort()
            return
        if self._framing == _CHUNKED:
            self._transport.write(b"0\r\n\r\n")
        self.ended = True
        self._detach()
        connection.response_ended()

    def abort(self) -> None:
        """Break the response off: send pending writes, then close, so the client sees a truncated body."""
        connection = self._connection
        if connection is None:
            return
        self.on_disconnect = None
        self._detach()
        connection.break_off(reset=self.started and self._framing == _CLOSE)

    def disconnected(self) -> None:
        """Called by the connection: the client has hung up."""
        if self._connection is None:
            return
        callback = self.on_disconnect
        self._detach()
        if callback is not None:
            callback()

    def _detach(self) -> None:
        """End the exchange: forget the connection and the callbacks, so that nothing they hold outlives it."""
        if self._held_bytes:
            self.let_go()
        self._connection = None
        over = self.on_over
        self.on_body = self.on_disconnect = self.on_over = self.on_pause = self.on_resume = None
        if over is not None:
            over()

    def _head(self, connection: Connection, status: int, headers: Sequence[Header], framing: bytes) -> bytes:
        self.status = status
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        dated = owned = False
        for header in [header for header in headers if len(header[0]) in _LOOKED_AT_SIZES]:
            name = header[0].lower()
            dated = dated or name == b"date"
            owned = owned or name in _SERVER_OWNED
        if owned:
            headers = [header for header in headers if header[0].lower() not in _SERVER_OWNED]
        lines += map(b": ".join, headers)
        if self.added:
            lines += [b": ".join(header) for header in self.added]
        if framing:
            lines.append(framing)
        if not dated:
            lines.append(connection.server.date_line())
        lines += connection.lines_of_response()
        return head_of(lines)
