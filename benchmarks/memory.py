"""The memory of a waiting request, and leaks after a million of them.

Waiting: the gateway's resident memory before and with `--waiting` requests in its queue, each on a connection of its
own, beside their bodies; and the core's part of it, measured in a process that has nothing but the core. Served: the
same memory after 10 %, 20 % … of `--requests` requests, from thousands of tenants, users and request ids; flat means
that nothing is kept of a request that is over. `--json` prints the figures for machines.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import cast

import uvloop
from rig import Gateway, free_port, gateway, machine, started

from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.request import Request
from penstock.core.values.settings import BandSettings, EndpointSpec, QueueBounds

BODY_BYTES = 1000
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 93\r\n\r\n"
ANSWER += b'{"id":"c","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"total_tokens":18}}'
CORE_REQUESTS = 20_000


def body() -> bytes:
    text = {"model": "m", "messages": [{"role": "user", "content": ""}], "max_tokens": 20}
    text["messages"][0]["content"] = "x" * (BODY_BYTES - len(json.dumps(text)))  # type: ignore[index]
    return json.dumps(text).encode()


def request(number: int) -> bytes:
    """As an SDK sends it: some dozen headers."""
    data = body()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\naccept: application/json\r\n"
        b"accept-encoding: gzip, deflate\r\nuser-agent: OpenAI/Python 2.54.0\r\nx-stainless-lang: python\r\n"
        b"x-stainless-package-version: 2.54.0\r\nx-stainless-os: Linux\r\nx-stainless-arch: x64\r\n"
        b"x-stainless-runtime: CPython\r\nx-stainless-read-timeout: 600\r\nauthorization: Bearer none\r\n"
        b"content-type: application/json\r\nx-tenant-id: tenant-%d\r\nx-user-id: user-%d\r\n"
        b"x-request-id: memory-%d\r\ncontent-length: %d\r\n\r\n%b"
        % (number % 3000, number % 7000, number, len(data), data)
    )


# --- the engine --------------------------------------------------------------------------------------------------


class EngineConnection(asyncio.Protocol):
    """Answers each POST whose head and body are here; or, if it is mute, none."""

    def __init__(self, *, mute: bool) -> None:
        self._mute = mute

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        elif data.endswith(b"}") and not self._mute:  # the end of a body, which is one read or two
            self._transport.write(ANSWER)


async def serve_engine(port: int, *, mute: bool) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineConnection(mute=mute), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


# --- clients -----------------------------------------------------------------------------------------------------


class Waiter(asyncio.Protocol):
    """Sends one request and waits."""

    def __init__(self, number: int) -> None:
        self._number = number

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(request(self._number))


class Asker(asyncio.Protocol):
    """Sends one request after another on one connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        if data.endswith(ANSWER[-20:]):
            self._load.served += 1
            self._next()
        elif not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"not served: {data[:300]!r}")

    def _next(self) -> None:
        if (number := next(self._load.numbers, None)) is not None:
            self._transport.write(request(number))
        elif self._load.served == self._load.count:
            self._load.over.set()


class Load:
    """Many requests over a few connections."""

    def __init__(self, first: int, count: int) -> None:
        self.numbers = iter(range(first, first + count))
        self.count = count
        self.served = 0
        self.over = asyncio.Event()


async def serve_many(port: int, first: int, count: int, connections: int) -> None:
    load = Load(first, count)
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(functools.partial(Asker, load), "127.0.0.1", port) for _ in range(connections)]
    await load.over.wait()
    for transport, _ in made:
        transport.close()


async def wait_in_queue(penstock: Gateway, count: int) -> tuple[int, int]:
    """Resident memory without and with so many waiting requests."""
    loop = asyncio.get_running_loop()
    before = penstock.rss_bytes()
    made = []
    for number in range(count + 1):  # one has the only slot
        made.append(await loop.create_connection(functools.partial(Waiter, number), "127.0.0.1", penstock.port))
        if number % 200 == 0:
            await asyncio.sleep(0)
    while True:
        waiting = await asyncio.to_thread(penstock.metric, "penstock_queued_requests")
        if waiting >= count:
            break
        await asyncio.sleep(0.2)
    after = penstock.rss_bytes()
    for transport, _ in made:
        transport.abort()
    return before, after


