"""A load client: the throughput, latency and CPU cost of a server on a port.

Closed loop by default: each connection sends its next request when it has its answer. With a rate, requests leave at
fixed times, on idle connections. After a warm-up the CPU time of a process tree is read, and again at the end; what
came in between is counted. One process, raw protocols: it must cost less than what it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections import deque

import cpu
import uvloop

BODIES = 64  # different conversations; routers that look at prompts find each of them again
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_WORDS = ("the", "water", "flows", "through", "gate", "and", "pipe", "onto", "turbines", "turns", "into", "power")


def bodies(size: int, *, stream: bool) -> list[bytes]:
    """Chat requests of about that many bytes, all with one system prompt."""
    source = random.Random(size)
    made = []
    for serial in range(BODIES):
        request = {
            "model": "bench",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": ""},
            ],
            "max_tokens": 100,
            "temperature": 0.7,
            "stream": stream,
        }
        left = size - len(json.dumps(request))
        words = [str(serial)]
        while left > 0:
            words.append(source.choice(_WORDS))
            left -= len(words[-1]) + 1
        request["messages"][1]["content"] = " ".join(words)
        made.append(json.dumps(request).encode())
    return made


class Load:
    """All connections, and what they counted."""

    def __init__(self, requests: list[bytes], port: int, rate: float) -> None:
        self.requests = requests
        self.port = port
        self.closed_loop = not rate
        self.idle: deque[Connection] = deque()
        self.serial = 0
        self.clear()

    def clear(self) -> None:
        self.done = self.failed = self.events = self.reads = self.skipped = 0
        self.times_s: list[float] = []

    def next(self) -> bytes:
        self.serial += 1
        return self.requests[self.serial % len(self.requests)]

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Connection(self), "127.0.0.1", self.port)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._since_s = 0.0
        self._head = b""
        self._left = -1  # body bytes to come; -1: its end is a last chunk
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._load.closed_loop:
            self.send()
        else:
            self._load.idle.append(self)

    def send(self) -> None:
        self._head = self._tail = b""
        self._since_s = time.perf_counter()
        self._transport.write(self._load.next())  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._since_s:
            self._load.failed += 1
        elif self in self._load.idle:
            self._load.idle.remove(self)
        asyncio.get_running_loop().create_task(self._load.connect())

    def data_received(self, data: bytes) -> None:
        load = self._load
        load.reads += 1
        load.events += data.count(b"data: {")
        if not self._head.endswith(b"\r\n\r\n"):
            whole = self._head + data
            end = whole.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = whole
                return
            self._head, data = whole[:end], whole[end:]
            length = _LENGTH.search(self._head)
            self._left = -1 if length is None else int(length[1])
        if self._left >= 0:
            self._left -= len(data)
            whole_now = self._left <= 0
        else:
            self._tail = (self._tail + data)[-5:]
            whole_now = self._tail == b"0\r\n\r\n"
        if whole_now:
            self._ended()

    def _ended(self) -> None:
        load = self._load
        load.times_s.append(time.perf_counter() - self._since_s)
        self._since_s = 0.0
        if self._head.startswith(b"HTTP/1.1 200"):
            load.done += 1
        else:
            load.failed += 1
        if load.closed_loop:
            self.send()
        else:
            load.idle.append(self)


async def _pace(load: Load, rate: float) -> None:
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while True:
        due_s += 1 / rate
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        if load.idle:
            load.idle.popleft().send()
        else:
            load.skipped += 1


async def run(args: argparse.Namespace) -> dict[str, float]:
    """Warm up, measure, and say what was seen."""
    key = f"authorization: Bearer {args.key}\r\n" if args.key else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n{key}content-type: application/json\r\n"
    head += "accept: */*\r\nuser-agent: bench/1\r\naccept-encoding: identity\r\n"
    requests = [
        f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies(args.size, stream=args.stream)
    ]
    load = Load(requests, args.port, args.rate)
    for _ in range(args.connections):
        await load.connect()
        await asyncio.sleep(args.spread / args.connections)
    pace = asyncio.ensure_future(_pace(load, args.rate)) if args.rate else None
    await asyncio.sleep(args.warm_up)
    load.clear()
    pids = cpu.tree(args.pid) if args.pid else []
    cpu_before_s, own_before_s, began_s = cpu.cpu_s(pids), time.process_time(), time.perf_counter()
    root_before_s = cpu.cpu_s(pids[:1])
    await asyncio.sleep(args.seconds)
    wall_s = time.perf_counter() - began_s
    cpu_s, own_s = cpu.cpu_s(pids) - cpu_before_s, time.process_time() - own_before_s
    if pace is not None:
        pace.cancel()
    times_ms = sorted(time_s * 1000 for time_s in load.times_s) or [0.0]
    return {
        "requests": load.done,
        "failed": load.failed + load.skipped,
        "events": load.events,
        "reads": load.reads,
        "cpu_s": cpu_s,
        "root_cpu_s": cpu.cpu_s(pids[:1]) - root_before_s,
        "client_cpu_s": own_s,
        "wall_s": wall_s,
        "p50_ms": times_ms[len(times_ms) // 2],
        "p99_ms": times_ms[int(len(times_ms) * 0.99)],
        "max_ms": times_ms[-1],
        "rss_bytes": cpu.rss_bytes(pids),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, default=0, help="the root of the process tree whose cost counts")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--size", type=int, default=300, help="bytes of a body")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--rate", type=float, default=0, help="requests a second; 0: closed loop")
    parser.add_argument("--key", default="")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds in which the connections begin one by one")
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    print(json.dumps(uvloop.run(run(parser.parse_args()))), flush=True)
