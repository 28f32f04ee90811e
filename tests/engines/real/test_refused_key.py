"""`vllm --api-key` behind a gateway with no key for it, a wrong one, and the right one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engines.real.conftest import Fleet, chat
from tests.engines.real.processes import KEY, Gateway, say, until


@pytest.fixture
async def gateway(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway with a wrong key for its only engine."""
    await asyncio.to_thread(fleet.guarded.ensure)
    gateway = Gateway(tmp_path, {"endpoints": [{**fleet.guarded.endpoint, "api_key": "wrong"}]})
    gateway.process.start()
    await asyncio.to_thread(until, lambda: state_of(gateway) == "refused_key", what="the state says so")
    yield gateway
    assert gateway.process.stop() == 0
    fleet.guarded.process.kill()


def state_of(gateway: Gateway) -> Any:
    try:
        return gateway.endpoint("vllm-guarded")["state"]
    except ValueError:  # it does not listen yet
        return None


async def ask(gateway: Gateway, key: str) -> Any:
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0) as user:
        return await user.chat.completions.create(**chat())


async def test_callers_are_answered_at_once_and_the_key_to_write_is_named(gateway: Gateway, fleet: Fleet) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await ask(gateway, "none")
    assert refused.value.status_code == 502
    assert "`endpoints[].api_key`" in str(refused.value)
    assert gateway.process.log.read_text().count("`endpoints[].api_key`") == 1
    line = (await asyncio.to_thread(gateway.cli, "status")).stdout.splitlines()[0]
    say(f"a wrong key: {line}")
    assert "refusing the gateway's key" in line

    settings = json.loads(gateway.file.read_text())
    gateway.file.write_text(json.dumps({**settings, "endpoints": [{**fleet.guarded.endpoint, "api_key": KEY}]}))
    assert (await asyncio.to_thread(gateway.cli, "reload")).returncode == 0
    await asyncio.to_thread(until, lambda: state_of(gateway) == "up", what="the right key is used after a reload")
    assert (await ask(gateway, "none")).choices[0].finish_reason == "length"

    gateway.file.write_text(json.dumps({**settings, "endpoints": [fleet.guarded.endpoint]}))
    assert (await asyncio.to_thread(gateway.cli, "reload")).returncode == 0
    assert (await ask(gateway, KEY)).choices[0].finish_reason == "length"  # the caller's own key passes
    with pytest.raises(openai.AuthenticationError):
        await ask(gateway, "none")
