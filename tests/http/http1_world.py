"""A served loop for the tests of the HTTP/1.1 server: real sockets, both event loops, and nothing left behind.

Each test runs on asyncio's loop and on uvloop. When it is over, every connection must have closed by itself, and
nothing may have been logged or told to the loop's exception handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl as tls
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
import uvloop

from penstock.http.server.server import Header, HttpServer, Refusal, ServerLimits, SocketExchange
from tests.patience import WAIT_S

T = TypeVar("T")


STATUS = {
    Refusal.BAD_REQUEST: 400,
    Refusal.CLIENT_TIMEOUT: 408,
    Refusal.REQUEST_TOO_LARGE: 413,
    Refusal.EXPECTATION_FAILED: 417,
    Refusal.WEBSOCKET_UNSUPPORTED: 426,
    Refusal.HEADER_TOO_LARGE: 431,
    Refusal.TOO_MANY_CONNECTIONS: 503,
    Refusal.TOO_MANY_BYTES: 429,
}


class Recorder:
    """A handler that notes what happens, and answers `200` with the request's line and body."""

    def __init__(self) -> None:
        self.begun: list[SocketExchange] = []
        self.completed: list[SocketExchange] = []
        self.refusals: list[tuple[Refusal, str]] = []
        self.gone: list[SocketExchange] = []
        self.on_begin: Callable[[SocketExchange], int | None] = lambda exchange: None
        self.on_complete: Callable[[SocketExchange], None] = answer

    def begin(self, exchange: SocketExchange) -> int | None:
        self.begun.append(exchange)
        exchange.on_disconnect = lambda: self.gone.append(exchange)
        return self.on_begin(exchange)

    def complete(self, exchange: SocketExchange) -> None:
        self.completed.append(exchange)
        self.on_complete(exchange)

    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        self.refusals.append((refusal, detail))
        return STATUS[refusal], [(b"content-type", b"text/plain")], refusal.value.encode()


def answer(exchange: SocketExchange) -> None:
    line = f"{exchange.method} {exchange.target_path} {exchange.query} ".encode()
    exchange.respond(200, [(b"content-type", b"text/plain")], line + exchange.body)


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def address(self) -> tuple[str, int]:
        """What the server sees as its peer."""
        address: tuple[str, int] = self.writer.get_extra_info("sockname")
        return address

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """One response, its body read as its head says."""
        head = (await self._within(self.reader.readuntil(b"\r\n\r\n"))).decode()
        lines = head.split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        status = int(lines[0].split(" ")[1])
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while (size := int(await self._within(self.reader.readuntil(b"\r\n")), 16)) > 0:
                body += (await self._within(self.reader.readexactly(size + 2)))[:-2]
            assert await self._within(self.reader.readexactly(2)) == b"\r\n"
        elif status >= 200:
            body = await self._within(self.reader.readexactly(int(headers.get("content-length", "0"))))
        return status, headers, body

    async def rest(self) -> bytes:
        """All until the server closes; a reset counts as a close."""
        data = b""
        try:
            while piece := await self._within(self.reader.read(65536)):
                data += piece
        except ConnectionError:
            pass
        return data

    async def _within(self, awaitable: Awaitable[T]) -> T:
        return await asyncio.wait_for(awaitable, WAIT_S)

    def close(self) -> None:
        self.writer.close()


class World:
    """A server, its handler, and the clients a test opens."""

    def __init__(self) -> None:
        self.handler = Recorder()
        self.server = HttpServer(self.handler)
        self.clients: list[Client] = []

    async def serve(self, *, ssl: tls.SSLContext | None = None, **limits: Any) -> HttpServer:
        self.server = HttpServer(self.handler, ServerLimits(**limits))
        await self.server.start("127.0.0.1", 0, ssl=ssl)
        return self.server

    async def client(self, data: bytes = b"", **options: Any) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, **options))
        self.clients.append(client)
        client.send(data)
        return client

    async def ask(self, data: bytes, *, eof: bool = False) -> bytes:
        """Send, and read until the server closes."""
        client = await self.client(data)
        if eof:
            client.writer.write_eof()
        answered = await client.rest()
        client.close()
        return answered

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)  # a look, not a guess at a duration

    async def leave(self) -> None:
        for client in self.clients:
            client.close()
        await self.until(lambda: self.server.connections == 0)
        await self.server.wait_closed(0.1)
        for client in self.clients:
            with contextlib.suppress(OSError):
                await asyncio.wait_for(client.writer.wait_closed(), WAIT_S)


def on_both_loops(test: Callable[[World], Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a world of its own, on each loop, and check what it leaves behind."""

    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture) -> None:
        told: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
            world = World()
            try:
                await test(world)
            finally:
                await world.leave()

        with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())
        assert told == []
        assert caplog.records == []

    run.__name__ = run.__qualname__ = test.__name__
    run.__module__ = test.__module__
    return pytest.mark.parametrize(
        "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )(run)


def request(
    target: str = "/v1/x", body: bytes = b"", *, method: str = "POST", extra: bytes = b"", version: str = "1.1"
) -> bytes:
    head = f"{method} {target} HTTP/{version}\r\nHost: penstock\r\n".encode()
    if method == "POST":
        head += b"Content-Length: %d\r\n" % len(body)
    return head + extra + b"\r\n" + body


def chunked(*pieces: bytes, target: str = "/v1/x") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: penstock\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
