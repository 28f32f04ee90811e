"""LiteLLM: its library, and its proxy in front of Penstock."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY, TOOL, calling_tools, client_library, overloaded, refusing, served
from tests.gateway.conftest import World
from tests.ports import free_port

litellm = client_library("litellm")
pytestmark = pytest.mark.filterwarnings("ignore")  # what it deprecates of its own

MASTER = "sk-" + secrets.token_hex(32)  # of LiteLLM's proxy, which wants one
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


async def ask(base_url: str, key: str = KEY, model: str = "sim", **more: Any) -> Any:
    return await litellm.acompletion(
        model=f"openai/{model}", api_base=base_url, api_key=key, num_retries=0, max_retries=0, **{**ASK, **more}
    )


async def test_an_answer_and_a_stream(world: World) -> None:
    base_url = await served(world)
    answer = await ask(base_url)
    assert answer.usage.completion_tokens == 5
    pieces = [chunk async for chunk in await ask(base_url, stream=True)]
    assert len([piece for piece in pieces if piece.choices[0].delta.content]) == 5


async def test_a_tool_is_called(world: World) -> None:
    answer = await ask(await calling_tools(world, stream=False), tools=[TOOL])
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"town": "Linz"})


async def test_each_error_is_its_exception(world: World) -> None:
    base_url = await refusing(world)
    with pytest.raises(litellm.AuthenticationError):
        await ask(base_url, key="pk-none")
    with pytest.raises(litellm.NotFoundError):
        await ask(base_url, model="none")
    await ask(base_url)
    with pytest.raises(litellm.RateLimitError) as caught:
        await ask(base_url)
    assert int(caught.value.litellm_response_headers["retry-after"]) >= 30


async def test_no_engine(world: World) -> None:
    with pytest.raises((litellm.ServiceUnavailableError, litellm.InternalServerError)):
        await ask(await overloaded(world))


# --- its proxy in front -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def proxy(base_url: str, folder: Path) -> AsyncIterator[str]:
    """LiteLLM's proxy as its own process, whose one model is Penstock's; skipped where its parts are not installed."""
    pytest.importorskip("litellm.proxy.proxy_server", reason="litellm's proxy is not installed", exc_type=ImportError)
    port = free_port()
    settings = {
        "model_list": [
            {
                "model_name": "sim",
                "litellm_params": {"model": "openai/sim", "api_base": base_url, "api_key": KEY, "max_retries": 0},
            }
        ],
        "litellm_settings": {"num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(settings))
    log = (folder / "litellm.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "litellm"), "--config", str(file), "--port", str(port), "--host", "127.0.0.1",
        stdout=log, stderr=log, env={**os.environ, "LITELLM_MASTER_KEY": MASTER},
    )  # fmt: skip
    try:
        async with asyncio.timeout(90):
            while (await post(f"http://127.0.0.1:{port}/health/liveliness", None))[0] != 200:
                assert process.returncode is None, (folder / "litellm.log").read_text()[-2000:]
                await asyncio.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        log.close()


async def post(url: str, body: dict[str, Any] | None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what an HTTP server answers; status 0 where none does."""

    def call() -> tuple[int, dict[str, str], bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url, data, {"content-type": "application/json", "authorization": f"Bearer {MASTER}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()
        except OSError:
            return 0, {}, b""

    return await asyncio.to_thread(call)


@pytest.mark.timeout(180)
async def test_its_proxy_passes_answers_streams_and_refusals_on(world: World, tmp_path: Path) -> None:
    base_url = await served(world, tenant={"limits": {"requests_per_minute": 2}})
    async with proxy(base_url, tmp_path) as url:
        body = {"model": "sim", **ASK}
        status, _, answer = await post(f"{url}/v1/chat/completions", body)
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 5)
        status, _, answer = await post(f"{url}/v1/chat/completions", {**body, "stream": True})
        assert status == 200
        assert answer.count(b'"content"') >= 5
        status, headers, answer = await post(f"{url}/v1/chat/completions", body)
        assert status == 429, answer
        assert headers.get("retry-after") or b"limit" in answer
