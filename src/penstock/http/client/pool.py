"""How do requests get to an engine and their answers back, over connections that are used again?

There is one `Upstream` per endpoint: a pool of HTTP/1.1 connections, the one used last is used first. `send` writes a
request at once, on an idle connection or a new one, and its sink gets the answer. Idle connections are closed before
the engine would close them, and dropped the moment the engine does, so that no request is written to them. If an idle
connection is closed while a request is on its way there, the call ends as STALE: the engine may have executed the
request, so retrying is up to the sender. Headers are written as given: the sender omits hop-by-hop ones, and the pool
adds `Host` and the framing of the body. Leases bound how many connections are open (one each), `UpstreamLimits` how
many stay idle.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from typing import TYPE_CHECKING, Final, cast

from penstock.http.client.answer_turns import turns_of
from penstock.http.client.call import Call, Payload, Sink
from penstock.http.client.upstream_connection import UpstreamConnection
from penstock.http.client.values import (
    Address,
    Headers,
    Response,
    UpstreamError,
    UpstreamErrorKind,
    UpstreamLimits,
    UpstreamStatistics,
    UpstreamTimeouts,
)
from penstock.http.head import head_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Call",
    "Headers",
    "Response",
    "Sink",
    "Upstream",
    "UpstreamError",
    "UpstreamErrorKind",
    "UpstreamException",
    "UpstreamLimits",
    "UpstreamStatistics",
    "UpstreamTimeouts",
]

UNLOOKED_S: Final = 0.05  # idle for less, a connection is used without a look: an engine that closes so soon says so
STALE_S: Final = 1.0  # a stale connection shows within a round trip; one lost later died with this very request


class UpstreamException(Exception):  # noqa: N818 - the error is the value it carries
    """`fetch` got no complete answer, because of `error`."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(f"{error.kind.value}: {error.detail}")
        self.error = error


