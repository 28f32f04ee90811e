"""Paths that only one process can answer, asked at another one: how do the question and the answer travel?

A worker asks its gateway's first process, over a socket in a folder that only this user may enter. A gateway that
stands by asks the one that decides, over the port between gateways. Both send HTTP to the other's server, one
connection per request; bodies and answers are streamed, so an upload or a stream of events takes no memory here. The
client's address travels in a header that no client can send, because it is removed here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import httptools

from penstock.config.paths import is_own
from penstock.core.values.catalogue import Reason
from penstock.gateway.builtin.operators_app import is_operators
from penstock.gateway.cluster.greeting import QUESTION
from penstock.gateway.cluster.link import taken_over
from penstock.http.server.server import Exchange, Handler, Header, Refusal, SocketExchange

if TYPE_CHECKING:
    from penstock.gateway.cluster.listener import Dialler

PEER_HEADER: Final = b"x-penstock-peer"
LENGTH_HEADER: Final = b"content-length"
_ALIVE = ("/health", "/healthz", "/livez")  # a worker answers these itself
_QUEUE: Final = "/queue"
_OF_GROUP = (_QUEUE, "/autoscale", "/admin")
_PREFIXES_OF_GROUP = ("/autoscale/", "/admin/")
_OF_ONE = ("/admin/reload", "/admin/usage")  # of each gateway, leader or not: its settings, its store
_ONE_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)

Connect = Callable[[asyncio.Protocol], Awaitable[None]]
Refuse = Callable[[Exchange, Reason, str], None]


class WorkerPaths:
    """At a worker: the paths that its gateway's first process answers."""

    def __init__(self, place: str, refuse: Refuse, request_id: Callable[[Exchange], bytes]) -> None:
        self._place = place  # of the first process's socket
        self._request_id = request_id
        self._refuse = refuse

    def owns(self, path: str) -> bool:
        """Returns True for a path that is answered here or forwarded."""
        return is_own(path)

    def begin(self, exchange: Exchange) -> int | None:
        if not _asks_if_alive(exchange):
            unreachable = "The gateway's own paths are not served at this moment."
            ForwardedQuestion(exchange, self._refuse, unreachable).ask(self._connect)
        return None

    def complete(self, exchange: Exchange) -> None:
        if _asks_if_alive(exchange):
            headers = [(b"content-type", b"application/json"), (b"x-request-id", self._request_id(exchange))]
            exchange.respond(200, headers, b'{"status":"ok"}')
        elif isinstance(exchange.note, ForwardedQuestion):
            exchange.note.whole()

    async def _connect(self, protocol: asyncio.Protocol) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, self._place)


class GroupPaths:
    """Stands before an app: the paths that the group's decider answers, if that is another gateway.

    A gateway answers these itself: `/metrics`, `/ready`, a reload of its settings.
    """

    def __init__(
        self, app: Handler, asks: Callable[[str], bool], dial: Dialler, leader: Callable[[], str | None], refuse: Refuse
    ) -> None:
        self._app = app
        self._asks = asks
        self._dial = dial
        self._leader = leader
        self._refuse = refuse

    def begin(self, exchange: SocketExchange) -> int | None:
        leader = self._leader()
        if leader is None or not self._asks(exchange.target_path):
            return self._app.begin(exchange)
        unreachable = "The gateway that decides can't be asked at this moment."
        ForwardedQuestion(exchange, self._refuse, unreachable).ask(lambda protocol: self._connect(leader, protocol))
        return None

    def complete(self, exchange: SocketExchange) -> None:
        if isinstance(exchange.note, ForwardedQuestion):
            exchange.note.whole()
        else:
            self._app.complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        return self._app.refused(exchange, refusal, detail)

    async def _connect(self, leader: str, protocol: asyncio.Protocol) -> None:
        taken_over(*await self._dial(leader, QUESTION), protocol)


def is_of_group(path: str) -> bool:
    """Returns True for a path about the whole group, which its decider answers."""
    return path not in _OF_ONE and (path in _OF_GROUP or path.startswith(_PREFIXES_OF_GROUP))


def is_callers_of_group(path: str) -> bool:
    """Returns True for such a path if it is also for clients."""
    return path == _QUEUE


def _asks_if_alive(exchange: Exchange) -> bool:
    return exchange.target_path in _ALIVE and exchange.method in ("GET", "HEAD")


