"""Look-ups at LMCache's real controller and coordinator, and routing by them.

python benchmarks/lmcache_services.py [--lmcache VENV]

`VENV` is one in which LMCache is installed (default ~/.cache/penstock-lmcache/venv; a CPU is enough). Both services are
started; simulated workers (`lmcache_workers.py`) register with both and report their chunks. Then a gateway with three
simulated engines routes by `kv`, with `locality: lmcache`, once by each service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from array import array
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from penstock.config.load import from_mapping
from penstock.gateway.kv_cache.lmcache import Controller, Coordinator
from penstock.gateway.serve import Gateway
from penstock.http.client.pool import Upstream, UpstreamException
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.server import EngineServer
from penstock.sim.fake_engine.text import tokenize

START_TIMEOUT_S = 120.0
JSON = [(b"content-type", b"application/json")]
PROMPTS = {
    "held by cache-0": [{"role": "user", "content": "zero rivers " * 300}],
    "held by cache-1": [{"role": "user", "content": "one river " * 300}],
    "two chunks by cache-0, all by cache-2": [{"role": "user", "content": "two rivers " * 400}],
    "held by nobody": [{"role": "user", "content": "no river at all " * 200}],
}
EXPECTED = {"held by cache-0": "gpu-0", "held by cache-1": "gpu-1", "two chunks by cache-0, all by cache-2": "gpu-2"}


def tokens_of(messages: object) -> list[int]:
    return tokenize(json.dumps(messages).encode())


def held() -> list[dict[str, Any]]:
    zero, one, two, _ = (tokens_of(messages) for messages in PROMPTS.values())
    parts = [("cache-0", zero), ("cache-1", one), ("cache-0", two[:512]), ("cache-2", two)]
    return [{"instance": name, "ip": f"10.0.0.{name[-1]}", "tokens": tokens} for name, tokens in parts]


async def started(stack: AsyncExitStack, url: str, path: str, *command: str, log: Path) -> None:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)

    async def stop() -> None:
        process.terminate()
        await process.wait()

    stack.push_async_callback(stop)
    upstream = Upstream(url)
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                await upstream.fetch("GET", path, timeout_s=2.0)
                break
            except UpstreamException:
                await asyncio.sleep(0.2)
    upstream.close()


async def tried(name: str, service: dict[str, str], engines: list[EngineServer]) -> bool:
    endpoints = [
        {"url": engine.url, "name": f"gpu-{number}", "lmcache_instance": f"cache-{number}"}
        for number, engine in enumerate(engines)
    ]
    routing = {"policy": "kv", "locality": "lmcache", "lmcache": service}
    gate = Gateway(from_mapping({"listen": "127.0.0.1:0", "endpoints": endpoints, "routing": routing}))
    await gate.start()
    upstream = Upstream(f"http://127.0.0.1:{gate.server.port}")
    asked = (Controller if "controller" in service else Coordinator)(*service.values())
    right = True
    driver = gate.driver
    while any(e.models is None for e in driver.scheduler.snapshot(now=driver.now()).endpoints):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for what, messages in PROMPTS.items():
        tokens = array("I", tokens_of(messages))
        began_s = time.perf_counter()
        found = await asked.held(tokens, ["sim"], "")
        took_ms = (time.perf_counter() - began_s) * 1000
        body = json.dumps({"model": "sim", "messages": messages, "max_tokens": 2}).encode()
        answer = await upstream.fetch("POST", "/v1/chat/completions", headers=JSON, body=body, timeout_s=10)
        went = dict(answer.headers)[b"x-penstock-endpoint"].decode()
        right &= went == EXPECTED.get(what, went)
        print(f"{name:12} {what:38} {len(tokens):5} tokens: {found!s:34} {took_ms:5.1f} ms -> {went}")
    asked.close()
    upstream.close()
    await gate.close()
    return right


async def run(args: argparse.Namespace) -> int:
    binaries, logs = Path(args.lmcache) / "bin", Path(args.logs)
    http, pull, reply, beat, coordinator = range(args.port, args.port + 5)
    controller_url, coordinator_url = f"http://127.0.0.1:{http}", f"http://127.0.0.1:{coordinator}"
    ports = json.dumps({"pull": pull, "reply": reply, "heartbeat": beat})
    async with AsyncExitStack() as stack:
        controller = [str(binaries / "lmcache_controller"), "--host", "127.0.0.1", "--port", str(http)]
        controller += ["--monitor-ports", ports, "--health-check-interval", "-1"]
        await started(stack, controller_url, "/env", *controller, log=logs / "lmcache-controller.log")
        directory = [str(binaries / "lmcache"), "coordinator", "--host", "127.0.0.1", "--port", str(coordinator)]
        await started(stack, coordinator_url, "/healthz", *directory, log=logs / "lmcache-coordinator.log")
        workers = Path(__file__).with_name("lmcache_workers.py")
        process = await asyncio.create_subprocess_exec(
            str(binaries / "python"), str(workers), coordinator_url, str(pull), str(reply),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate(json.dumps({"model": "sim", "held": held()}).encode())
        if process.returncode != 0:
            print(said.decode())
            return 1
        engines = [EngineServer(EngineConfig(step_s=0.002)) for _ in range(3)]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.close)
        right = await tried("controller", {"controller": controller_url}, engines)
        right &= await tried("coordinator", {"coordinator": coordinator_url}, engines)
    print("all went where LMCache said" if right else "NOT all went where LMCache said")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="LMCache's real services, asked by a gateway.")
    parser.add_argument("--lmcache", default=str(Path.home() / ".cache" / "penstock-lmcache" / "venv"))
    parser.add_argument("--port", type=int, default=28000, help="the first of five ports")
    parser.add_argument("--logs", default="/tmp", help="where the services' logs go")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
