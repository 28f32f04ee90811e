"""Detecting a frozen engine: requests that wait longer than 3 s while one of two stands still for 5 s.

python benchmarks/frozen_engine.py [--rate 12] [--seconds 40] [--slots 32] [--whole]

Two simulated engines (20 ms a token, processes of their own) behind a gateway; requests of some 40 tokens come at a
steady rate, streamed or (`--whole`) not. In the middle one engine is stopped for 5 s, with all it has (SIGSTOP), and
goes on; in a second run it only begins nothing that it is sent in these 5 s, and its health, its gauges and its streams
go on. Late is who has no first byte (where it is not streamed: no answer) 3 s after asking, of all and of those who
asked in these 5 s. To compare with another state of the code, run it with that one's `src` as PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator

from rig import free_port

LATE_S = 3.0
STOPPED_S = 5.0
PATIENCE_S = 20.0


@contextlib.asynccontextmanager
async def process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock", *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.send_signal(signal.SIGCONT)
            started.kill()
        await started.wait()


async def url_of(started: asyncio.subprocess.Process) -> str:
    assert started.stdout is not None
    found = re.search(r"http://[\d.]+:\d+", (await started.stdout.readline()).decode())
    assert found is not None
    return found[0]


async def ask(url: str, method: str, path: str, body: object = None, *, whole: bool = True) -> bytes:
    """The first bytes of an answer's body, or all of it."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = b"" if body is None else json.dumps(body).encode()
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    )
    writer.write(data)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first = await reader.read(1)
        return head + first + await reader.read() if whole else head + first
    finally:
        writer.close()


async def request(url: str, asked: list[tuple[float, float]], *, stream: bool, draw: random.Random) -> None:
    began_s = time.monotonic()
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "hello " * draw.randrange(10, 200)}],
        "max_tokens": draw.randrange(10, 70),
        "stream": stream,
    }
    took_s = PATIENCE_S
    with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PATIENCE_S):
            told = await ask(url, "POST", "/v1/chat/completions", body, whole=not stream)
            if b" 200 " in told[:20]:
                took_s = time.monotonic() - began_s
    asked.append((began_s, took_s))


async def run(kind: str, options: argparse.Namespace) -> None:
    port = free_port()
    engine = ("engine", "--port", "0", "--step-ms", "20", "--slots", str(options.slots))
    async with process(*engine) as bad, process(*engine) as good:
        urls = [await url_of(bad), await url_of(good)]
        named = [word for url in urls for word in ("--endpoint", url)]
        async with process("serve", *named, "--slots", str(options.slots), "--listen", f"127.0.0.1:{port}"):
            gateway = f"http://127.0.0.1:{port}"
            while True:
                with contextlib.suppress(OSError):
                    if b'"sim"' in await ask(gateway, "GET", "/v1/models"):
                        break
                await asyncio.sleep(0.1)
            draw, asked = random.Random(1), []
            began_s, at_s = time.monotonic(), options.seconds / 2
            stopped = resumed = False
            async with asyncio.TaskGroup() as group:
                due_s = 0.0
                while due_s < options.seconds:
                    due_s += draw.expovariate(options.rate)
                    await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
                    if not stopped and due_s >= at_s:
                        stopped = True
                        if kind == "stopped":
                            os.kill(bad.pid, signal.SIGSTOP)
                        else:
                            await ask(urls[0], "POST", "/sim/fault", {"kind": "hang"})
                    if not resumed and due_s >= at_s + STOPPED_S:
                        resumed = True
                        if kind == "stopped":
                            os.kill(bad.pid, signal.SIGCONT)
                        else:
                            await ask(urls[0], "POST", "/sim/fault", {"kind": "none"})
                    group.create_task(request(gateway, asked, stream=not options.whole, draw=draw))
            metrics = (await ask(gateway, "GET", "/metrics")).decode()
    taken = re.search(r'penstock_requeues_total\{reason="stuck"\} ([\d.]+)', metrics)
    low_s, high_s = began_s + at_s, began_s + at_s + STOPPED_S
    during = [took_s for asked_s, took_s in asked if low_s <= asked_s < high_s]
    late = [took_s for _, took_s in asked if took_s > LATE_S]
    late_during = [took_s for took_s in during if took_s > LATE_S]
    print(
        f"{kind:8} {len(asked)} requests: {len(late) / len(asked):.1%} later than 3 s,"
        f" {len(late_during) / len(during):.1%} of those in the 5 s;"
        f" longest {max(took_s for _, took_s in asked):.1f} s; taken back {float(taken[1]) if taken else 0:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--whole", action="store_true", help="answers that do not stream")
    options = parser.parse_args()
    for kind in ("stopped", "wedged"):
        asyncio.run(run(kind, options))


if __name__ == "__main__":
    main()
