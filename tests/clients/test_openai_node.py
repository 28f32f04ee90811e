"""OpenAI's library for Node.js, as an application there would use it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY, REQUIRED, calling_tools, overloaded, refusing, served
from tests.gateway.conftest import World

SCRIPT = Path(__file__).with_name("node_client.mjs")
MODULES = Path(os.environ.get("PENSTOCK_NODE_CLIENTS", ".venv-clients/node"))

NODE = shutil.which("node")
if not REQUIRED and (NODE is None or not (MODULES / "node_modules" / "openai").exists()):
    pytest.skip("OpenAI's library for Node is not installed: `make test-clients` installs it", allow_module_level=True)


async def node(folder: Path, *arguments: str) -> Any:
    """Run the script beside the installed library, which is how Node finds it."""
    assert NODE is not None, "node is not installed"
    script = folder / SCRIPT.name
    shutil.copy(SCRIPT, script)
    (folder / "node_modules").symlink_to((MODULES / "node_modules").resolve())
    process = await asyncio.create_subprocess_exec(
        NODE, str(script), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_an_answer(world: World, tmp_path: Path) -> None:
    assert await node(tmp_path, await served(world), KEY, "answer") == {"tokens": 5}


async def test_a_stream(world: World, tmp_path: Path) -> None:
    assert await node(tmp_path, await served(world), KEY, "stream") == {"pieces": 5}


async def test_a_stream_that_is_left_gives_its_slot_back(world: World, tmp_path: Path) -> None:
    assert await node(tmp_path, await served(world), KEY, "leave") == {"left": True}
    await world.idle()


async def test_a_tool_is_called(world: World, tmp_path: Path) -> None:
    call = await node(tmp_path, await calling_tools(world, stream=True), KEY, "tools")
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"town": "Linz"})


@pytest.mark.parametrize(
    ("key", "what", "error"),
    [
        ("pk-none", "answer", ("AuthenticationError", 401, "unauthorized")),
        (KEY, "no model", ("NotFoundError", 404, "model_not_found")),
    ],
)
async def test_each_error_is_its_class(world: World, tmp_path: Path, key: str, what: str, error: object) -> None:
    told = await node(tmp_path, await served(world), key, what)
    assert (told["error"], told["status"], told["code"]) == error


async def test_a_limit(world: World, tmp_path: Path) -> None:
    base_url = await refusing(world)
    (tmp_path / "first").mkdir()
    assert await node(tmp_path / "first", base_url, KEY, "answer") == {"tokens": 5}
    told = await node(tmp_path, base_url, KEY, "answer")
    assert (told["error"], told["status"]) == ("RateLimitError", 429)
    assert int(told["retryAfter"]) >= 30


async def test_no_engine(world: World, tmp_path: Path) -> None:
    told = await node(tmp_path, await overloaded(world), KEY, "answer")
    assert (told["error"], told["status"]) == ("InternalServerError", 503)
    assert int(told["retryAfter"]) >= 1
