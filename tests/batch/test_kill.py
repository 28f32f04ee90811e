"""What a `kill -9` costs: gateways as processes of their own, killed while they run a batch.

Small versions of `benchmarks/batch.py kill` and `two`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.server import EngineServer
from tests.batch import postgres
from tests.patience import WAIT_S
from tests.ports import free_port

ITEMS = 120


class Gateways:
    """Processes in front of one engine."""

    def __init__(self, folder: Path, engine: EngineServer, stack: AsyncExitStack) -> None:
        self._folder = folder
        self.engine = engine
        self._stack = stack

    async def start(self, port: int, **batch: Any) -> asyncio.subprocess.Process:
        file = self._folder / f"{port}.json"
        settings = {
            "listen": f"127.0.0.1:{port}",
            "endpoints": [{"url": self.engine.url, "slots": 4}],
            "observe": {"interval": 0.1, "fast_interval": 0.05},
            "batch": batch,
        }
        file.write_text(json.dumps(settings))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "serve", "-c", str(file), "--log-level", "error"
        )
        self._stack.push_async_callback(self.stop, process, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while True:
                assert process.returncode is None, "it ended at once"
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return process

    async def stop(self, process: asyncio.subprocess.Process, number: int = signal.SIGKILL) -> None:
        if process.returncode is None:
            process.send_signal(number)
            await process.wait()

    async def seen(self, count: int) -> None:
        """Until the engine saw so many requests."""
        async with asyncio.timeout(WAIT_S):
            while len(self.engine.log.entries) < count:
                await asyncio.sleep(0.005)


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    async with AsyncExitStack() as stack:
        engine = EngineServer(EngineConfig(step_s=0.01), model="sim")
        await engine.start()
        stack.push_async_callback(engine.close)
        yield Gateways(tmp_path, engine, stack)


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=3)


async def begin(api: openai.AsyncOpenAI) -> str:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    url = "/v1/chat/completions"
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": url, "body": body} for n in range(ITEMS)]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = await api.files.create(file=("in.jsonl", data), purpose="batch")
    made = await api.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return made.id


async def each_has_one_result(api: openai.AsyncOpenAI, batch: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while (found := await api.batches.retrieve(batch)).status == "in_progress":
            await asyncio.sleep(0.05)
    assert found.status == "completed"
    assert found.request_counts is not None
    assert (found.request_counts.completed, found.request_counts.failed) == (ITEMS, 0)
    assert found.output_file_id is not None
    text = (await api.files.content(found.output_file_id)).text
    assert sorted(json.loads(line)["custom_id"] for line in text.splitlines()) == sorted(f"r{n}" for n in range(ITEMS))


async def test_killed_in_the_middle_every_item_has_one_result(gateways: Gateways, tmp_path: Path) -> None:
    """Again and again, until it is done, is `benchmarks/batch.py kill`."""
    port, data = free_port(), str(tmp_path / "data")
    process = await gateways.start(port, data=data)
    api = client(port)
    batch = await begin(api)
    await gateways.seen(ITEMS // 2)
    await gateways.stop(process)
    assert len(gateways.engine.log.entries) < ITEMS  # there is something left
    await gateways.start(port, data=data)
    await each_has_one_result(api, batch)
    assert len(gateways.engine.log.entries) <= ITEMS + 4 + 32  # what was under way or not yet written, once more
    await api.close()


@pytest.mark.slow
async def test_two_gateways_share_a_batch_on_postgres_and_one_is_killed(gateways: Gateways) -> None:
    postgres.require()
    with postgres.server() as url:
        store = {"store": "postgres", "url": url, "claim_timeout": "1s"}
        ports = [free_port(), free_port()]
        killed, _ = await asyncio.gather(*(gateways.start(port, **store) for port in ports))
        api = client(ports[1])
        batch = await begin(api)
        await gateways.seen(60)
        await gateways.stop(killed)
        await each_has_one_result(api, batch)
        await api.close()
