"""How do clients reach the gateway? Penstock's own HTTP/1.1 server: listen, count, drain, stop.

It is push-style on asyncio protocols: the handler is called back, and no task or coroutine is made per request
or per chunk, because the gateway has to cost as little as a native proxy. The parts: `http1_limits` (bounds and
refusals), `http1_listener` (newcomers), `http1_exchange` (one request and its response), `http1_reader` (bytes to one
request at a time), `http1_connection` (what a client's connection does next), `http1_timer` (its one deadline).
The road not taken is ASGI: its coroutine, scope and message dictionaries cost more than the rest of a request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from email.utils import formatdate
from typing import TYPE_CHECKING, cast

from penstock import clock
from penstock.http.server.connection import Connection
from penstock.http.server.exchange import Exchange, Handler, Header
from penstock.http.server.limits import Refusal, ServerLimits
from penstock.http.server.listener import Listener
from penstock.http.server.turns import ReadTurns

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Callable

__all__ = ["Exchange", "Handler", "Header", "HttpServer", "Refusal", "ServerLimits"]

_ABORT_WAIT_S_MAX = 5.0  # aborted connections are gone within a turn of the loop; this is for a broken one


class HttpServer:
    """Listens for clients and owns their connections, from the accept to the last close."""

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits | None = None,
        *,
        wall_clock: Callable[[], float] = clock.wall,
    ) -> None:
        self.handler = handler
        self.limits = limits or ServerLimits()
        self.draining = False
        self.turns = ReadTurns()
        self.bodies_bytes = 0  # kept of bodies: from the second read until an answer begins, or the exchange is over
        self.receiving: dict[Connection, None] = {}  # the connections that bodies are read on
        self._wall_clock = wall_clock
        self._connections: set[Connection] = set()
        self._of_address: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: Listener | None = None
        self._date_s = 0
        self._date_line = b""

    async def start(self, host: str, port: int, *, ssl: tls.SSLContext | None = None, backlog: int = 2048) -> None:
        """Listen; port 0 takes a free one."""
        loop = asyncio.get_running_loop()
        listener = Listener(
            lambda: cast("asyncio.Protocol", Connection(self, loop)),
            ssl=ssl,
            handshake_timeout_s=self.limits.header_timeout_s,
            shutdown_timeout_s=self.limits.linger_timeout_s,
        )
        await listener.listen(host, port, backlog)
        self._listener = listener

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._listener is not None
        return self._listener.port

    @property
    def connections(self) -> int:
        """How many connections are open, those about to close included."""
        return len(self._connections)

    def stop_accepting(self) -> None:
        """Take no new connection, close the idle ones; the busy ones close after their response."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.drain()

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until every connection has closed; after the time-out abort those that are left."""
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
        """Count a new connection. Why it is one too many, None when it is not."""
        address, limits = connection.peer[0], self.limits
        refusal = "too many connections" if len(self._connections) >= limits.connections_max else None
        most = limits.connections_per_address_max
        if most is not None and self._of_address[address] >= most:
            refusal = "too many connections from this address"
        self._connections.add(connection)
        self._of_address[address] += 1
        self._empty.clear()
        return refusal

    def hold(self, body_bytes: int) -> bool:
        """Count bytes of bodies that are kept, or let go (negative); False when they are too many."""
        self.bodies_bytes += body_bytes
        return self.bodies_bytes <= self.limits.bodies_bytes_max

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        address = connection.peer[0]
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        if not self._connections:
            self._empty.set()

    def slowest_body(self) -> Connection:
        """Of the connections that send a body, the one that has sent the least for its time; of equals the youngest.

        So who drips makes room for who sends, and nobody can hold all the room there is.
        """
        now = asyncio.get_running_loop().time()
        return min(reversed(self.receiving), key=lambda connection: connection.body_bytes_per_s(now))

    def date_line(self) -> bytes:
        """The `date` header, made once a second."""
        now_s = int(self._wall_clock())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date_line = b"date: %b" % formatdate(now_s, usegmt=True).encode()
        return self._date_line
