"""Anthropic's own library against /v1/messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.conftest import KEY, client_library, overloaded, refusing, served
from tests.gateway.conftest import World

anthropic = client_library("anthropic")
ASK: dict[str, Any] = {"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


def client(base_url: str, key: str = KEY, retries: int = 0) -> Any:
    return anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=retries)


async def test_an_answer(world: World) -> None:
    async with client(await served(world)) as api:
        message = await api.messages.create(**ASK)
    assert message.content[0].text
    assert message.usage.output_tokens == 5


async def test_a_stream(world: World) -> None:
    async with client(await served(world)) as api, api.messages.stream(**ASK) as stream:
        pieces = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert len(pieces) == 5
    assert message.stop_reason is not None


async def test_a_stream_that_is_left_gives_its_slot_back(world: World) -> None:
    base_url = await served(world)
    async with client(base_url) as api, api.messages.stream(**{**ASK, "max_tokens": 4000}) as stream:
        async for _ in stream.text_stream:
            assert world.picture().running == 1
            break
    await world.idle()


async def test_a_wrong_key(world: World) -> None:
    async with client(await served(world), key="pk-none") as api:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await api.messages.create(**ASK)
    assert caught.value.body["error"]["type"] == "authentication_error"


async def test_a_batch_for_a_model_without_endpoint(world: World) -> None:
    async with client(await served(world)) as api:
        with pytest.raises(anthropic.NotFoundError):
            await api.messages.create(**{**ASK, "model": "none"})


async def test_a_limit(world: World) -> None:
    async with client(await refusing(world)) as api:
        await api.messages.create(**ASK)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await api.messages.create(**ASK)
    assert int(caught.value.response.headers["retry-after"]) >= 30
    assert caught.value.body["error"]["type"] == "rate_limit_error"


async def test_no_engine(world: World) -> None:
    async with client(await overloaded(world)) as api:
        with pytest.raises(anthropic.InternalServerError) as caught:
            await api.messages.create(**ASK)
    assert caught.value.status_code in (503, 529)
    assert int(caught.value.response.headers["retry-after"]) >= 1
