"""The cost of watching engines: 100 endpoints, each with a real vLLM's page of 58 KB, read once a second.

The gateway runs as it would, with probes and model lists; the pages come from another process and change each time:
a counter of the engine or, with `--idle`, only the process's own CPU seconds, and nothing runs or waits. `--json` for
programs. The goal is 15 % of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import re
import time
from pathlib import Path

import uvloop

from penstock.config.load import from_mapping
from penstock.gateway.serve import Gateway

PAGE = Path(__file__).parents[1] / "tests" / "engines" / "golden" / "vllm-0.32.real.prom"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","max_model_len":8192}]}'
BUSY = b'vllm:generation_tokens_total{engine="0",model_name="tiny-llama"} '
IDLE = b"\nprocess_cpu_seconds_total "
WARM_UP_S = 3.0


class Engine(asyncio.Protocol):
    """Answers every GET; one number of the page moves with each."""

    asked = 0
    head = rest = b""  # of the page, before that number and after it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for request in data.split(b"\r\n\r\n")[:-1]:
            path = request.split(b" ", 2)[1]
            status, body = b"200 OK", b""
            if path == b"/metrics":
                Engine.asked += 1
                body = self.head + b"%d" % Engine.asked + self.rest
            elif path == b"/v1/models":
                body = MODELS
            elif path != b"/health":
                status = b"404 Not Found"
            self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))  # type: ignore[attr-defined]


def engines(count: int, moves: bytes, pipe: multiprocessing.connection.Connection) -> None:
    """A process with so many of them, until it is told to end."""
    page = PAGE.read_bytes()
    if moves == IDLE:
        page = re.sub(rb"(?m)^(vllm:num_requests_(?:running|waiting)\{[^}]*\}) .*$", rb"\1 0.0", page)
    at = page.index(moves) + len(moves)
    Engine.head, Engine.rest = page[:at], page[page.index(b"\n", at) :]

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Engine, "127.0.0.1", 0) for _ in range(count)]
        pipe.send([server.sockets[0].getsockname()[1] for server in servers])
        while await loop.run_in_executor(None, pipe.recv):
            pipe.send(Engine.asked)

    uvloop.run(serve())


async def measure(
    ports: list[int], pipe: multiprocessing.connection.Connection, interval_s: float, seconds: float, engine: str
) -> tuple[float, float, int]:
    """Share of a core used, reads per second, and how many endpoints were read of late."""
    endpoints = [{"url": f"http://127.0.0.1:{port}", "engine": engine} for port in ports]
    document = {"listen": "127.0.0.1:0", "endpoints": endpoints, "observe": {"interval": interval_s}}
    gate = Gateway(from_mapping(document))
    await gate.start()
    await asyncio.sleep(WARM_UP_S)
    asked = _asked(pipe)
    began_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began_s
    share, rate = (time.process_time() - cpu_s) / took_s, (_asked(pipe) - asked) / took_s
    picture = gate.driver.scheduler.snapshot(now=gate.driver.now())
    read = sum(e.observed_s_ago is not None and e.observed_s_ago < 3 * interval_s for e in picture.endpoints)
    await gate.close()
    return share, rate, read


def _asked(pipe: multiprocessing.connection.Connection) -> int:
    pipe.send(True)
    return int(pipe.recv())


def main() -> int:
    """Measure with and without reading."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--json", action="store_true")
    args, _ = parser.parse_known_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=engines, args=(args.endpoints, IDLE if args.idle else BUSY, theirs), daemon=True
    )
    process.start()
    ports = ours.recv()
    share, rate, read = uvloop.run(measure(ports, ours, args.interval, args.seconds, "auto"))
    idle, _, _ = uvloop.run(measure(ports, ours, args.interval, args.seconds, "openai"))
    ours.send(False)
    process.join(5)
    row = {"endpoints": args.endpoints, "interval_s": args.interval, "page_bytes": PAGE.stat().st_size}
    row |= {"read": read, "core": round(share, 4), "core_without": round(idle, 4), "reads_per_second": round(rate, 1)}
    row["us_per_read"] = round((share - idle) / rate * 1e6)
    print(json.dumps(row) if args.json else "\n".join(f"{name:16} {value}" for name, value in row.items()))
    return 0 if read == args.endpoints else 1


if __name__ == "__main__":
    raise SystemExit(main())