class Upstream:
    """The connections to one endpoint. Made and used on one event loop. ValueError: its `url` is none."""

    def __init__(
        self,
        url: str,
        *,
        timeouts: UpstreamTimeouts | None = None,
        limits: UpstreamLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        server_name: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.timeouts = timeouts or UpstreamTimeouts()
        self.limits = limits or UpstreamLimits()
        self.url = url
        self._address = address = Address.of(url)
        self._loop = loop or asyncio.get_running_loop()
        self.time = self._loop.time
        self.turns = turns_of(self._loop)
        self._ssl = (ssl_context or ssl.create_default_context()) if address.is_tls else None
        self._server_name = server_name or address.host  # that the certificate has to be for
        self._host_line = f"Host: {address.authority}".encode("ascii")
        self._connecting: set[UpstreamConnection] = set()
        self._open: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []  # by the time they became idle
        self._tick_s = self.timeouts.tick_s
        self._timer: asyncio.TimerHandle | None = None
        self._rests = False  # all connections are idle, so the timer is set to when the first is to be closed
        self._is_closed = False
        self._requests_total = self._connects_total = 0

    @property
    def place(self) -> tuple[str, int]:
        """The endpoint's host and port; of a unix socket its path and 0."""
        address = self._address
        return (address.socket, 0) if address.socket else (address.host, address.port)

    @property
    def host(self) -> str:
        """The host it is on: `localhost` behind a unix socket."""
        return self._address.host

    @property
    def prefix(self) -> str:
        """The path prefix of its URL, or an empty text."""
        return self._address.prefix

    def retime(self, timeouts: UpstreamTimeouts) -> None:
        """Use these `timeouts` from now on, also for calls under way."""
        self.timeouts = timeouts
        self._tick_s = timeouts.tick_s
        if self._rests:
            self._watch()

    def retrust(self, ssl_context: ssl.SSLContext) -> None:
        """Use another `ssl_context` for new TLS connections."""
        if self._ssl is not None:
            self._ssl = ssl_context

    def at_port(self, port: int) -> Upstream:
        """Returns a new `Upstream` to another `port` of the same host, without this one's path prefix."""
        address = self._address
        host = f"[{address.host}]" if ":" in address.host else address.host
        scheme = "https" if address.is_tls else "http"
        return Upstream(
            f"{scheme}://{host}:{port}",
            timeouts=self.timeouts,
            limits=self.limits,
            ssl_context=self._ssl,
            server_name=self._server_name,
            loop=self._loop,
        )

    def unpooled(self) -> Upstream:
        """Returns a new `Upstream` to the same endpoint that makes a new connection for every request."""
        return Upstream(
            self.url,
            timeouts=self.timeouts,
            limits=dataclasses.replace(self.limits, idle_connections_max=0),
            ssl_context=self._ssl,
            server_name=self._server_name,
            loop=self._loop,
        )

    def give_up(self, detail: str) -> None:
        """End every call without payload yet as if it had timed out: it is known that the engine answers nothing."""
        for connection in tuple(self._open):
            connection.give_up(detail)

    def send(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: Payload,
        sink: Sink,
        *,
        timed: bool = False,
    ) -> Call:
        """Send a request without waiting; the answer goes to `sink`. Returns the handle to abort or pause it.

        `timed`: the sender has a time-out of its own, so the connections need not be watched for it. Raises ValueError
        if a header holds a line break, or the method or target a space.
        """
        call = Call(self._head(method, target, headers, body), body, sink, method == "HEAD")
        self._requests_total += 1
        now = self.time()
        idle = self._idle
        while idle:
            connection = idle.pop()
            idle_s = now - connection.idle_since
            if idle_s < UNLOOKED_S or (idle_s < self.timeouts.idle_s and not connection.is_dropped):
                connection.start(call, now + STALE_S)
                if self._rests and not timed:
                    self._watch()
                return call
            connection.close()
        self._connect(call)
        return call

    async def fetch(
        self,
        method: str,
        target: str,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        timeout_s: float,
        bytes_max: int | None = None,
    ) -> Response:
        """Returns a whole answer, of any status. For probes and metrics.

        A question that met a stale connection is asked once more, on a new one. Raises UpstreamException if there is no
        answer within `timeout_s`, or if its body exceeds `bytes_max` (None: the pool's limit). Cancelling it closes the
        connection.
        """
        limit = self.limits.fetch_bytes_max if bytes_max is None else bytes_max
        for is_last in (False, True):
            collector = _Collector(self._loop.create_future(), limit)
            call = self.send(method, target, headers, body, collector, timed=True)
            timer = self._loop.call_later(timeout_s, collector.on_late, timeout_s)
            try:
                return await collector.answer
            except UpstreamException as error:
                if is_last or error.error.kind is not UpstreamErrorKind.STALE:
                    raise
            finally:
                timer.cancel()
                call.abort()
                del collector  # its error refers to this frame: the answer would stay in memory until a collection
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close every connection. Calls under way end with an error; later ones fail at once."""
        self._is_closed = True
        for connection in tuple(self._open):
            connection.lose("the endpoint was closed")
        for connection in tuple(self._connecting):
            connection.fail(UpstreamErrorKind.CONNECT, "the endpoint was closed")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def busy(self) -> bool:
        """True if any call is under way."""
        return bool(self._connecting) or len(self._open) > len(self._idle)

    @property
    def waits_for_clients(self) -> bool:
        """True if answers have begun and every one of them is paused: the engine waits for our clients."""
        begun = [connection for connection in self._open if connection.has_begun]
        return bool(begun) and all(connection.is_paused for connection in begun)

    def statistics(self) -> UpstreamStatistics:
        """How many connections there are now, and totals since the start."""
        return UpstreamStatistics(
            connecting=len(self._connecting),
            active=len(self._open) - len(self._idle),
            idle=len(self._idle),
            requests_total=self._requests_total,
            connects_total=self._connects_total,
        )

    # --- From connections

    def opened(self, connection: UpstreamConnection, /) -> None:
        """`connection` is made: watch it for time-outs."""
        self._connects_total += 1
        self._connecting.discard(connection)
        self._open.add(connection)
        if self._timer is None or self._rests:
            self._watch()

    def release(self, connection: UpstreamConnection, /) -> None:
        """`connection` has carried a whole answer: keep it for the next request, or close it if enough are idle."""
        if self._is_closed or len(self._idle) >= self.limits.idle_connections_max:
            connection.close()
            return
        connection.idle_since = self.time()
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection, /) -> None:
        """`connection` is closed."""
        self._open.discard(connection)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if connection in self._idle:  # a list of at most `idle_connections_max`
            self._idle.remove(connection)

    def close_idle(self) -> None:
        """Close the idle connections: one of their kind turned out to be stale."""
        for connection in tuple(self._idle):
            connection.close()

    # --- Its own

    def _head(self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: Payload) -> bytes:
        if " " in target or " " in method:
            raise ValueError("a space in a method or a target")
        lines = [f"{method} {self._address.prefix}{target} HTTP/1.1".encode("ascii"), self._host_line]
        lines += map(b": ".join, headers)
        if body or method not in ("GET", "HEAD"):
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
            lines.append(b"content-length: %d" % size)
        return head_of(lines)

    def _connect(self, call: Call) -> None:
        connection = UpstreamConnection(self, call)
        self._connecting.add(connection)
        connection.connecting = task = self._loop.create_task(self._open_connection(connection))

        def connected(_: asyncio.Task[None]) -> None:
            self._connecting.discard(connection)
            connection.connecting = None  # a cancelled task refers to its frame, and so to this connection and its call

        task.add_done_callback(connected)

    async def _open_connection(self, connection: UpstreamConnection) -> None:
        """Connect; a task per new connection, not per request. From `connection_made` on, callbacks do the rest."""
        if self._is_closed:
            connection.fail(UpstreamErrorKind.CONNECT, "the endpoint was closed")
            return
        address = self._address
        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                if address.socket:
                    await self._loop.create_unix_connection(
                        lambda: cast("asyncio.Protocol", connection), address.socket
                    )
                    return
                await self._loop.create_connection(
                    lambda: cast("asyncio.Protocol", connection),
                    address.host,
                    address.port,
                    ssl=self._ssl,
                    server_hostname=self._server_name if self._ssl else None,
                )
        except TimeoutError:
            detail = f"no connection within {self.timeouts.connect_s:g} s"
            connection.fail(UpstreamErrorKind.CONNECT_TIMEOUT, detail)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, a name IDNA refuses a ValueError
            connection.fail(UpstreamErrorKind.CONNECT, str(error) or type(error).__name__)

    def _watch(self) -> None:
        """Check every connection a tick from now, and again and again: a call is under way."""
        if self._timer is not None:
            self._timer.cancel()
        self._rests = False
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        """Check every connection. One timer per endpoint instead of one per request; none while no socket is open.

        While all connections are idle, the next tick is when the first of them is to be closed.
        """
        now, idle, pause_s = self.time(), self._idle, self._tick_s
        while idle and now - idle[0].idle_since >= self.timeouts.idle_s:
            idle[0].close()
        for connection in tuple(self._open):
            connection.check(now)
        self._rests = len(idle) == len(self._open)
        if self._rests and idle:
            pause_s = max(pause_s, idle[0].idle_since + self.timeouts.idle_s - now)
        self._timer = self._loop.call_later(pause_s, self._tick) if self._open else None


class _Collector:
    """A sink that keeps the whole answer, up to `bytes_max`, and completes a future with it."""

    def __init__(self, answer: asyncio.Future[Response], bytes_max: int) -> None:
        self.answer = answer
        self.status = 0
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        self._left_bytes = bytes_max
        self._bytes_max = bytes_max

    def on_response(self, status: int, headers: Headers, /) -> None:
        self.status = status
        self._headers = headers

    def on_data(self, data: bytes, /) -> None:
        if self.answer.done():
            return  # the body was too large already
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self.on_error(UpstreamError(UpstreamErrorKind.PROTOCOL, f"a body of more than {self._bytes_max} bytes"))
        else:
            self._pieces.append(data)

    def on_end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Response(self.status, self._headers, b"".join(self._pieces)))

    def on_error(self, error: UpstreamError, /) -> None:
        if not self.answer.done():
            self.answer.set_exception(UpstreamException(error))

    def on_late(self, after_s: float) -> None:
        kind = UpstreamErrorKind.IDLE_TIMEOUT if self.status else UpstreamErrorKind.FIRST_BYTE_TIMEOUT
        self.on_error(UpstreamError(kind, f"not complete within {after_s:g} s"))
