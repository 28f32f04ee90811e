"""Do hostile bodies slow other callers' streams? 200 streams, with and without 100 bodies of all shapes a second.

    python -m tests.hostile.beside_streams [--kib 64] [--rounds 3] [--python .venv-compiled/bin/python]

The gaps between two pieces of each stream, as its client sees them, in turns without and with the bodies; the engine
sends a piece to every stream each 50 ms, all at once. The bodies come from a process of their own, each on a connection
of its own. Gaps that are the machine's, of the client and the engine, are in both: read the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import uvloop

from tests.hostile.bodies import SHAPES
from tests.hostile.probed import probed
from tests.ports import free_port

ENGINE = Path(__file__).parents[2] / "benchmarks" / "proxies" / "engine.py"
STEP_MS = 50
GOAL = 2.0
BODY_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bodies\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
CONNECTIONS_MAX = 64  # of bodies at a time: what is not answered by then is not sent more of


class Streams:
    """Streams through a port, one after another on each connection; `gaps_s` of all of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.gaps_s: list[float] = []

    async def run(self, delay_s: float) -> None:
        body = b'{"model":"bench","stream":true,"messages":[{"role":"user","content":"hi"}]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: streams\r\ncontent-length: %d\r\n\r\n" % len(body)
        await asyncio.sleep(delay_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while True:
            writer.write(head + body)
            await self._one(reader)

    async def _one(self, reader: asyncio.StreamReader) -> None:
        last_s: float | None = None
        tail = b""
        while True:
            data = await reader.read(65536)
            assert data, "a stream was closed"
            now_s = time.perf_counter()
            if b"data: " in data:
                if last_s is not None:
                    self.gaps_s.append(now_s - last_s)
                last_s = now_s
            tail = (tail + data)[-16:]
            if tail.endswith(b"\r\n0\r\n\r\n"):
                return


async def send(port: int, kib: float, rate: float) -> None:
    """So many bodies a second, of all shapes in turn, until the process is killed; tells what came of them."""
    bodies = [shape(int(kib * 1024) - 64) for shape in SHAPES.values()]
    random.Random(1).shuffle(bodies)
    told: dict[str, int] = {}
    under_way: set[asyncio.Task[None]] = set()

    async def one(body: bytes) -> None:
        status = "none"
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(OSError):
                writer.write(BODY_HEAD % len(body) + body)
                status = (await reader.readline())[9:12].decode() or "none"
                await reader.read()
            writer.close()
        told[status] = told.get(status, 0) + 1

    due_s = time.perf_counter()
    shown_s = due_s
    for body in itertools.cycle(bodies):
        due_s += 1 / rate
        await asyncio.sleep(due_s - time.perf_counter())
        if len(under_way) < CONNECTIONS_MAX:
            task = asyncio.ensure_future(one(body))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        else:
            told["not sent"] = told.get("not sent", 0) + 1
        if time.perf_counter() > shown_s + 1:
            shown_s = time.perf_counter()
            print(json.dumps(told), flush=True)


@contextlib.contextmanager
def sending(port: int, kib: float, rate: float) -> Iterator[list[str]]:
    """While it runs bodies come; what was said of them last is in the list when it ended."""
    command = [sys.executable, "-m", "tests.hostile.beside_streams", "--send", str(port)]
    command += ["--kib", str(kib), "--rate", str(rate)]
    told: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield told
        finally:
            process.kill()
            assert process.stdout is not None
            told.extend(process.stdout.read().splitlines()[-1:])


@contextlib.contextmanager
def engine() -> Iterator[int]:
    """One that steps all its streams at once; its port."""
    port = free_port()
    with subprocess.Popen([sys.executable, str(ENGINE), str(port)]) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/step/{STEP_MS}"):
                    break
                time.sleep(0.1)
            yield port
        finally:
            process.kill()


def percentile_ms(gaps_s: list[float], part: float) -> float:
    """Of these gaps."""
    return sorted(gaps_s)[int(len(gaps_s) * part)] * 1000


async def measure(port: int, args: argparse.Namespace) -> float:
    """Print the gaps round by round; returns the median of the rounds' ratios of the 99th percentiles."""
    streams = Streams(port)
    spread_s = 100 * STEP_MS / 1000
    tasks = [asyncio.ensure_future(streams.run(spread_s * at / args.streams)) for at in range(args.streams)]
    ratios: list[float] = []
    try:
        await asyncio.sleep(spread_s + 1)
        for _ in range(args.rounds):
            p99: list[float] = []
            for with_bodies in (False, True):
                with contextlib.ExitStack() as beside:
                    told: list[str] = []
                    if with_bodies:
                        told = beside.enter_context(sending(port, args.kib, args.rate))
                        await asyncio.sleep(2)
                    streams.gaps_s.clear()
                    await asyncio.sleep(args.seconds)
                    gaps_s = list(streams.gaps_s)
                p99.append(percentile_ms(gaps_s, 0.99))
                seen = f"p50 {percentile_ms(gaps_s, 0.5):.1f}, p99 {p99[-1]:.1f}, longest {max(gaps_s) * 1000:.1f} ms"
                print(
                    f"{'with   ' if with_bodies else 'without'} {len(gaps_s)} gaps: {seen} {''.join(told)}", flush=True
                )
                assert not [task for task in tasks if task.done()], "a stream ended"
            ratios.append(p99[1] / p99[0])
    finally:
        for task in tasks:
            task.cancel()
    return sorted(ratios)[len(ratios) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--kib", type=float, default=64.0, help="of a body")
    parser.add_argument("--rate", type=float, default=100.0, help="bodies a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each half of a round")
    parser.add_argument("--python", default=sys.executable, help="whose gateway: that of a compiled build, too")
    parser.add_argument("--send", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.send:
        uvloop.run(send(args.send, args.kib, args.rate))
        return 0
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(engine())
        settings = {
            "listen": "127.0.0.1:0",
            "endpoints": [{"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["bench"], "slots": 1000}],
            "models": {"alias": {"to": "bench"}, "m": {"to": "bench"}},
        }
        gate = stack.enter_context(probed(settings, python=args.python))
        ratio = uvloop.run(measure(gate.port, args))
    bodies = f"{args.rate:g} bodies of {args.kib:g} KiB a second"
    print(f"p99 of the gaps with {bodies}: {ratio:.2f} of without (goal {GOAL:g})")
    return ratio > GOAL


if __name__ == "__main__":
    raise SystemExit(main())
