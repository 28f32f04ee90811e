"""The state machine of a client connection.

The reader delivers requests one after the other. Bytes that a client sends ahead of a running exchange (pipelining) are
kept up to a bound, then reading stops. Without pipelining reading stays on, so that a hang-up is noticed at once. After
an answer that is sent before the request was read to its end, the connection lingers: it discards the rest, so that a
reset does not destroy the answer. One timer serves every deadline of the connection. The handler is called from here,
never from inside the parser.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final, cast

from penstock.http.server.limits import Refusal
from penstock.http.server.reader import RefusedError, RequestReader
from penstock.http.server.socket_exchange import SocketExchange
from penstock.http.server.timer import DeadlineTimer

if TYPE_CHECKING:
    from penstock.http.server.listener import Brought
    from penstock.http.server.server import HttpServer

# The states of a connection.
_IDLE: Final = 0  # no byte of a request yet
_HEAD: Final = 1  # bytes of a head
_BODY: Final = 2  # the head is whole, the body is not
_BUSY: Final = 3  # the request is whole, the response is not
_LINGER: Final = 4  # answered early: the rest of the request is discarded
_CLOSING: Final = 5  # nothing is read; pending writes may still go out

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_HUNG_UP: Final = getattr(select, "POLLRDHUP", select.POLLHUP)  # POLLRDHUP shows a hang-up behind unread bytes, too
_AT_UNIX_SOCKET: Final = ("127.0.0.1", 0)  # only this machine connects to a unix socket
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_TCP_INFO: Final = struct.Struct("@24xI92xQ16xI")  # of Linux: segments on their way, bytes taken, bytes not yet sent


class Connection:
    """One client connection: the asyncio protocol, the reader on it, and the exchange under way, if any."""

    __slots__ = (
        "_body_paused",
        "_counted_bytes",
        "_exchange",
        "_limits",
        "_linger_bytes",
        "_loop",
        "_parsing",
        "_reader",
        "_reading_paused",
        "_received_s",
        "_rest",
        "_rest_at",
        "_seen_left",
        "_stalled_bytes",
        "_state",
        "_timer",
        "_transport",
        "_turn_paused",
        "_write_paused",
        "brought",
        "keep_alive",
        "peer",
        "server",
    )

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop, brought: Brought | None = None) -> None:
        self.server = server
        self.keep_alive = True
        self.peer: tuple[str, int] = ("", 0)
        self.brought = brought  # by a load balancer that named the client
        self._loop = loop
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(server.limits)
        self._exchange: SocketExchange | None = None
        self._state = _IDLE
        self._parsing = False
        # Loop time of the first byte of the request being read; while closing, of the last progress.
        self._received_s = 0.0
        # Data that the client sent ahead of the running exchange, and the offset of its first unread byte.
        self._rest = b""
        self._rest_at = 0
        self._reading_paused = False
        self._write_paused = False
        self._stalled_bytes = sys.maxsize  # output that waited when the write deadline was last checked
        self._linger_bytes = 0  # discarded so far
        self._seen_left = 0, 0  # what was left to send while closing, when it was last looked at
        self._body_paused = False  # by the handler, which takes the body piece by piece
        self._turn_paused = False  # the bodies of other connections are read first
        self._counted_bytes = 0  # of the body being read, in the server's sum
        self._timer = DeadlineTimer(loop, self._expired)

    # ---- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._transport = cast("asyncio.Transport", transport)
        peer = stream.get_extra_info("peername")
        if self.brought is not None and self.brought.peer is not None:
            self.peer = self.brought.peer
        elif isinstance(peer, tuple):
            self.peer = peer[:2]
        elif peer is not None:  # None when the client has reset already
            self.peer = _AT_UNIX_SOCKET
        limits = self._limits
        stream.set_write_buffer_limits(high=limits.write_buffer_bytes_max, low=limits.write_buffer_bytes_low)
        refusal = self.server.opened(self)
        if refusal is not None:
            self._state = _BODY
            self._refuse(Refusal.TOO_MANY_CONNECTIONS, refusal)
            self._close()  # without lingering: connections are scarce
            return
        # A client that is slow to ask must not find its connection gone.
        self._timer.set(self._loop.time() + limits.first_request_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (how it was lost makes no difference)
        self._state = _CLOSING
        if self._counted_bytes:
            self._uncount()
        self._timer.close()
        self._transport = None
        self._reader.close()
        self._rest = b""
        self.server.closed(self)
        if self._exchange is not None:
            self._disconnect()

    def eof_received(self) -> None:
        if self._exchange is not None:
            self.abort()  # a client that closes its half while it waits for an answer has gone away
        else:
            self._close()

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == _LINGER:
            self._discard(len(data))
        elif state == _BUSY or self._write_paused or self._rest:
            self._keep(data)
        elif state != _CLOSING:
            self._parse(data, 0)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport is not None and self._state != _CLOSING:
            self._stalled_bytes = self._transport.get_write_buffer_size()
            self._arm(self._limits.write_timeout_s)
        exchange = self._exchange
        if exchange is not None and exchange.on_pause is not None:
            exchange.on_pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._state == _IDLE:
            self._to_idle()
        elif self._state == _BODY:
            self._arm(self._limits.body_timeout_s)
        elif self._state == _BUSY:
            if self._reading_paused:
                self._arm(self._limits.gone_look_s)
            else:
                self._timer.clear()
        elif self._state == _LINGER:
            self._arm(self._limits.linger_timeout_s)
        exchange = self._exchange
        if exchange is not None and exchange.on_resume is not None:
            exchange.on_resume()

    # ---- from the exchange and the server

    def lines_of_response(self) -> tuple[bytes, ...]:
        """Returns the header lines about closing the connection after this response. Asked for once for each."""
        if self._state != _BUSY or self.server.draining:
            self.keep_alive = False  # not _BUSY: the request is not whole, so the next one's start is unknown
        return self._limits.keep_alive_lines if self.keep_alive else (b"connection: close",)

    def response_ended(self) -> None:
        """Called by the exchange: the response is written. Read the next request, linger, or close."""
        self._exchange = None
        if self._state != _BUSY:
            self._linger()
        elif not self.keep_alive or (self.server.draining and not self._rest):
            self._close()  # a request that came meanwhile, on a promise to keep the connection, is answered first
        else:
            self._state = _IDLE
            self._to_idle()

    def break_off(self, *, reset: bool) -> None:
        """Close in the middle of a response. `reset` if closing marks its end: otherwise the cut would be invisible."""
        self._exchange = None
        if not reset:
            self._close()
        elif self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.abort()

    def close_if_idle_for(self, idle_s: float) -> None:
        """Close in `idle_s` seconds at the latest, unless a request comes until then."""
        if self._state == _IDLE:
            self._timer.set(min(self._timer.deadline_s, self._loop.time() + idle_s))

    def drain(self) -> None:
        """Close now if no request is under way; otherwise the connection closes after the response."""
        if self._state == _IDLE and not self._rest:
            self._close()

    def abort(self) -> None:
        """Close without waiting for anything. To the exchange it looks like a hang-up of the client."""
        self._state = _CLOSING
        if self._transport is not None:
            self._transport.abort()
        self._disconnect()

    def _disconnect(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnected()

    # ---- reading

    def _parse(self, data: bytes, at: int) -> None:
        """Read request by request from `data[at:]`, until it is used up or a running exchange makes the rest wait."""
        size = len(data)
        reader = self._reader
        self._parsing = True
        try:
            while at < size:
                if self._state == _IDLE:
                    if self._write_paused:
                        break
                    self._state = _HEAD
                    self.server.idle.pop(self, None)
                    self._received_s = self._loop.time()
                elif self._state > _BODY:
                    break
                at = reader.feed(data, at)
                if reader.head_done:
                    self._begin(reader)
                elif reader.body_done:
                    self._complete(reader)
        except RefusedError as error:
            self._refuse(error.refusal, error.detail)
            return
        except BaseException:
            self.abort()  # a fault of the handler goes to the loop's error log; the client must not hang for it
            raise
        finally:
            self._parsing = False
        if at < size:
            self._keep(data, at)
        elif self._state in (_HEAD, _BODY):
            reader.remember_tail(data)
            self._await_more(reader)
            if self._state == _BODY:
                self.server.turns.read(self, size)

    def _await_more(self, reader: RequestReader) -> None:
        """A read ended in the middle of a request: set the deadline for the rest."""
        limits = self._limits
        if self._state == _HEAD:
            self._timer.set(self._received_s + limits.header_timeout_s)
            return
        total_s = limits.body_timeout_total_s
        if self._exchange is not None and self._exchange.on_body is not None:
            total_s *= max(1.0, reader.body_bytes_max / limits.body_bytes_max)  # no slower than the largest other body
        else:
            self._count(reader.body_bytes)
        self._timer.set(min(self._loop.time() + limits.body_timeout_s, self._received_s + total_s))

    def _begin(self, reader: RequestReader) -> None:
        """The head is whole: show it to the handler, and decide whether the body may follow."""
        assert self._transport is not None
        exchange = SocketExchange(self, self._transport)
        reader.read_head(exchange)
        self._exchange = exchange
        self.keep_alive = reader.keep_alive
        lookup = exchange.lookup
        if b"upgrade" in lookup and b"websocket" in lookup[b"upgrade"].lower():
            raise RefusedError(Refusal.WEBSOCKET_UNSUPPORTED, "WebSockets are not supported")
        expect = lookup.get(b"expect")
        if expect is not None and expect.lower() != b"100-continue":
            raise RefusedError(Refusal.EXPECTATION_FAILED, "only 100-continue can be expected")
        expects_body = not reader.in_head
        self._state = _BODY if expects_body else _BUSY
        body_bytes_max = self.server.handler.begin(exchange)
        if exchange.over:
            return  # answered, or broken off
        if not expects_body:
            self._complete(reader)
            return
        if body_bytes_max is not None:
            reader.body_bytes_max = body_bytes_max
        if exchange.on_body is not None:
            reader.pour(exchange.on_body)
        if reader.body_left_bytes > reader.body_bytes_max:
            raise RefusedError(Refusal.REQUEST_TOO_LARGE, "the body is too large")
        if expect is not None and exchange.http_version == "1.1" and not exchange.started:
            self._stream.write(_CONTINUE)

    def _count(self, body_bytes: int) -> None:
        """Report to the server that `body_bytes` of this body have been read. While all are too many, refuse the
        slowest.
        """
        server = self.server
        more, self._counted_bytes = body_bytes - self._counted_bytes, body_bytes
        if body_bytes:
            server.receiving[self] = None
        within = server.hold(more)
        while not within and server.receiving:
            server.slowest_body().too_many_bytes()
            within = server.hold(0)

    def _uncount(self) -> None:
        self.server.receiving.pop(self, None)
        self.server.hold(-self._counted_bytes)
        self._counted_bytes = 0

    def body_bytes_per_s(self, now: float) -> float:
        """How fast the body has come so far, in bytes per second."""
        return self._counted_bytes / max(now - self._received_s, self._limits.body_rate_from_s)

    def too_many_bytes(self) -> None:
        """Refuse the request being read: all bodies together are too many bytes, and this one makes room."""
        self._uncount()
        self._refuse(Refusal.TOO_MANY_BYTES, "too much is being sent at once, and this is the slowest")

    def pause_body(self) -> None:
        """Stop reading the body until the handler accepts more. Still looks for a client that hung up."""
        if self._state == _BODY and not self._body_paused:
            self._body_paused = True
            self._stream.pause_reading()
            self._arm(self._limits.gone_look_s)

    def resume_body(self) -> None:
        """Read the body on after `pause_body`."""
        if not self._body_paused:
            return
        self._body_paused = False
        if self._transport is not None and not self._reading_paused and not self._transport.is_closing():
            if not self._turn_paused:
                self._transport.resume_reading()
            if self._state == _BODY:
                self._arm(self._limits.body_timeout_s)

    def pause_turn(self) -> None:
        """Stop reading until `resume_turn`: the bodies of other connections are read first."""
        if self._transport is not None and not self._transport.is_closing():
            self._turn_paused = True
            self._transport.pause_reading()

    def resume_turn(self) -> None:
        """Resume reading, unless something else keeps the connection paused."""
        if self._turn_paused:
            self._turn_paused = False
            if self._transport is not None and not (
                self._body_paused or self._reading_paused or self._transport.is_closing()
            ):
                self._transport.resume_reading()

    def _complete(self, reader: RequestReader) -> None:
        if self._body_paused:
            self.resume_body()
        exchange = self._exchange
        assert exchange is not None
        exchange.body = reader.take_body()
        if self._counted_bytes:  # from here on the exchange counts the body
            self._uncount()
            exchange.hold(len(exchange.body))
        self._state = _BUSY
        if not self._write_paused:
            self._timer.deadline_s = math.inf
        self.server.handler.complete(exchange)

    def _keep(self, data: bytes, at: int = 0) -> None:
        """Keep data that came ahead of its turn (`data[at:]`). Stop reading when that exceeds `pipelined_bytes_max`."""
        if self._state == _LINGER:
            self._discard(len(data) - at)
        elif self._state != _CLOSING:
            if self._rest:
                data, at = self._rest[self._rest_at :] + data[at:], 0
            self._rest, self._rest_at = data, at
            if len(data) - at > self._limits.pipelined_bytes_max and not self._reading_paused:
                self._reading_paused = True
                self._stream.pause_reading()
                if self._state == _BUSY and not self._write_paused:
                    self._arm(self._limits.gone_look_s)

    def _resume(self) -> None:
        """Parse the kept data, now that the exchange before it is over."""
        if self._state != _IDLE or self._write_paused or not self._rest or self._stream.is_closing():
            return
        data, at = self._rest, self._rest_at
        self._rest = b""
        if self._reading_paused:
            self._reading_paused = False
            self._stream.resume_reading()
        self._parse(data, at)

    # ---- refusing and closing

    @property
    def _stream(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _refuse(self, refusal: Refusal, detail: str) -> None:
        """Answer as the handler words it, then close. If a response has begun already, only close."""
        exchange = self._exchange
        if exchange is not None and exchange.started:
            self.abort()
            return
        try:
            status, headers, body = self.server.handler.refused(exchange, refusal, detail)
            if exchange is None:  # the head could not be read: a stand-in to answer with
                exchange = self._exchange = SocketExchange(self, self._stream)
            self._state = _BODY  # further data is discarded
            exchange.respond(status, headers, body)
        except BaseException:
            self.abort()
            raise

    def _linger(self) -> None:
        """The response is sent before the request was read to its end: discard the rest for a while, then close.

        Closing at once would make the kernel send a reset, which can destroy the response on its way.
        """
        self._state = _LINGER
        self.resume_body()
        self.resume_turn()
        self._uncount()
        self._reader.close()
        if self._stream.can_write_eof() and not self._stream.is_closing():
            self._stream.write_eof()
        self._arm(self._limits.linger_timeout_s)

    def _discard(self, size: int) -> None:
        self._linger_bytes += size
        if self._linger_bytes > self._limits.linger_bytes_max:
            self._close()

    def _close(self) -> None:
        """Send pending writes, then close. A client that does not read it is cut off after `write_timeout_s`.

        One that has read all and does not answer the end of TLS is cut off after `linger_timeout_s`.
        """
        if self._state == _CLOSING or self._transport is None:
            return
        self._state = _CLOSING
        self._seen_left = self._left()
        self._received_s = now = self._loop.time()
        self._look_at_end(now)
        self._transport.close()

    def _look_at_end(self, now: float) -> None:
        """Look later whether the client takes what is pending; `_received_s` is when it was last seen to do so."""
        self._timer.set(now + min(self._limits.linger_timeout_s, self._limits.write_timeout_s))

    def _left(self) -> tuple[int, int]:
        """Returns how much is to be sent to the client, and how many bytes its kernel has taken.

        For TLS the kernel is asked for both: what is encrypted waits where nobody else sees it.
        """
        transport = self._transport
        assert transport is not None
        size = transport.get_write_buffer_size()
        if transport.get_extra_info("ssl_object") is None:
            return size, 0
        try:
            info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except (AttributeError, OSError, struct.error):  # it is closed by now, or the system has no or a shorter one
            return size, 0
        unacknowledged, taken_bytes, unsent_bytes = _TCP_INFO.unpack(info)
        return size + unacknowledged + unsent_bytes, taken_bytes

    # ---- time

    def _to_idle(self) -> None:
        """Wait for the next request, or parse the one that was kept."""
        if self._write_paused:
            return  # the client must read its response first; the write deadline is running
        self._stalled_bytes = sys.maxsize
        self.server.idle[self] = None
        self._timer.set(self._loop.time() + self._limits.keepalive_timeout_s)
        if self._rest and not self._parsing:
            self._loop.call_soon(self._resume)

    def _arm(self, wait_s: float) -> None:
        self._timer.set(self._loop.time() + wait_s)

    def _expired(self) -> None:
        """The deadline has passed. The state shows its kind: a write, an idle wait, a head, a body, a close."""
        state = self._state
        if state == _CLOSING:
            self._end()
            return
        waiting_bytes = self._stream.get_write_buffer_size()
        if waiting_bytes and (self._write_paused or state in (_IDLE, _LINGER)):
            if waiting_bytes < self._stalled_bytes:
                self._stalled_bytes = waiting_bytes
                self._arm(self._limits.write_timeout_s)
            else:
                self.abort()
        elif state == _IDLE:
            self._close()
        elif state == _BUSY or (state == _BODY and (self._body_paused or self._turn_paused)):
            self._look_for_client()
        elif state in (_HEAD, _BODY):
            self._refuse(Refusal.CLIENT_TIMEOUT, "the request did not arrive in time")
        else:
            self.abort()

    def _end(self) -> None:
        """Cut off a client that has all of the last answer, or takes no more of it."""
        now, left = self._loop.time(), self._left()
        if left != self._seen_left:
            self._seen_left, self._received_s = left, now
        elif not left[0] or now - self._received_s >= self._limits.write_timeout_s:
            self.abort()
            return
        self._look_at_end(now)

    def _look_for_client(self) -> None:
        """Ask the kernel whether the client is still there: while reading is stopped, the loop reports no hang-up."""
        if self._reading_paused or self._body_paused or self._turn_paused:
            poller = select.poll()
            poller.register(self._stream.get_extra_info("socket").fileno(), _HUNG_UP)
            if poller.poll(0):
                self.abort()
            else:
                self._arm(self._limits.gone_look_s)