class ForwardedQuestion(asyncio.Protocol):
    """One request on its way there, and the answer on its way back. Its exchange holds it."""

    def __init__(self, exchange: Exchange, refuse: Refuse, unreachable: str) -> None:
        """`unreachable`: the error's text if nobody answers."""
        self._exchange = exchange
        self._refuse = refuse
        self._unreachable = unreachable
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[Header] = []
        self._unsent: list[bytes] = []
        self._whole = self._over = False
        self._chunked = LENGTH_HEADER not in exchange.lookup and b"transfer-encoding" in exchange.lookup
        exchange.note = self
        exchange.on_body = self._body
        exchange.on_over = self._exchange_over
        exchange.on_pause, exchange.on_resume = self._pause, self._resume

    def ask(self, connect: Connect) -> None:
        """Connect and send."""
        self._unsent.append(self._head())
        self._connecting = asyncio.get_running_loop().create_task(self._connect(connect))

    def whole(self) -> None:
        """The client's body is whole."""
        self._whole = True
        if self._chunked:
            self._send(b"0\r\n\r\n")

    async def _connect(self, connect: Connect) -> None:
        try:
            await connect(self)
        except OSError:
            self._end()

    def _head(self) -> bytes:
        exchange = self._exchange
        path = exchange.target_path + (f"?{exchange.query}" if exchange.query else "")
        lines = [f"{exchange.method} {path} HTTP/1.1".encode("ascii")]
        for name, value in exchange.headers:
            lower = name.lower()
            if lower not in _ONE_HOP and lower != PEER_HEADER:
                lines.append(b"%b: %b" % (name, value))
        if b"host" not in exchange.lookup:
            lines.append(b"host: penstock")
        if self._chunked:
            lines.append(b"transfer-encoding: chunked")
        brought = b" brought" if exchange.brought else b""
        peer = b"%b%b %d" % (exchange.peer[0].encode(), brought, exchange.peer[1])
        lines += [b"connection: close", b"%b: %b" % (PEER_HEADER, peer)]
        return b"\r\n".join([*lines, b"", b""])

    def _body(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _send(self, data: bytes) -> None:
        if self._over:
            return
        if self._transport is None:
            self._unsent.append(data)
            self._exchange.pause_body()
        else:
            self._transport.write(data)

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _exchange_over(self) -> None:
        """It is answered, or its client is gone."""
        self._over = True
        if self._transport is not None:
            self._transport.close()

    def _end(self) -> None:
        if self._over:
            return
        if self._exchange.started:
            self._exchange.abort()
        else:
            self._refuse(self._exchange, Reason.OVERLOAD, self._unreachable)

    # --- from the transport ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._over:
            self._transport.close()
            return
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._exchange.resume_body()

    def pause_writing(self) -> None:
        self._exchange.pause_body()

    def resume_writing(self) -> None:
        self._exchange.resume_body()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end()

    # --- from the parser ------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        exchange, status = self._exchange, self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        length = next((int(value) for name, value in self._headers if name.lower() == LENGTH_HEADER), None)
        exchange.start(status, self._headers, length=length)
        if exchange.method == "HEAD":
            exchange.end()

    def on_body(self, data: bytes) -> None:
        self._exchange.write(data)

    def on_message_complete(self) -> None:
        if self._exchange.started:
            self._exchange.end()


class ForwardingApp:
    """The answering side: restores the client's address, and picks the app that serves the path here."""

    def __init__(self, app: Handler, operators: Handler | None = None) -> None:
        self._app = app
        self._operators = operators  # None: they have no address of their own

    def begin(self, exchange: SocketExchange) -> int | None:
        value = exchange.lookup.get(PEER_HEADER, b"")
        exchange.lookup = {name: value for name, value in exchange.lookup.items() if name != PEER_HEADER}
        exchange.headers = [header for header in exchange.headers if header[0].lower() != PEER_HEADER]
        exchange.head = None  # the connection is not the client's
        address, _, port = value.decode("latin-1").rpartition(" ")
        address, _, brought = address.partition(" ")
        exchange.peer, exchange.brought = (address, int(port) if port.isdecimal() else 0), bool(brought)
        exchange.client = address
        return self._of(exchange).begin(exchange)

    def complete(self, exchange: SocketExchange) -> None:
        self._of(exchange).complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        return self._app.refused(exchange, refusal, detail)

    def _of(self, exchange: SocketExchange) -> Handler:
        operators = self._operators
        return self._app if operators is None or not is_operators(exchange.target_path) else operators
