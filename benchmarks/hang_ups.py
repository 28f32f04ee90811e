"""Do limits hold through hang-ups: how many requests does an engine ever see at once?

python benchmarks/hang_ups.py [--hang-ups 2000] [--limit 4] [--clients 16] [--sees token]

A counting engine streams a token every 5 ms until its client is gone, which it sees at once, or (`--sees token`, like
engines that check once in a step) with its next token. Clients hang up after a few tokens, one after another, at a
proxy with a limit of `--limit` concurrent requests. The engine reports its maximum, and the time above the limit.
HAProxy is tested if installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rig import free_port

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
TOKEN_S = 0.005
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
HAPROXY = """
defaults
  mode http
  option abortonclose
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout queue 60s
frontend in
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  server engine {engine} maxconn {limit}
"""


class Counter:
    """What an engine sees of its own load."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.now = self.most = self.requests = self.times_over = 0
        self.over_s = 0.0
        self._since_s = 0.0

    def add(self, one: int) -> None:
        was_over = self.now > self.limit
        self.now += one
        self.requests += one > 0
        self.most = max(self.most, self.now)
        if self.now > self.limit and not was_over:
            self.times_over += 1
            self._since_s = time.monotonic()
        elif was_over and self.now <= self.limit:
            self.over_s += time.monotonic() - self._since_s


async def engine(limit: int, sees: str) -> None:
    """An engine: prints its address, then serves until it is killed."""
    counter = Counter(limit)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                if length is not None:
                    await reader.readexactly(int(length[1]))
                if head.startswith(b"POST"):
                    counter.add(1)
                    try:
                        await stream(reader, writer)
                    finally:
                        counter.add(-1)
                    return
                told = {"most": counter.most, "times_over": counter.times_over, "over_s": counter.over_s}
                body = MODELS
                if head.startswith(b"GET /counts"):
                    body = json.dumps({**told, "requests": counter.requests}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        gone = asyncio.ensure_future(reader.read(1))  # ends when the client is gone
        try:
            while not gone.done():
                writer.write(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
                if sees == "token":
                    await asyncio.sleep(TOKEN_S)
                else:
                    await asyncio.wait([gone], timeout=TOKEN_S)
        finally:
            gone.cancel()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.asynccontextmanager
async def process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


@contextlib.asynccontextmanager
async def penstock(url: str, limit: int) -> AsyncIterator[int]:
    port = free_port()
    command = (sys.executable, "-m", "penstock", "serve", "--endpoint", url, "--slots", str(limit))
    async with process(*command, "--listen", f"127.0.0.1:{port}"):
        yield port


@contextlib.asynccontextmanager
async def haproxy(url: str, limit: int) -> AsyncIterator[int]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "haproxy.cfg")
        text = HAPROXY.format(port=port, engine=url.removeprefix("http://"), limit=limit)
        await asyncio.to_thread(settings.write_text, text)
        async with process("haproxy", "-db", "-q", "-f", str(settings)):
            yield port


async def hang_up(port: int, body: bytes, draw: random.Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    async with asyncio.timeout(60.0):
        await reader.readuntil(b"data: ")
    await asyncio.sleep(draw.random() * 0.02)
    writer.close()


async def ready(port: int) -> None:
    async with asyncio.timeout(30.0):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                told = await reader.read(4096)
                writer.close()
                if b'"m"' in told:
                    return
            await asyncio.sleep(0.05)


async def measured(name: str, hang_ups: int, clients: int, limit: int, sees: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    async with process(sys.executable, __file__, "--engine", "--limit", str(limit), "--sees", sees) as started:
        assert started.stdout is not None
        url = (await started.stdout.readline()).decode().strip()
        proxy = penstock if name == "penstock" else haproxy
        async with proxy(url, limit) as port:
            await ready(port)
            left = iter(range(hang_ups))
            draw = random.Random(1)
            began_s = time.monotonic()

            async def one_after_another() -> None:
                for _ in left:
                    await hang_up(port, body, draw)

            await asyncio.gather(*(one_after_another() for _ in range(clients)))
            took_s = time.monotonic() - began_s
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /counts HTTP/1.1\r\n\r\n")
        told = json.loads((await reader.read(4096)).partition(b"\r\n\r\n")[2])
        writer.close()
    print(
        f"{name:9} limit {limit}, {told['requests']} requests: at most {told['most']} at once, over the limit"
        f" {told['times_over']} times, {told['over_s'] * 1000:.1f} ms in all; {hang_ups / took_s:.0f} hang-ups/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hang-ups", type=int, default=2000)
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--only", choices=("penstock", "haproxy"))
    parser.add_argument("--sees", choices=("at-once", "token"), default="at-once")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        asyncio.run(engine(options.limit, options.sees))
        return
    for name in ("penstock", "haproxy"):
        if options.only in (None, name):
            if name == "haproxy" and shutil.which("haproxy") is None:
                print("haproxy   is not installed")
            else:
                asyncio.run(measured(name, options.hang_ups, options.clients, options.limit, options.sees))


if __name__ == "__main__":
    main()
