"""LangChain's ChatOpenAI."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clients.conftest import KEY, TOOL, calling_tools, client_library, overloaded, refusing, served
from tests.gateway.conftest import World

openai = pytest.importorskip("openai")
httpx = client_library("httpx")
langchain_openai = client_library("langchain_openai")


@contextlib.asynccontextmanager
async def model(base_url: str, **more: Any) -> AsyncIterator[Any]:
    """A chat model with connections of its own: by default they live as long as the process."""
    settings = {"api_key": KEY, "model": "sim", "max_tokens": 5, "max_retries": 0, **more}
    async with httpx.AsyncClient() as http:
        yield langchain_openai.ChatOpenAI(base_url=base_url, http_async_client=http, **settings)


async def test_an_answer(world: World) -> None:
    async with model(await served(world)) as chat:
        answer = await chat.ainvoke("hello")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] == 5


async def test_a_stream(world: World) -> None:
    async with model(await served(world), stream_usage=True) as chat:
        pieces = [piece async for piece in chat.astream("hello")]
    assert len([piece for piece in pieces if piece.content]) == 5
    assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) == 5


async def test_many_at_once_wait_their_turn(world: World) -> None:
    async with model(await served(world)) as chat:
        answers = await chat.abatch([f"hello {n}" for n in range(20)])
    assert all(answer.content for answer in answers)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called(world: World, stream: bool) -> None:
    async with model(await calling_tools(world, stream=stream), streaming=stream) as chat:
        answer = await chat.bind_tools([TOOL]).ainvoke("What is the weather in Linz?")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", {"town": "Linz"})]


async def test_a_stream_that_is_left_gives_its_slot_back(world: World) -> None:
    async with model(await served(world), max_tokens=4000) as chat:
        stream = chat.astream("hello")
        async for _ in stream:
            assert world.picture().running == 1
            break
        await stream.aclose()
        await world.idle()


async def test_errors_are_the_ones_of_openai(world: World) -> None:
    base_url = await refusing(world)
    async with model(base_url, api_key="pk-none") as chat:
        with pytest.raises(openai.AuthenticationError):
            await chat.ainvoke("hello")
    async with model(base_url, model="none") as chat:
        with pytest.raises(openai.NotFoundError):
            await chat.ainvoke("hello")
    async with model(base_url) as chat:
        await chat.ainvoke("hello")
        with pytest.raises(openai.RateLimitError) as caught:
            await chat.ainvoke("hello")
    assert int(caught.value.response.headers["retry-after"]) >= 30


async def test_no_engine(world: World) -> None:
    async with model(await overloaded(world), max_retries=0) as chat:
        with pytest.raises(openai.InternalServerError) as caught:
            await chat.ainvoke("hello")
    assert caught.value.status_code == 503
