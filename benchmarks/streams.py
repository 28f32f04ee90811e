"""Does every byte of many streams arrive, in order, at a high rate? The gateway on one core, checksums at both ends.

A pre-rendered engine, the gateway and the client are processes of their own. The engine writes one event per stream
and tick, so that together they offer `--rate` events a second; no two streams carry the same bytes. The client keeps
what comes and, when all is over, takes the chunked coding apart and compares SHA-256 with what the engine must have
sent. It asks for usage itself, so nothing is injected. `--json` prints the figures for machines.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop
from rig import free_port, gateway, machine, started

EVENTS_RENDERED = 4096
ENGINE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = (
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n',
    b"data: [DONE]\n\n",
)


@functools.cache
def rendered() -> list[bytes]:
    """The events that streams are cut from; each differs from all others in its number."""
    return [
        b'data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
        b'"delta":{"content":" token %06d"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n' % number
        for number in range(EVENTS_RENDERED)
    ]


def sent(stream: int, events: int) -> Iterator[bytes]:
    """What the engine sends in one stream: its number, events that start elsewhere for each stream, the end."""
    yield b": stream %d\n\n" % stream
    own = rendered()
    for event in range(events):
        yield own[(stream * 577 + event * 7) % EVENTS_RENDERED]
    yield from LAST


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# --- the engine --------------------------------------------------------------------------------------------------


class EngineConnection(asyncio.Protocol):
    """Answers each POST by a stream; a GET by 404."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._engine.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, blank, body = self._data.partition(b"\r\n\r\n")
        if not blank:
            return
        if head.startswith(b"GET"):
            self._data = b""
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        if len(body) >= length:
            self._data = b""
            self._engine.begin(self, json.loads(body)["messages"][0]["content"])


class Engine:
    """Once all streams are there, writes one chunk per stream and tick; it catches up when it is late."""

    def __init__(self, events: int, tick_s: float, streams_expected: int) -> None:
        self._events = events
        self._tick_s = tick_s
        self._expected = streams_expected
        self._running: asyncio.Task[None] | None = None
        self.streams: dict[EngineConnection, Iterator[bytes]] = {}

    def begin(self, connection: EngineConnection, name: str) -> None:
        connection.transport.write(ENGINE_HEAD)
        self.streams[connection] = map(chunk, sent(int(name), self._events))
        if len(self.streams) == self._expected:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while self.streams:
            for connection, chunks in tuple(self.streams.items()):
                data = next(chunks, None)
                if data is None:
                    connection.transport.write(b"0\r\n\r\n")
                    del self.streams[connection]
                else:
                    connection.transport.write(data)
            next_s += self._tick_s
            await asyncio.sleep(max(0.0, next_s - loop.time()))


async def serve_engine(port: int, events: int, tick_s: float, streams: int) -> None:
    engine = Engine(events, tick_s, streams)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineConnection(engine), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


# --- the client --------------------------------------------------------------------------------------------------


class ClientConnection(asyncio.Protocol):
    """Sends one request and keeps all that comes."""

    def __init__(self, stream: int) -> None:
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": str(stream)}],
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.pieces: list[bytes] = []
        self.over = asyncio.get_running_loop().create_future()
        self.data_received = self.pieces.append  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.over.set_result(None)


async def ask(port: int, streams: int) -> list[ClientConnection]:
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(functools.partial(ClientConnection, n), "127.0.0.1", port))[1]
        for n in range(streams)
    ]
    await asyncio.gather(*(connection.over for connection in made))
    return made


def body_of(raw: bytes) -> bytes:
    """The payload of a chunked answer; raises ValueError where it is not whole."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        raise ValueError(f"not a stream: {head[:200]!r}")
    at, pieces = 0, []
    while True:
        line_end = rest.index(b"\r\n", at)
        size = int(rest[at:line_end], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(rest[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


def wrong(connections: list[ClientConnection], events: int) -> list[int]:
    """The streams whose bytes are not those that the engine sent."""
    found = []
    for stream, connection in enumerate(connections):
        expected = hashlib.sha256(b"".join(sent(stream, events))).digest()
        try:
            came = hashlib.sha256(body_of(b"".join(connection.pieces))).digest()
        except ValueError:
            came = b""
        if came != expected:
            found.append(stream)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--rate", type=int, default=50_000, help="events a second, of all streams together")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    per_stream_s = args.rate / args.streams
    events = max(1, round(per_stream_s * args.seconds))
    if args.engine:
        uvloop.run(serve_engine(args.engine, events, 1 / per_stream_s, args.streams))
        return 0
    port = free_port()
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", str(port)]
    with tempfile.TemporaryDirectory() as folder, started(command):
        endpoint = {"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["m"], "slots": args.streams}
        with gateway(Path(folder), {"endpoints": [endpoint]}) as penstock:
            cpu_s, began_s = penstock.cpu_s(), time.monotonic()
            connections = uvloop.run(ask(penstock.port, args.streams))
            took_s, cpu_s = time.monotonic() - began_s, penstock.cpu_s() - cpu_s
            rss, completed = penstock.rss_bytes(), penstock.metric("penstock_requests_total", 'outcome="completed"')
    count = args.streams * (events + 1 + len(LAST))
    bad = wrong(connections, events)
    figures = {
        "streams": args.streams,
        "events": count,
        "bytes": sum(len(b"".join(connection.pieces)) for connection in connections),
        "wrong_streams": len(bad),
        "completed": completed,
        "offered_s": args.seconds,
        "took_s": round(took_s, 2),
        "events_per_s": round(count / took_s),
        "cpu_s": round(cpu_s, 2),
        "cpu_us_per_event": round(cpu_s * 1e6 / count, 2),
        "cpu_share": round(cpu_s / took_s, 2),
        "rss_mib": round(rss / 2**20, 1),
    }
    if args.json:
        print(json.dumps(figures))
    else:
        print(machine())
        for name, value in figures.items():
            print(f"{name:>18}  {value:,}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
