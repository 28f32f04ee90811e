"""The transport: how do bytes get to an engine and back?

One `Upstream` per endpoint: a pool of HTTP/1.1 connections, the youngest used first. `send` writes a request
at once, on an idle connection or a new one, and tells its sink what comes back. Idle connections are closed
before an engine would close them, and dropped the moment an engine does; a request that still meets a stale
one, and heard nothing, is sent once more on a new one. Headers are written as they are given; those of one hop
are the caller's to leave out, and `Host` and the body's framing are added here. How many connections are open
is bounded by who sends (a lease each), how many stay idle by the limits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from typing import TYPE_CHECKING, Final, cast

from penstock.http.client.call import Call, Payload, Sink
from penstock.http.client.connection import UpstreamConnection
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

STALE_S: Final = 1.0  # a stale connection tells within a round trip; later, the engine died on this very request


class UpstreamException(Exception):  # noqa: N818 - the error is the value it carries
    """`fetch` got no whole answer."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(f"{error.kind.value}: {error.detail}")
        self.error = error


class Upstream:
    """One endpoint's connections. Made and used on one event loop."""

    def __init__(
        self,
        url: str,
        *,
        timeouts: UpstreamTimeouts | None = None,
        limits: UpstreamLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.timeouts = timeouts or UpstreamTimeouts()
        self.limits = limits or UpstreamLimits()
        self._address = address = Address.of(url)
        self._loop = loop or asyncio.get_running_loop()
        self.time = self._loop.time
        self._ssl = (ssl_context or ssl.create_default_context()) if address.is_tls else None
        self._host_line = f"Host: {address.authority}".encode("ascii")
        self._connecting: set[UpstreamConnection] = set()
        self._open: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []  # by the time they became idle
        self._tick_s = self.timeouts.tick_s
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._requests_total = self._connects_total = self._retries_total = 0

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        return self._address.host, self._address.port

    def retime(self, timeouts: UpstreamTimeouts) -> None:
        """Other time-outs, also for what is under way."""
        self.timeouts = timeouts
        self._tick_s = timeouts.tick_s

    def at_port(self, port: int) -> Upstream:
        """Another one to the same host, without this one's path prefix."""
        address = self._address
        host = f"[{address.host}]" if ":" in address.host else address.host
        scheme = "https" if address.is_tls else "http"
        return Upstream(
            f"{scheme}://{host}:{port}",
            timeouts=self.timeouts,
            limits=self.limits,
            ssl_context=self._ssl,
            loop=self._loop,
        )

    def unpooled(self) -> Upstream:
        """Another one to the same place, with a new connection for every request."""
        address = self._address
        return Upstream(
            f"{'https' if address.is_tls else 'http'}://{address.authority}{address.prefix}",
            timeouts=self.timeouts,
            limits=dataclasses.replace(self.limits, idle_connections_max=0),
            ssl_context=self._ssl,
            loop=self._loop,
        )

    def give_up(self, detail: str) -> None:
        """End every call that has no payload yet as if it had timed out: the engine is known to answer nothing."""
        for connection in tuple(self._open):
            connection.give_up(detail)

    def send(self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: Payload, sink: Sink) -> Call:
        """Send a request, and return at once. A request line or header with a line break is a ValueError."""
        call = Call(self._head(method, target, headers, body), body, sink, is_head_request=method == "HEAD")
        self._requests_total += 1
        now = self.time()
        idle = self._idle
        while idle:
            connection = idle.pop()
            if now - connection.idle_since < self.timeouts.idle_s and not connection.transport.is_closing():
                connection.start(call, now + STALE_S)
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
        """A whole answer, or `UpstreamException`; for probes and metrics. Cancelled, it closes its connection."""
        collector = _Collector(
            self._loop.create_future(), self.limits.fetch_bytes_max if bytes_max is None else bytes_max
        )
        call = self.send(method, target, headers, body, collector)
        try:
            async with asyncio.timeout(timeout_s):
                return await collector.answer
        except TimeoutError:
            kind = UpstreamErrorKind.IDLE_TIMEOUT if collector.status else UpstreamErrorKind.FIRST_BYTE_TIMEOUT
            raise UpstreamException(UpstreamError(kind, f"not complete within {timeout_s:g} s")) from None
        finally:
            call.abort()
            del collector  # its error knows this frame, and what came would stay until somebody looks for garbage

    def close(self) -> None:
        """Close every connection. Calls still on their way end with an error; later ones fail at once."""
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
        """Whether any call is on its way."""
        return bool(self._connecting) or len(self._open) > len(self._idle)

    @property
    def waits_for_clients(self) -> bool:
        """Whether answers are under way, and none is read because their readers take no more."""
        begun = [connection for connection in self._open if connection.has_begun]
        return bool(begun) and all(connection.is_paused for connection in begun)

    def statistics(self) -> UpstreamStatistics:
        """How many connections there are, and how many there were."""
        return UpstreamStatistics(
            connecting=len(self._connecting),
            active=len(self._open) - len(self._idle),
            idle=len(self._idle),
            requests_total=self._requests_total,
            connects_total=self._connects_total,
            retries_total=self._retries_total,
        )

    # --- What a connection asks of its pool

    def opened(self, connection: UpstreamConnection, /) -> None:
        self._connects_total += 1
        self._connecting.discard(connection)
        self._open.add(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def release(self, connection: UpstreamConnection, /) -> None:
        if self._is_closed or len(self._idle) >= self.limits.idle_connections_max:
            connection.close()
            return
        connection.idle_since = self.time()
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection, /) -> None:
        self._open.discard(connection)
        if connection in self._idle:  # a list of at most `idle_connections_max`
            self._idle.remove(connection)

    def retry(self, call: Call, /) -> None:
        self._retries_total += 1
        self._connect(call)

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
            connection.connecting = None  # one that was cancelled knows the frame, and so this connection and its call

        task.add_done_callback(connected)

    async def _open_connection(self, connection: UpstreamConnection) -> None:
        """A task per new connection, not per request; from `connection_made` on, callbacks do the rest."""
        if self._is_closed:
            connection.fail(UpstreamErrorKind.CONNECT, "the endpoint was closed")
            return
        address = self._address
        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                await self._loop.create_connection(
                    lambda: cast("asyncio.Protocol", connection),
                    address.host,
                    address.port,
                    ssl=self._ssl,
                    server_hostname=address.host if self._ssl else None,
                )
        except TimeoutError:
            detail = f"no connection within {self.timeouts.connect_s:g} s"
            connection.fail(UpstreamErrorKind.CONNECT_TIMEOUT, detail)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, a name IDNA refuses a ValueError
            connection.fail(UpstreamErrorKind.CONNECT, str(error) or type(error).__name__)

    def _tick(self) -> None:
        """Look at every connection; one timer per endpoint instead of one per request, and none when idle."""
        self._timer = self._loop.call_later(self._tick_s, self._tick) if self._open else None
        now = self.time()
        while self._idle and now - self._idle[0].idle_since >= self.timeouts.idle_s:
            self._idle[0].close()
        for connection in tuple(self._open):
            connection.check(now)


class _Collector:
    """A sink that keeps the whole answer, up to a bound."""

    def __init__(self, answer: asyncio.Future[Response], bytes_max: int) -> None:
        self.answer = answer
        self.status = 0
        self._headers: Headers = []
        self._body = bytearray()
        self._bytes_max = bytes_max

    def on_response(self, status: int, headers: Headers, /) -> None:
        self.status = status
        self._headers = headers

    def on_data(self, data: bytes, /) -> None:
        if self.answer.done():
            return  # it was too much before
        if len(self._body) + len(data) > self._bytes_max:
            self.on_error(UpstreamError(UpstreamErrorKind.PROTOCOL, f"a body of more than {self._bytes_max} bytes"))
        else:
            self._body += data

    def on_end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Response(self.status, self._headers, bytes(self._body)))

    def on_error(self, error: UpstreamError, /) -> None:
        if not self.answer.done():
            self.answer.set_exception(UpstreamException(error))
