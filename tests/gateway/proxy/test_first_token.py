"""Time-outs, retries and the time to the first token go by tokens, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from tests.gateway.conftest import CHAT, World
from tests.gateway.raw_engine import Peer, RawEngine

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%btransfer-encoding: chunked\r\n\r\n"
EVENTS = HEAD % (b"text/event-stream", b"")
NOT_FOUND = b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(**delta: Any) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


ROLE = delta(role="assistant", content="")
TEXT = delta(content="word ")
FINISH = event({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE = event({"id": "c", "choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 30}})
DONE = event(b"[DONE]")
CREATED = b"event: response.created\n" + event({"type": "response.created", "response": {"id": "r"}})
KEPT = b"event: keepalive\n" + event({"type": "keepalive", "sequence_number": 3})
EMPTY = delta(content="")
NO_TOKENS = ["a comment", "a role", "created", "keepalive", "an empty text"]


async def engine(world: World, script: Any, *, slots: int = 4) -> dict[str, Any]:
    async def run(peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"GET "):
                await peer.send(NOT_FOUND)
            elif await script(peer, data) is False:
                return

    raw = await world.beside(RawEngine(run))
    return {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": slots}


async def sends(world: World, *pieces: bytes, head: bytes = EVENTS) -> dict[str, Any]:
    async def script(peer: Peer, data: bytes) -> None:
        await peer.send(head + b"".join(chunk(piece) for piece in pieces) + chunk(b""))

    return await engine(world, script)


def whole(value: Any, *headers: bytes) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        lines,
        len(body),
        body,
    )


async def answers(world: World, answer: bytes) -> dict[str, Any]:
    async def script(peer: Peer, data: bytes) -> None:
        await peer.send(answer)

    return await engine(world, script)


async def tokens(world: World) -> float:
    return await world.metric("penstock_tokens_total", model="sim")


@pytest.mark.parametrize("first", [b": ping\n\n", ROLE, CREATED, KEPT, EMPTY], ids=NO_TOKENS)
@pytest.mark.virtual_time
async def test_an_engine_that_never_sends_a_token_is_given_up_in_the_time_for_the_first(
    world: World, first: bytes
) -> None:
    async def script(peer: Peer, data: bytes) -> bool:
        await peer.send(EVENTS)
        for _ in range(100):
            await peer.send(chunk(first))
            await asyncio.sleep(0.5)
        return False

    settings = await engine(world, script)
    await world.gateway(endpoints=[settings], timeouts={"first_byte": "3s"}, retry={"max_attempts": 1})
    began_s = asyncio.get_running_loop().time()
    answer = await world.chat(stream=True)
    assert asyncio.get_running_loop().time() - began_s < 8
    if first.startswith(b":"):
        assert answer.status == 200
        assert b'"code":"upstream_timeout"' in answer.body
    else:
        assert (answer.status, answer.error()["code"]) == (504, "upstream_timeout")


@pytest.mark.parametrize("between", [b": ping\n\n", ROLE, CREATED, KEPT, EMPTY], ids=NO_TOKENS)
@pytest.mark.parametrize("size", [1000, 20], ids=["whole", "in pieces"])
@pytest.mark.virtual_time
async def test_events_without_a_token_do_not_keep_a_silent_engine_alive(
    world: World, between: bytes, size: int
) -> None:
    async def script(peer: Peer, data: bytes) -> bool:
        await peer.send(EVENTS + chunk(TEXT))
        for _ in range(100):
            for at in range(0, len(between), size):
                await peer.send(chunk(between[at : at + size]))
                await asyncio.sleep(0.25)
        return False

    await world.gateway(endpoints=[await engine(world, script)], timeouts={"between_bytes": "3s"})
    began_s = asyncio.get_running_loop().time()
    answer = await world.chat(stream=True)
    assert b'"code":"stream_broken"' in answer.body
    assert asyncio.get_running_loop().time() - began_s < 8


@pytest.mark.parametrize(
    "first", [b": ping\n\n", b"", ROLE, CREATED], ids=["a comment", "nothing", "a role", "created"]
)
async def test_an_engine_that_dies_before_its_first_token_is_replaced_unseen(world: World, first: bytes) -> None:
    async def dies(peer: Peer, data: bytes) -> bool:
        await peer.send(EVENTS + (chunk(first) if first else b""))
        return False

    dying, good = await engine(world, dies), await sends(world, ROLE, TEXT, FINISH, DONE)
    await world.gateway(endpoints=[dying, good], routing={"policy": "round_robin"})
    for _ in range(4):
        answer = await world.chat(stream=True)
        assert answer.status == 200
        assert answer.body.removeprefix(b": ping\n\n") == ROLE + TEXT + FINISH + DONE


async def test_a_comment_reaches_the_client_before_there_is_a_token(world: World) -> None:
    seen = asyncio.Event()

    async def script(peer: Peer, data: bytes) -> None:
        await peer.send(EVENTS + chunk(b": ping\n\n"))
        await seen.wait()
        await peer.send(chunk(TEXT + FINISH + DONE) + chunk(b""))

    await world.gateway(endpoints=[await engine(world, script)])
    client = await world.streaming()
    assert (await client.head()).status == 200
    assert await client.piece() == b": ping\n\n"
    assert await world.metric("penstock_ttft_seconds_count", model="sim") == 0
    seen.set()
    assert (await client.whole()).endswith(TEXT + FINISH + DONE)
    assert await world.metric("penstock_ttft_seconds_count", model="sim") == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("first", [b": ping\n\n", ROLE, CREATED + KEPT], ids=["a comment", "a role", "keepalive"])
async def test_the_time_to_the_first_token_ends_with_a_token(world: World, first: bytes) -> None:
    async def script(peer: Peer, data: bytes) -> None:
        await peer.send(EVENTS + chunk(first))
        await asyncio.sleep(2)
        await peer.send(chunk(TEXT + FINISH + DONE) + chunk(b""))

    await world.gateway(endpoints=[await engine(world, script)])
    assert (await world.chat(stream=True)).status == 200
    assert await world.metric("penstock_ttft_seconds_sum", model="sim") >= 2


@pytest.mark.parametrize(
    ("path", "events", "made"),
    [
        (CHAT, [*[ROLE] * 40, TEXT, *[EMPTY] * 40, TEXT, FINISH, DONE], 2),
        (CHAT, [event({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}]}), DONE], 1),
        (
            "/v1/responses",
            [CREATED, *[KEPT] * 40, event({"type": "response.output_text.delta", "delta": "a"}), KEPT],
            1,
        ),
        ("/v1/messages", [b": hi\n\n", event({"type": "content_block_delta", "delta": {"thinking": "a"}})], 1),
        (
            "/generate_stream",
            [event({"token": {"id": 5, "text": "a"}, "generated_text": said}) for said in (None, None, "aaa")],
            3,
        ),
    ],
    ids=["chat", "a tool", "responses", "messages", "TGI"],
)
async def test_accounts_count_tokens_and_nothing_else(world: World, path: str, events: list[bytes], made: int) -> None:
    await world.gateway(endpoints=[await sends(world, *events)])
    body = {"model": "sim", "messages": [], "input": "x", "inputs": "x", "stream": True, "max_tokens": 9}
    assert (await world.ask(path=path, body=body)).status == 200
    assert await tokens(world) == made


STREAM = TEXT + FINISH + USAGE + DONE


@pytest.mark.parametrize(
    ("head", "pieces"),
    [
        (HEAD % (b"text/event-stream", b"content-encoding: gzip\r\n"), [gzip.compress(STREAM)]),
        (HEAD % (b"text/event-stream", b"content-encoding: deflate\r\n"), [zlib.compress(STREAM)]),
        (HEAD % (b"application/json", b""), [TEXT, FINISH, USAGE, DONE]),
        (HEAD % (b"text/plain", b""), [TEXT, FINISH, USAGE, DONE]),
        (EVENTS, [STREAM.replace(b"\n", b"\r")]),
        (EVENTS, [STREAM.replace(b"\n", b"\r\n")]),
        (EVENTS, [STREAM[at : at + 11] for at in range(0, len(STREAM), 11)]),
    ],
    ids=["gzip", "deflate", "JSON by its head", "text by its head", "CR", "CRLF", "small pieces"],
)
async def test_usage_that_only_the_gateway_asked_for_stays_with_it(
    world: World, head: bytes, pieces: list[bytes]
) -> None:
    await world.gateway(endpoints=[await sends(world, *pieces, head=head)])
    answer = await world.chat(stream=True)
    assert answer.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") == TEXT + FINISH + DONE
    assert answer.header("content-encoding") is None
    assert await tokens(world) == 100


LISTED = {"usage": {"prompt_tokens": 70.0, "total_tokens": 70.0}, "data": [{"embedding": [0.0123456] * 2000}]}
RANKED = {"id": "r", "results": [{"index": 0}], "meta": {"tokens": {"input_tokens": 70, "output_tokens": 0}}}
SAID = {"choices": [{"message": {"role": "assistant", "content": "word " * 300}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("path", "answer", "counted"),
    [
        ("/v1/embeddings", whole(LISTED), 70),
        ("/v1/embeddings", whole(gzip.compress(json.dumps(LISTED).encode()), b"content-encoding: gzip"), 70),
        ("/v2/rerank", whole(RANKED), 70),
        ("/score", whole({"data": [{"score": 1}], "usage": {"total_tokens": 70}}), 70),
        (CHAT, whole({**SAID, "usage": {"prompt_tokens": 70, "completion_tokens": 30}}), 100),
    ],
    ids=["first, in floats", "packed", "Cohere's", "only in all", "last"],
)
async def test_usage_is_read_wherever_it_is(world: World, path: str, answer: bytes, counted: int) -> None:
    await world.gateway(endpoints=[await answers(world, answer)])
    body = {"model": "sim", "input": "x"} if path != CHAT else {"model": "sim", "messages": []}
    assert (await world.ask(path=path, body=body)).status == 200
    assert await tokens(world) == counted


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "a stream in one piece"])
async def test_a_budget_counts_answers_that_tell_no_usage(world: World, streamed: bool) -> None:
    made = await (sends(world, TEXT * 300 + FINISH + DONE) if streamed else answers(world, whole(SAID)))
    await world.gateway(endpoints=[made], tenants=[{"name": "t", "limits": {"tokens_per_minute": 1000}}])
    headers = {"x-tenant-id": "t"}
    statuses = [(await world.chat_with(headers, stream=streamed, tokens=300)).status for _ in range(10)]
    assert 2 <= statuses.count(200) <= 4
    assert statuses[-1] == 429


@pytest.mark.parametrize(
    ("error", "status", "asked"),
    [
        ({"error": {"message": "overloaded", "type": "server_error", "code": 503}}, 200, "upstream"),
        ({"object": "error", "message": "overloaded", "code": 500}, 200, "upstream"),
        ({"error": {"message": "bad", "type": "invalid_request_error", "code": 400}}, 200, "callers"),
    ],
)
async def test_a_good_status_with_an_error_is_no_answer(
    world: World, error: dict[str, Any], status: int, asked: str
) -> None:
    bad, good = await answers(world, whole(error)), await answers(world, whole(SAID))
    await world.gateway(endpoints=[bad, good], routing={"policy": "round_robin"})
    bodies = [(await world.chat()).json() for _ in range(4)]
    assert [body == error for body in bodies].count(True) == (0 if asked == "upstream" else 2)


async def test_the_word_error_in_a_text_is_an_answer(world: World) -> None:
    said = {"choices": [{"message": {"content": '{"error": {"code": 503}}'}, "finish_reason": "stop"}], "error": None}
    await world.gateway(endpoints=[await answers(world, whole(said))])
    answer = await world.chat()
    assert (answer.status, answer.json()) == (200, said)
    assert await world.metric("penstock_requests_total", model="sim", outcome="completed") == 1


async def test_a_fallback_model_answers_a_stream_whose_client_has_comments_already(world: World) -> None:
    async def dies(peer: Peer, data: bytes) -> bool:
        await peer.send(EVENTS + chunk(b": ping\n\n"))
        return False

    dying, good = await engine(world, dies), await sends(world, TEXT, FINISH, DONE)
    good["models"] = ["small"]
    await world.gateway(endpoints=[dying, good], models={"sim": {"fallback": ["small"]}}, retry={"max_attempts": 1})
    answer = await world.chat(stream=True)
    assert (answer.status, answer.body) == (200, b": ping\n\n" + TEXT + FINISH + DONE)


@pytest.mark.parametrize("kind", [b"application/json", b"application/json; charset=utf-8"])
async def test_an_error_instead_of_the_stream_that_was_asked_for_is_no_answer(world: World, kind: bytes) -> None:
    error = json.dumps({"error": {"message": "overloaded", "code": 503}}).encode()
    bad = await sends(world, error, head=HEAD % (kind, b""))
    good = await sends(world, TEXT, FINISH, DONE)
    await world.gateway(endpoints=[bad, good], routing={"policy": "round_robin"})
    assert [(await world.chat(stream=True)).body for _ in range(4)] == [TEXT + FINISH + DONE] * 4
