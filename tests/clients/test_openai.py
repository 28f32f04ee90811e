"""OpenAI's own library for Python: exceptions, its retries, streams, tools and leaving early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clients.conftest import KEY, TOOL, calling_tools, client_library, overloaded, refusing, served
from tests.gateway.conftest import World

openai = client_library("openai")
ASK: dict[str, Any] = {"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


def client(base_url: str, key: str = KEY, retries: int = 0) -> Any:
    return openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=retries)


async def test_an_answer_a_stream_and_the_models(world: World) -> None:
    async with client(await served(world)) as api:
        answer = await api.chat.completions.create(**ASK)
        assert answer.choices[0].message.content
        stream = await api.chat.completions.create(**ASK, stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
        assert len([piece for piece in pieces if piece]) == 5
        assert [model.id async for model in await api.models.list()] == ["sim"]
        response = await api.responses.create(model="sim", input="hello", max_output_tokens=5)
        assert response.output_text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called(world: World, stream: bool) -> None:
    async with client(await calling_tools(world, stream=stream)) as api:
        if stream:
            async with api.chat.completions.stream(model="sim", messages=ASK["messages"], tools=[TOOL]) as events:
                completion = await events.get_final_completion()
        else:
            completion = await api.chat.completions.create(**ASK, tools=[TOOL])
    (call,) = completion.choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", '{"town": "Linz"}')


async def test_a_stream_that_is_left_gives_its_slot_back(world: World) -> None:
    async with client(await served(world)) as api:
        stream = await api.chat.completions.create(**{**ASK, "max_tokens": 4000}, stream=True)
        async for _ in stream:
            assert world.picture().running == 1
            break
        await stream.close()
        await world.idle()


async def test_each_error_is_the_exception_that_applications_catch(world: World) -> None:
    base_url = await refusing(world)
    async with client(base_url, key="pk-none") as api:
        with pytest.raises(openai.AuthenticationError) as wrong_key:
            await api.chat.completions.create(**ASK)
    assert "Incorrect API key provided (invalid_api_key)" in wrong_key.value.message
    async with client(base_url) as api:
        with pytest.raises(openai.NotFoundError) as no_model:
            await api.chat.completions.create(**{**ASK, "model": "none"})
        assert no_model.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            await api.chat.completions.create(**{**ASK, "model": 3})
        await api.chat.completions.create(**ASK)
        with pytest.raises(openai.RateLimitError) as limit:
            await api.chat.completions.create(**ASK)
    assert int(limit.value.response.headers["retry-after"]) >= 30


async def test_no_engine_is_an_error_that_may_be_tried_again(world: World) -> None:
    async with client(await overloaded(world)) as api:
        with pytest.raises(openai.InternalServerError) as caught:
            await api.chat.completions.create(**ASK)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_its_own_retry_obeys_the_gateways_retry_after(world: World) -> None:
    base_url = await served(world, queue={"max_requests": 1}, tenant={"limits": {"running": 1}})
    async with client(base_url, retries=5) as api:
        long = {**ASK, "max_tokens": 60}
        answers = await asyncio.gather(*[api.chat.completions.create(**long) for _ in range(3)])
    assert [answer.usage.completion_tokens for answer in answers] == [60, 60, 60]
