"""What the tests of all client libraries share: the world, a key, an engine that calls tools, and what a test skips.

`make test-clients` installs the libraries beside the project and sets PENSTOCK_TEST_CLIENTS=required: a library that is
missing fails there. `make test` runs those that are installed and says of the others that they are skipped.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest

from penstock.gateway.identity.callers import key_hash
from penstock.gateway.serve import Gateway
from tests.gateway.conftest import World, pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories", "world"]

KEY = "pk-team-a"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
REQUIRED = os.environ.get("PENSTOCK_TEST_CLIENTS") == "required"

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched from elsewhere


class ClientWorld(World):
    """A world whose clients may keep their connections: some libraries keep one client for all calls of a process."""

    async def _close_gateway(self, gate: Gateway) -> None:
        await self.idle()
        await gate.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An empty world: start an engine in it, then the gateway."""
    made = ClientWorld()
    try:
        yield made
    finally:
        await made.close()


def client_library(name: str) -> ModuleType:
    """A client's library; the file of its tests is skipped where it is not installed."""
    if REQUIRED:
        return importlib.import_module(name)
    module: ModuleType = pytest.importorskip(name, reason=f"{name} is not installed: `make test-clients` installs it")
    return module


async def served(world: World, **more: Any) -> str:
    """A gateway with keys in front of one engine of four slots; gives the base URL that clients are told."""
    await world.engine(step_s=0.005)
    await world.gateway(
        tenants=[{"name": "team-a", "keys": [key_hash(KEY)], **more.pop("tenant", {})}],
        identity={"require_key": True},
        **more,
    )
    return f"{world.url}/v1"


async def refusing(world: World) -> str:
    """A gateway that refuses the second request of a minute, with 429 and Retry-After."""
    return await served(world, tenant={"limits": {"requests_per_minute": 1}})


async def overloaded(world: World) -> str:
    """A gateway none of whose engines is there: 503."""
    await world.gateway(
        endpoints=[{"url": "http://127.0.0.1:9", "engine": "openai", "models": ["sim"]}], queue={"max_wait": "200ms"}
    )
    return f"{world.url}/v1"


async def calling_tools(world: World, *, stream: bool) -> str:
    """A gateway in front of an engine that answers every request with one call of `weather`."""
    call: dict[str, Any] = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"town": "Linz"}'},
    }
    head: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "model": "sim"}
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    if stream:
        part: dict[str, Any] = {**call, "index": 0, "function": {"name": "weather", "arguments": ""}}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [part]}]
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"town": ', '"Linz"}')]
        chunks: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        chunks.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
        lines = [{**head, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
        lines.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        body = b"".join(b"data: %b\n\n" % json.dumps(line).encode() for line in lines) + b"data: [DONE]\n\n"
        kind = b"text/event-stream"
    else:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": None, "tool_calls": [call]},
            "finish_reason": "tool_calls",
        }
        body = json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        kind = b"application/json"
    endpoint, _ = await world.scripted(
        b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)
    )
    await world.gateway(endpoints=[endpoint])
    return f"{world.url}/v1"
