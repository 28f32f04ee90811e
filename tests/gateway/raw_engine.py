"""A server that does on its sockets exactly what a script says, and a sink that remembers.

Scripts are coroutines over one connection; a connection is closed when its script returns. Leaving the `async
with` proves that no connection outlived its test.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest
import uvloop

from penstock.http.client.pool import Headers, Upstream, UpstreamError, UpstreamErrorKind
from tests.patience import WAIT_S

if TYPE_CHECKING:
    import ssl

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's loop and on uvloop; whatever reaches a loop's exception handler fails it."""

    @functools.wraps(test)
    def run(*, loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await asyncio.wait_for(test(**fixtures), 2 * WAIT_S)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(watched())
        assert complaints == []

    parameters = list(inspect.signature(test).parameters.values())
    factory = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters, factory])  # type: ignore[attr-defined]
    both: Callable[[Callable[..., None]], Callable[..., None]] = pytest.mark.parametrize(
        "loop_factory",
        [
            pytest.param(asyncio.new_event_loop, id="asyncio"),
            pytest.param(uvloop.new_event_loop, id="uvloop"),
        ],
    )
    return both(run)


class Peer:
    """One connection, as the engine sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests: list[bytes] = []
        self.is_gone = asyncio.Event()

    async def request(self) -> bytes:
        """Read one whole request: its head, and as much body as the head tells."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name.lower() == b"content-length":
                length = int(value)
        self.requests.append(head + await self.reader.readexactly(length))
        return self.requests[-1]

    async def send(self, *pieces: bytes) -> None:
        """Write pieces, each in its own segment as far as the kernel allows."""
        for piece in pieces:
            if self.writer.is_closing():  # to uvloop a write is a mistake of its caller then
                raise ConnectionResetError("whoever asked is gone")
            self.writer.write(piece)
            await self.writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0)

    async def gone(self) -> None:
        """Wait until the gateway closed its end."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.is_gone.set()

    def reset(self) -> None:
        """Close with RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class RawEngine:
    """Plays a script on each connection, and keeps what it saw."""

    def __init__(
        self, script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", socket: str = ""
    ) -> None:
        self._script = script
        self._tls = tls
        self._host = host
        self._socket = socket  # the path of a unix socket, instead of a port
        self._tasks: list[asyncio.Task[None]] = []
        self.peers: list[Peer] = []
        self.failures: list[BaseException] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._socket:
            self._server = await asyncio.start_unix_server(self._serve, self._socket)
            self.url = f"unix:{self._socket}"
            return self
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(self, kind: object, *_details: object) -> None:
        for _turn in range(10):  # what the kernel accepted gets its script, and is seen to close
            await asyncio.sleep(0)
        self._server.close()
        if kind is None and self._tasks:
            _, hanging = await asyncio.wait(self._tasks, timeout=WAIT_S)
            assert not hanging, "a connection was left open"
            assert self.failures == [], self.failures
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            await self._script(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            peer.is_gone.set()
            writer.transport.abort() if self._tls else writer.close()


class Recorder:
    """A sink that remembers, and insists on the order of callbacks."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self.error: UpstreamError | None = None
        self.is_over = False
        self._over = asyncio.Event()
        self._data = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def kind(self) -> UpstreamErrorKind | None:
        return self.error.kind if self.error else None

    def on_response(self, status: int, headers: Headers, /) -> None:
        assert not self.status
        assert not self.is_over
        self.status, self.headers = status, headers

    def on_data(self, data: bytes, /) -> None:
        assert self.status
        assert not self.is_over
        assert data
        self.pieces.append(data)
        self._data.set()

    def on_end(self) -> None:
        assert self.status
        self._end()

    def on_error(self, error: UpstreamError, /) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        assert not self.is_over
        self.is_over = True
        self._over.set()

    async def over(self) -> Self:
        """Wait for the one end every call has."""
        await asyncio.wait_for(self._over.wait(), WAIT_S)
        return self

    async def data(self) -> bytes:
        """Wait for the next piece of payload."""
        await asyncio.wait_for(self._data.wait(), WAIT_S)
        self._data.clear()
        return self.pieces[-1]


async def until(is_so: Callable[[], object]) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0)


@contextmanager
def upstream_to(engine: RawEngine | str, **settings: Any) -> Iterator[Upstream]:
    """An `Upstream` that is closed, with nothing left open, at the end."""
    upstream = Upstream(engine if isinstance(engine, str) else engine.url, **settings)
    try:
        yield upstream
    finally:
        upstream.close()
        now = upstream.statistics()
        assert (now.active, now.idle) == (0, 0)


@asynccontextmanager
async def connected(
    script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[tuple[RawEngine, Upstream]]:
    """An engine that plays a script on each connection, and an `Upstream` to it."""
    async with RawEngine(script, tls=tls, host=host) as engine:
        with upstream_to(engine, **settings) as upstream:
            yield engine, upstream


async def ask(
    upstream: Upstream, method: str = "GET", target: str = "/", headers: Headers | None = None, body: bytes = b""
) -> Recorder:
    """Send a request and wait for its end."""
    recorder = Recorder()
    upstream.send(method, target, headers or [], body, recorder)
    return await recorder.over()


def answering(*pieces: bytes) -> Script:
    """Answer every request on a connection with the same bytes."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces)

    return script


def answering_once(*pieces: bytes) -> Script:
    """Answer one request with these bytes, and close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)

    return script


def answering_when(is_so: Callable[[], Awaitable[object]], answer: bytes) -> Script:
    """Answer every POST with the same bytes once `is_so` has returned; nothing else is there."""

    async def script(peer: Peer) -> None:
        while True:
            if (await peer.request()).startswith(b"POST "):
                await is_so()
                await peer.send(answer)
            else:
                await peer.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    return script
