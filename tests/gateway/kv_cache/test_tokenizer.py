"""The tokens of prompts: what is asked of an engine about a request, and what is remembered of its answers."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.gateway.kv_cache import tokenizer as tokenizer_module
from penstock.gateway.kv_cache.tokenize_request import Question, question
from penstock.gateway.kv_cache.tokenizer import Tokenizer
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import Upstream
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.raw_engine import Peer, RawEngine
from tests.patience import WAIT_S

REST_S_MAX = 120.0
REST_S = 2.0

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "why is water wet?"}]


def asked(path: str = CHAT, **body: Any) -> dict[str, Any] | None:
    found = question(path, json.dumps({"model": "sim", "max_tokens": 3, **body}).encode(), "sim")
    return None if found is None else json.loads(found.body)


def test_a_chat_is_asked_about_with_all_that_its_template_sees() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert asked(messages=MESSAGES) == {"model": "sim", "messages": MESSAGES}
    assert asked(
        messages=MESSAGES,
        tools=tools,
        tool_choice="auto",
        chat_template_kwargs={"a": 1},
        documents=[{"title": "t"}],
        reasoning_effort="low",
        continue_final_message=False,
        temperature=0.5,
    ) == {
        "model": "sim",
        "messages": MESSAGES,
        "tools": tools,
        "tool_choice": "auto",
        "continue_final_message": False,
        "reasoning_effort": "low",
        "chat_template_kwargs": {
            "a": 1,
            "documents": [{"title": "t"}],
            "reasoning_effort": "low",
            "enable_thinking": True,
        },
    }


def test_messages_are_passed_on_as_the_bytes_they_came_in() -> None:
    raw = b'{"model":"sim", "messages" : [ {"role":"user","content":"\\u00fc  x"} ],"n":1}'
    found = question(CHAT, raw, "sim")
    assert found is not None
    assert b'[ {"role":"user","content":"\\u00fc  x"} ]' in found.body


def test_a_prompt_is_asked_about_and_token_ids_need_no_asking() -> None:
    assert asked("/v1/completions", prompt="hello") == {"model": "sim", "prompt": "hello"}
    assert asked("/v1/completions", prompt=["hello"], add_special_tokens=False) == {
        "model": "sim",
        "prompt": "hello",
        "add_special_tokens": False,
    }
    for ids in ([1, 2, 3], [[1, 2, 3]]):
        found = question("/v1/completions", json.dumps({"prompt": ids, "cache_salt": "s"}).encode(), "sim")
        assert found == Question(b"", array("I", [1, 2, 3]), "s")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/messages", {"messages": MESSAGES}),
        (CHAT, {}),
        (CHAT, {"messages": None}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        (CHAT, {"messages": MESSAGES, "truncate_prompt_tokens": 5}),
        (CHAT, {"messages": MESSAGES, "chat_template_kwargs": [1]}),
        ("/v1/completions", {}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [[1], [2]]}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": [1, "a"]}),
        ("/v1/completions", {"prompt": [-1]}),
        ("/v1/completions", {"prompt": [2**40]}),
        ("/v1/completions", {"prompt": {"x": 1}}),
        ("/v1/completions", {"prompt": "x", "prompt_embeds": "abc"}),
    ],
)
def test_requests_without_an_exact_query_are_skipped(path: str, body: dict[str, Any]) -> None:
    assert asked(path, **body) is None


def test_a_body_that_is_not_json_has_no_fields() -> None:
    assert question(CHAT, b"\xff\xfe{", "sim") is None


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def at(url: str, clock: Clock | None = None, **more: Any) -> AsyncIterator[Tokenizer]:
    target = Target(Upstream(url), "secret")
    try:
        yield Tokenizer({"gpu-0": target}, choose=lambda _: ["gone", "gpu-0"], now=clock or Clock(), **more)
    finally:
        target.upstream.close()


def about(prompt: str) -> Question:
    found = question("/v1/completions", json.dumps({"prompt": prompt}).encode(), "sim")
    assert found is not None
    return found


@asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    requests: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            requests.append(await peer.request())
            await peer.send(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

    async with RawEngine(script) as raw:
        yield raw.url, requests


async def test_an_engine_returns_the_tokens_and_they_are_cached() -> None:
    engine = EngineServer(EngineConfig(step_s=0.002))
    await engine.start()
    async with at(engine.url) as tokenizer:
        assert tokenizer.known(about("abcdefg")) is None
        told = await tokenizer.ask(about("abcdefg"), "gpu-0")
        assert told == array("I", [0x61626364, 0x656667])
        assert tokenizer.known(about("abcdefg")) is told
        assert await tokenizer.ask(about("abcdefg"), "gone") is None
    await engine.close()


async def test_the_endpoints_own_key_is_sent() -> None:
    async with answering(200, b'{"tokens": [1]}') as (url, requests), at(url) as tokenizer:
        await tokenizer.ask(about("x"), "gpu-0")
    assert b"authorization: Bearer secret\r\n" in requests[0]


async def test_an_engine_is_asked_by_its_own_name_for_the_model() -> None:
    async with answering(200, b'{"tokens": [1]}') as (url, requests), at(url) as tokenizer:
        tokenizer._targets["gpu-0"].names = {"sim": "org/sim-70b"}
        await tokenizer.ask(about("x"), "gpu-0")
        assert tokenizer.known(about("x")) == array("I", [1]), "remembered by our name"
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["model"] == "org/sim-70b"


async def test_memory_is_bounded_by_tokens_and_the_oldest_go_first() -> None:
    async with answering(200, b'{"tokens": [1, 2, 3]}') as (url, _), at(url, tokens_max=140) as tokenizer:
        for prompt in ("a", "b"):
            await tokenizer.ask(about(prompt), "gpu-0")
        assert tokenizer.known(about("a"))
        await tokenizer.ask(about("c"), "gpu-0")
        assert [bool(tokenizer.known(about(prompt))) for prompt in "abc"] == [True, False, True]


@pytest.mark.parametrize(
    ("status", "body", "rest_s"),
    [
        (404, b'{"detail":"Not Found"}', REST_S_MAX),
        (401, b"", REST_S_MAX),
        (503, b"", REST_S),
        (200, b"{}", REST_S),
        (200, b'{"tokens": [-1]}', REST_S),
        (200, b"<html>", REST_S),
        (404, b'{"error":{"type":"NotFoundError"}}', 0.0),  # that is about the model
        (400, b"{}", 0.0),
    ],
)
async def test_an_engine_that_cannot_is_left_alone_for_a_while(status: int, body: bytes, rest_s: float) -> None:
    clock = Clock()
    async with answering(status, body) as (url, _), at(url, clock) as tokenizer:
        assert tokenizer.endpoint("sim") == "gpu-0"
        assert await tokenizer.ask(about("x"), "gpu-0") is None
        assert (tokenizer.endpoint("sim") is None) == (rest_s > 0)
        clock.now_s += rest_s
        assert tokenizer.endpoint("sim") == "gpu-0"


async def test_an_engine_that_fails_again_and_again_is_left_alone_for_longer() -> None:
    clock = Clock()
    async with RawEngine(lambda peer: asyncio.sleep(0)) as raw:
        url = raw.url
    async with at(url, clock) as tokenizer:
        rests = []
        for _ in range(10):
            await tokenizer.ask(about("x"), "gpu-0")
            began_s = clock.now_s
            while tokenizer.endpoint("sim") is None:
                clock.now_s += 1.0
            rests.append(clock.now_s - began_s)
    assert rests == [2, 4, 8, 16, 32, 64, 120, 120, 120, 120]


async def test_only_so_many_questions_are_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "OPEN_MAX", 1)
    going = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await going.wait()
            await peer.send(b'HTTP/1.1 200 x\r\ncontent-length: 15\r\n\r\n{"tokens": [1]}')

    async with RawEngine(script) as raw, at(raw.url) as tokenizer:
        first = asyncio.ensure_future(tokenizer.ask(about("x"), "gpu-0"))
        await asyncio.sleep(0)
        assert tokenizer.endpoint("sim") is None
        going.set()
        assert await first == array("I", [1])
        assert tokenizer.endpoint("sim") == "gpu-0"


async def test_an_engine_that_is_slow_is_left_alone_before_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "LATE_S", 0.01)
    going = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await going.wait()
        await peer.send(b'HTTP/1.1 200 x\r\ncontent-length: 15\r\n\r\n{"tokens": [1]}')
        await peer.gone()

    async with RawEngine(script) as raw, at(raw.url) as tokenizer:
        first = asyncio.ensure_future(tokenizer.ask(about("x"), "gpu-0"))
        async with asyncio.timeout(WAIT_S):
            while tokenizer.endpoint("sim") is not None:
                await asyncio.sleep(0.001)
        assert not first.done()
        going.set()
        assert await first == array("I", [1])
        assert tokenizer.endpoint("sim") is None
