"""Paths that the decider answers itself, asked at a worker: how does the question get there, and the answer back?

Over the decider's own HTTP server on a socket in a folder that only this user may enter: one connection for each
question, bodies and answers piece by piece as they come, so an upload or a stream of events takes no memory here. Who
asked is told in a header that no client can send, for it is taken out here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, cast

import httptools

from penstock.core.values.catalogue import Reason
from penstock.gateway.builtin.engine_paths import ENGINES, VERBS
from penstock.gateway.builtin.paths import Refuse
from penstock.http.server.server import Exchange, Handler, Header, Refusal, SocketExchange

PEER_HEADER: Final = b"x-penstock-peer"
LENGTH_HEADER: Final = b"content-length"
#: The paths that only the decider can answer. `/health` is not among them: a worker says that of itself.
PATHS = (
    *("/", "/ready", "/readyz", "/metrics", "/autoscale", "/version", "/queue"),
    *("/v1/models", "/admin", "/v1/files", "/v1/batches"),
)
_ENGINE_PATHS = (ENGINES, *VERBS)
_PREFIXES = tuple(f"{path}/" for path in ("/v1/models", "/admin", "/autoscale", "/v1/files", "/v1/batches"))
_ALIVE = ("/health", "/healthz", "/livez")
_ONE_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)


class Relayed:
    """Serves these paths at a worker."""

    def __init__(self, place: str, refuse: Refuse, request_id: Callable[[Exchange], bytes]) -> None:
        self._place = place  # of the decider's socket
        self._refuse = refuse
        self._request_id = request_id
        self._open: set[RelayedQuestion] = set()  # as many as clients have connections

    def owns(self, path: str) -> bool:
        """Whether a path is one of these."""
        return path in PATHS or path in _ALIVE or path in _ENGINE_PATHS or path.startswith(_PREFIXES)

    def begin(self, exchange: SocketExchange) -> int | None:
        """Ask as soon as the head is here."""
        if exchange.target_path in _ALIVE and exchange.method in ("GET", "HEAD"):
            return None
        question = RelayedQuestion(exchange, self._failed, self._open.discard)
        self._open.add(question)
        question.ask(partial(_by_unix_socket, self._place))
        return None

    def complete(self, exchange: SocketExchange) -> None:
        """The body is whole."""
        if exchange.target_path in _ALIVE and exchange.method in ("GET", "HEAD"):
            headers = [(b"content-type", b"application/json"), (b"x-request-id", self._request_id(exchange))]
            exchange.respond(200, headers, b'{"status":"ok"}')
        elif isinstance(exchange.note, RelayedQuestion):
            exchange.note.whole()

    def _failed(self, exchange: SocketExchange) -> None:
        if exchange.started:
            exchange.abort()
        else:
            self._refuse(exchange, Reason.OVERLOAD, "The gateway's own paths are not served at this moment.")


class RelayedQuestion(asyncio.Protocol):
    """One request on its way to the decider, and the answer on its way back."""

    def __init__(
        self,
        exchange: SocketExchange,
        failed: Callable[[SocketExchange], None],
        closed: Callable[[RelayedQuestion], None],
    ) -> None:
        self._exchange = exchange
        self._failed = failed
        self._closed = closed
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

    def ask(self, connect: Callable[[asyncio.Protocol], Awaitable[None]]) -> None:
        """Connect and send."""
        self._unsent.append(self._head())
        self._connecting = asyncio.get_running_loop().create_task(self._connect(connect))

    def whole(self) -> None:
        """The client's body is whole."""
        self._whole = True
        if self._chunked:
            self._send(b"0\r\n\r\n")

    async def _connect(self, connect: Callable[[asyncio.Protocol], Awaitable[None]]) -> None:
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
        self._closed(self)

    def _end(self) -> None:
        if not self._over:
            self._failed(self._exchange)

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


async def _by_unix_socket(place: str, protocol: asyncio.Protocol) -> None:
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, place)


class FromWorkers:
    """The decider's side: the app, told who really asks."""

    def __init__(self, app: Handler) -> None:
        self._app = app

    def begin(self, exchange: SocketExchange) -> int | None:
        value = exchange.lookup.pop(PEER_HEADER, b"")
        exchange.headers = [header for header in exchange.headers if header[0].lower() != PEER_HEADER]
        address, _, port = value.decode("latin-1").rpartition(" ")
        address, _, brought = address.partition(" ")
        exchange.peer, exchange.brought = (address, int(port) if port.isdecimal() else 0), bool(brought)
        exchange.client = address
        return self._app.begin(exchange)

    def complete(self, exchange: SocketExchange) -> None:
        self._app.complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, list[Header], bytes]:
        status, headers, body = self._app.refused(exchange, refusal, detail)
        return status, list(headers), body