# --- the parts ---------------------------------------------------------------------------------------------------


def waiting(folder: Path, count: int) -> dict[str, float]:
    port = free_port()
    endpoint = {"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["m"], "slots": 1}
    settings = {
        "endpoints": [endpoint],
        "queue": {"max_requests": 2 * count, "max_wait": "1h"},
        "observe": {"interval": "60s", "fast_interval": "60s"},
    }
    with started([sys.executable, __file__, "--engine", str(port), "--mute"]), gateway(folder, settings) as penstock:
        uvloop.run(wait_in_queue(penstock, 50))  # what is loaded and allocated once
        while penstock.metric("penstock_queued_requests"):
            time.sleep(0.05)
        before, after = uvloop.run(wait_in_queue(penstock, count))
    each = (after - before) / count
    return {
        "waiting": count,
        "rss_before_mib": round(before / 2**20, 1),
        "rss_with_mib": round(after / 2**20, 1),
        "bytes_each": round(each),
        "bytes_each_beside_body": round(each - BODY_BYTES),
    }


def core_alone() -> float:
    """Bytes that the scheduler itself holds of a waiting request, `Request` included."""

    def own_rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def arrive(number: int) -> None:
        tenant = f"tenant-{number % 3000}"
        scheduler.arrived(
            Request(id=f"memory-{number}", model="m", band=1, tenant=tenant, flow=(tenant,), body_bytes=BODY_BYTES),
            now=number * 1e-4,
        )

    bands = (BandSettings("interactive"), BandSettings("standard"), BandSettings("batch"))
    bounds = QueueBounds(requests_max=10**6)
    scheduler = Scheduler(SchedulerSettings(bands=bands, bounds=bounds, wait_s_max=1e6), random=Random(1))
    scheduler.endpoint_added(EndpointSpec("e", 1, frozenset({"m"})), now=0.0)
    for number in range(6000):  # flows and what is allocated once
        arrive(number)
    before = own_rss()
    for number in range(6000, 6000 + CORE_REQUESTS):
        arrive(number)
    return (own_rss() - before) / CORE_REQUESTS


def served(folder: Path, count: int, connections: int) -> dict[str, float]:
    port = free_port()
    endpoint = {"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["m"], "slots": connections // 2}
    steps: list[float] = []
    began_s = time.monotonic()
    with started([sys.executable, __file__, "--engine", str(port)]), gateway(folder, {"endpoints": [endpoint]}) as own:
        for step in range(10):
            uvloop.run(serve_many(own.port, step * count // 10, count // 10, connections))
            steps.append(round(own.rss_bytes() / 2**20, 1))
            print(f"after {(step + 1) * count // 10:,}: {steps[-1]} MiB", file=sys.stderr)
        cpu_s = own.cpu_s()
    return {
        "requests": count,
        "rss_mib_after_a_tenth": steps[0],
        "rss_mib_after_all": steps[-1],
        "growth": round(steps[-1] / steps[0] - 1, 4),
        "requests_per_s": round(count / (time.monotonic() - began_s)),
        "cpu_us_per_request": round(cpu_s * 1e6 / count, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--waiting", type=int, default=8000, help="0: leave this part out")
    parser.add_argument("--requests", type=int, default=1_000_000, help="0: leave this part out")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mute", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--core", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        uvloop.run(serve_engine(args.engine, mute=args.mute))
        return 0
    if args.core:
        print(core_alone())
        return 0
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if args.waiting:
            figures |= waiting(Path(folder), args.waiting)
            own = subprocess.run([sys.executable, __file__, "--core"], stdout=subprocess.PIPE, check=True)
            figures["bytes_each_in_core"] = round(float(own.stdout))
        if args.requests:
            figures |= served(Path(folder), args.requests, args.connections)
    if args.json:
        print(json.dumps(figures))
    else:
        print(machine())
        for name, value in figures.items():
            print(f"{name:>24}  {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
