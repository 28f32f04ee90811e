"""A gateway in a process of its own, that tells how long its event loop was held up and how much memory it took.

Held up is told in CPU time: what passes on the loop's thread between two looks that are a millisecond apart. That is
what one callback, or some in a row, took of everybody else; a machine that is busy does not show in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import uvloop

LOOK_S = 0.001
GARBAGE_OBJECTS = 20_000  # as in `penstock.gateway.serve`


class Probed:
    """The process, as its owner sees it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port

    def look(self) -> dict[str, float]:
        """What was seen since the last look: `held_ms`, `late_ms`, `rss_mb` and `peak_mb`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        seen: dict[str, float] = json.loads(self._process.stdout.readline())
        return seen


@contextlib.contextmanager
def probed(settings: Mapping[str, Any], *, name: str = "gateway", python: str = sys.executable) -> Iterator[Probed]:
    """A gateway with these settings, or (`name`) an `engine` that answers all it is sent at once; `python`: whose."""
    process = subprocess.Popen(
        [python, "-m", "tests.hostile.probed", name, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Probed(process, int(process.stdout.readline()))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class _Probe:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cpu_s = time.thread_time()
        self._wall_s = time.monotonic()
        self._held_s = self._late_s = 0.0
        self._tick()

    def _tick(self) -> None:
        cpu_s, wall_s = time.thread_time(), time.monotonic()
        self._held_s = max(self._held_s, cpu_s - self._cpu_s)
        self._late_s = max(self._late_s, wall_s - self._wall_s - LOOK_S)
        self._cpu_s, self._wall_s = cpu_s, wall_s
        self._loop.call_later(LOOK_S, self._tick)

    def tell(self) -> None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        kib = {key: int(status[key].split()[0]) for key in ("VmRSS", "VmHWM")}
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        seen = {
            "held_ms": round(self._held_s * 1000, 2),
            "late_ms": round(self._late_s * 1000, 2),
            "rss_mb": round(kib["VmRSS"] / 1024, 1),
            "peak_mb": round(kib["VmHWM"] / 1024, 1),
        }
        self._held_s = self._late_s = 0.0
        print(json.dumps(seen), flush=True)


async def _serve(name: str, document: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    if name == "engine":
        server = await loop.create_server(_Engine, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
    else:
        from penstock.config.load import from_mapping  # noqa: PLC0415
        from penstock.gateway.serve import Gateway  # noqa: PLC0415 - the engine needs none of it

        gate = Gateway(from_mapping(document))
        await gate.start()
        port = gate.server.port
    gc.collect()
    gc.freeze()  # as `penstock serve` does
    gc.set_threshold(GARBAGE_OBJECTS)
    over = asyncio.Event()
    print(port, flush=True)
    probe = _Probe(loop)

    def listen() -> None:
        for _ in sys.stdin:
            loop.call_soon_threadsafe(probe.tell)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=listen, daemon=True).start()
    await over.wait()


class _Engine(asyncio.Protocol):
    """Answers every request, whatever it is, when its body is here."""

    ANSWER = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
        }
    ).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class
        self._head = b""
        self._left = 0

    def data_received(self, data: bytes) -> None:
        if not self._left:
            self._head += data
            head, blank, rest = self._head.partition(b"\r\n\r\n")
            if not blank:
                return
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._head, self._left, data = b"", int(length or 0), rest
        self._left -= len(data)
        if self._left <= 0:
            self._left = 0
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % len(self.ANSWER) + self.ANSWER)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], json.loads(sys.argv[2])))
