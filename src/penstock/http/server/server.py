"""How do clients reach the gateway? Penstock's own HTTP/1.1 server: listen, count, drain, stop.

The server works by callbacks on asyncio protocols: the handler is called back, and no task or coroutine is made per
request or per chunk, because the gateway has to cost as little as a native proxy. Bounded here: the number of
connections, in all and per client address, and the bytes of all bodies together. The road not taken is ASGI: its
coroutine, scope and message dictionaries cost more than the rest of a request.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock import clock
from penstock.http.server.connection import Connection
from penstock.http.server.exchange import Exchange, Header
from penstock.http.server.limits import Refusal, ServerLimits
from penstock.http.server.listener import ACCEPTS_MAX, Brought, Listener
from penstock.http.server.socket_exchange import Handler, SocketExchange
from penstock.http.server.upload_turns import ReadTurns

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Callable, Sequence

__all__ = ["Exchange", "Handler", "Header", "HttpServer", "Refusal", "ServerLimits", "SocketExchange"]

BACKLOG = 2048  # newcomers that wait in the kernel's line; the system's own limit may be lower
_TLS_END_S = 86_400.0  # connections look after their end themselves: a slow client may still be reading
_ABORT_WAIT_S_MAX = 5.0  # aborted connections close within a turn of the loop; this bounds the wait for a stuck one


class HttpServer:
    """Listens for clients and owns their connections, from the accept to the last close."""

    def __init__(
        self, handler: Handler, limits: ServerLimits | None = None, *, wall_clock: Callable[[], float] = clock.wall
    ) -> None:
        self.handler = handler
        self.limits = limits or ServerLimits()
        self.draining = False
        self.brings: Callable[[str], bool] | None = None  # the peer at an address sends a PROXY header
        self.carries_many: Callable[[str], bool] | None = None  # that peer's connections are many clients'
        self.turns = ReadTurns()
        self.bodies_bytes = 0  # of bodies in memory: each counts from its second read until its exchange lets it go
        self.idle: dict[Connection, None] = {}  # connections without a request, by the time of their last one
        self.receiving: dict[Connection, None] = {}  # connections that a counted body is being read on
        self._wall_clock = wall_clock
        self._connections: set[Connection] = set()
        self._of_address: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: Listener | None = None
        self._date_s = 0
        self._date_line = b""

    async def start(self, host: str, port: int, *, ssl: tls.SSLContext | None = None, backlog: int = BACKLOG) -> None:
        """Listen on `host` and `port`; port 0 takes a free one. Raises OSError if the address is taken."""
        await self.bind(host, port, ssl=ssl, backlog=backlog)
        self.accept()

    async def bind(self, host: str, port: int, *, ssl: tls.SSLContext | None = None, backlog: int = BACKLOG) -> None:
        """The same, but clients that come wait until `accept`."""
        listener = self._listens(ssl, ACCEPTS_MAX)
        await listener.listen(host, port, backlog)
        self._listener = listener

    def accept(self) -> None:
        """Accept connections from now on."""
        assert self._listener is not None
        self._listener.accept()

    def take(
        self, sockets: Sequence[socket.socket], *, ssl: tls.SSLContext | None = None, accepts_max: int = ACCEPTS_MAX
    ) -> None:
        """Accept from sockets that are listened on already, at most `accepts_max` newcomers in a turn of the loop."""
        self._listener = listener = self._listens(ssl, accepts_max)
        listener.take(sockets)

    def adopt(self, transport: asyncio.Transport, came: bytes) -> None:
        """Serve a connection accepted elsewhere, and the data received since."""
        connection = Connection(self, asyncio.get_running_loop())
        transport.set_protocol(cast("asyncio.Protocol", connection))
        connection.connection_made(transport)
        if came:
            connection.data_received(came)

    def start_at(self, path: str) -> None:
        """Listen on a unix socket of that name. Raises OSError if it can't be made."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)  # noqa: FBT003 - the socket's own
        try:
            made.bind(path)
            made.listen(BACKLOG)
        except OSError:
            made.close()
            raise
        self.take([made])

    def _listens(self, ssl: tls.SSLContext | None, accepts_max: int) -> Listener:
        loop = asyncio.get_running_loop()
        return Listener(
            cast("Callable[[Brought | None], asyncio.Protocol]", partial(Connection, self, loop)),
            ssl=ssl,
            begin_timeout_s=lambda: self.limits.header_timeout_s,
            shutdown_timeout_s=_TLS_END_S,
            accepts_max=accepts_max,
            brings=lambda address: self.brings is not None and self.brings(address),
        )

    @property
    def port(self) -> int:
        """The port listened on, which is the chosen one after `start` with port 0."""
        assert self._listener is not None
        return self._listener.port

    @property
    def connections(self) -> int:
        """How many connections are open, including those about to close."""
        return len(self._connections)

    def drain(self, idle_s: float) -> None:
        """Close each connection after its next response, or when it has been idle for another `idle_s` seconds.

        Newcomers are still accepted, and their connections close after the first response.
        """
        self.draining = True
        for connection in self._connections:
            connection.close_if_idle_for(idle_s)

    def stop_accepting(self) -> None:
        """Stop accepting connections and close the idle ones. Busy ones close after their response."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.drain()

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until every connection has closed. After `timeout_s` abort those that are left."""
        self.stop_accepting()
        if await self._emptied(timeout_s):
            return
        if self._listener is not None:
            await self._listener.end()
        for connection in tuple(self._connections):
            connection.abort()
        await self._emptied(_ABORT_WAIT_S_MAX)

    async def _emptied(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    # ---- for the connections

    def opened(self, connection: Connection) -> str | None:
        """Count a new connection. Returns None if it may stay, otherwise the reason. Either way `closed` must follow.

        At a bound, an idle connection makes room: the one without a request for the longest time.
        """
        address, limits = connection.peer[0], self.limits
        refusal = None
        most = limits.connections_per_address_max
        if most is not None and self._of_address[address] >= most and not self._carries_many(address):
            if not self._close_idle(address):
                refusal = "too many connections from this address"
        elif len(self._connections) >= limits.connections_max and not self._close_idle():
            refusal = "too many connections"
        self._connections.add(connection)
        self._of_address[address] += 1
        self._empty.clear()
        return refusal

    def _close_idle(self, address: str | None = None) -> bool:
        """Close the connection that is idle for the longest time, of those from `address`. Returns False if none is."""
        for connection in self.idle:  # at most all connections, and only if addresses have a bound of their own
            if address is None or connection.peer[0] == address:
                self.closed(connection)
                connection.drain()
                return True
        return False

    def _carries_many(self, address: str) -> bool:
        return self.carries_many is not None and self.carries_many(address)

    def hold(self, body_bytes: int) -> bool:
        """Count `body_bytes` of a body in memory; negative when it is let go. Returns False if all are now too many."""
        self.bodies_bytes += body_bytes
        return self.bodies_bytes <= self.limits.bodies_bytes_max

    def closed(self, connection: Connection) -> None:
        """A connection has closed. A second call for the same connection does nothing."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self.idle.pop(connection, None)
        address = connection.peer[0]
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        if not self._connections:
            self._empty.set()

    def slowest_body(self) -> Connection:
        """Returns the connection with the slowest upload, in bytes per second; of equals the youngest.

        It is the one to refuse when bodies are too many bytes together: a client that drips makes room for those that
        send, so no client can occupy all of it by being slow. There must be one in `receiving`.
        """
        now = asyncio.get_running_loop().time()
        return min(reversed(self.receiving), key=lambda connection: connection.body_bytes_per_s(now))

    def date_line(self) -> bytes:
        """The `date` header line, made once a second."""
        now_s = int(self._wall_clock())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date_line = b"date: %b" % formatdate(now_s, usegmt=True).encode()
        return self._date_line
