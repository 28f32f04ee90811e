"""Batches among gateways that share: who decides runs the items, and they outlive it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai
import pytest

from tests.batch import postgres
from tests.gateway.conftest import World, chat
from tests.gateway.share.group import group
from tests.gateway.share.test_elected import decider, elected_by

ITEMS = 12
WAIT_S = 40.0
URL = "/v1/chat/completions"


async def _begin(api: openai.AsyncOpenAI) -> str:
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": URL, "body": chat(tokens=60)} for n in range(ITEMS)]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = await api.files.create(file=("in.jsonl", data), purpose="batch")
    made = await api.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return made.id


@pytest.mark.slow
async def test_items_that_run_when_the_one_that_decides_ends_are_waited_for_on_postgres(
    world: World, tmp_path: Path
) -> None:
    """And those that wait go to whoever decides next: each is run once."""
    postgres.require()
    engine = await world.engine(step_s=0.02)
    with postgres.own_server() as database:
        async with group(world, tmp_path) as made:
            given = {"share": elected_by({"postgres": {"url": database.url}})}
            batch = {"store": "postgres", "url": database.url}
            gateways = await made.start("gw1", "gw2", batch=batch, **given)
            first = await decider(gateways)
            second = next(one for one in gateways if one is not first)
            base = f"http://127.0.0.1:{second.port}/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=3) as api:
                begun = await _begin(api)
                await world.until(lambda: engine.engine.in_engine == 4)
                running = [entry for entry in engine.log.entries if entry.outcome == "open"]
                assert first.process is not None
                first.process.signal()
                await first.said("stopped")
                assert {entry.outcome for entry in running} == {"finished"}
                async with asyncio.timeout(WAIT_S):
                    while (found := await api.batches.retrieve(begun)).status != "completed":
                        assert found.status in ("in_progress", "finalizing"), found
                        await asyncio.sleep(0.05)
            assert found.request_counts is not None
            assert (found.request_counts.completed, found.request_counts.failed) == (ITEMS, 0)
            assert len(engine.log.entries) == ITEMS, "nothing was run twice"
