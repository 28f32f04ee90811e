"""A raw hop: the least that a proxy in Python does. Bytes go from a client to an engine and back, on kept connections.

It reads no request and no answer but for where they end (a content-length, or the last chunk), takes the engines by
turns, and keeps their idle connections. Any cost of a Python proxy beyond this is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import deque

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Message:
    """Finds where an HTTP message ends."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._head = b""
        self._left: int | None = None
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        """Whether the message is whole with these bytes."""
        if not self._head.endswith(b"\r\n\r\n"):
            whole = self._head + data
            end = whole.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = whole
                return False
            self._head, data = whole[:end], whole[end:]
            length = _LENGTH.search(self._head)
            self._left = int(length[1]) if length else 0 if self._head.startswith((b"GET", b"POST")) else None
        if self._left is None:
            self._tail = (self._tail + data)[-5:]
            return self._tail == b"0\r\n\r\n"
        self._left -= len(data)
        return self._left <= 0


class Engine(asyncio.Protocol):
    """A connection to an engine."""

    def __init__(self, pool: deque[Engine]) -> None:
        self._pool = pool
        self._answer = Message()
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        client = self.client
        assert client is not None
        whole = self._answer.feed(data)
        if whole:
            self._answer.clear()
            self.client = None
            client.engine = None
            self._pool.append(self)
        client.transport.write(data)


class Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, ports: list[int], pools: list[deque[Engine]]) -> None:
        self._ports, self._pools = ports, pools
        self._request = Message()
        self._turn = 0
        self._pieces: list[bytes] = []
        self.engine: Engine | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self.engine is not None:
            self.engine.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if not self._request.feed(data):
            return
        self._request.clear()
        request, self._pieces = b"".join(self._pieces), []
        self._turn += 1
        pool = self._pools[self._turn % len(self._pools)]
        if pool:
            self._send(pool.pop(), request)
        else:
            asyncio.get_running_loop().create_task(self._connect(self._turn % len(self._pools), request))

    async def _connect(self, index: int, request: bytes) -> None:
        pool = self._pools[index]
        _, engine = await asyncio.get_running_loop().create_connection(
            lambda: Engine(pool), "127.0.0.1", self._ports[index]
        )
        self._send(engine, request)

    def _send(self, engine: Engine, request: bytes) -> None:
        self.engine, engine.client = engine, self
        engine.transport.write(request)


async def run(port: int, engines: list[int]) -> None:
    pools: list[deque[Engine]] = [deque() for _ in engines]
    server = await asyncio.get_running_loop().create_server(
        lambda: Client(engines, pools), "127.0.0.1", port, backlog=2048
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engines", type=int, nargs="+", required=True)
    args = parser.parse_args()
    uvloop.run(run(args.port, args.engines))
