"""Who waits for a stream is told where it stands, and what follows is what would have come anyway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest

from penstock.gateway.proxy.journey import QueuedJourney
from tests.gateway.conftest import CHAT, NOT_FOUND, Client, World, chat, request
from tests.gateway.raw_engine import Peer, RawEngine

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
TOLD = re.compile(rb"(?:: (?:queued position=\d+(?: eta=\d+\.\ds)?|an engine has it)\n\n)+")
SOON: dict[str, Any] = {"queue": {"heartbeat_after": "50ms"}}


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def refusing(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


class Gated:
    """An engine whose answers wait until they are let go."""

    def __init__(self, *answers: bytes) -> None:
        self._answers: Iterator[bytes] = iter(answers)
        self.requests: list[bytes] = []
        self.go = asyncio.Event()
        self.settings: dict[str, Any] = {}

    async def __call__(self, peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"GET "):
                await peer.send(NOT_FOUND)
                continue
            self.requests.append(data)
            await self.go.wait()
            await peer.send(next(self._answers))


async def gated(world: World, *answers: bytes, slots: int = 1) -> Gated:
    engine = Gated(*answers)
    raw = await world._stack.enter_async_context(RawEngine(engine))
    engine.settings = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": slots}
    return engine


async def waiting(world: World, *, path: str = CHAT, headers: dict[str, str] | None = None, **more: Any) -> Client:
    """A stream that waits because another request has the only slot."""
    await world.client(request(body=chat()))
    await world.until(lambda: world.picture().running == 1)
    client = await world.client(request(path=path, headers=headers, body=chat(stream=True, **more)))
    await world.until(lambda: world.picture().waiting == 1)
    return client


async def body_of(client: Client) -> bytes:
    await client.whole()
    return client.seen


FIRST = refusing(b"200 OK", b"{}")  # the answer of the request that came before


async def test_a_waiting_stream_gets_its_position_and_then_the_engines_bytes(world: World) -> None:
    engine = await gated(world, FIRST, HEAD + chunked(TOKEN, TOKEN, LAST, USAGE, DONE))
    await world.gateway(endpoints=[engine.settings], **SOON)
    client = await waiting(world, stream_options={"include_usage": True})
    head = await client.head()
    assert head.status == 200
    assert head.header("content-type") == "text/event-stream; charset=utf-8"
    assert (head.header("cache-control"), head.header("x-accel-buffering")) == ("no-cache", "no")
    assert head.header("x-request-id")
    assert head.header("x-penstock-band") == "standard"
    assert head.header("x-penstock-endpoint") is None  # nobody knows it yet
    assert await client.piece() == b": queued position=1\n\n"
    engine.go.set()
    body = await body_of(client)
    told = TOLD.match(body)
    assert told is not None
    assert body[told.end() :] == TOKEN + TOKEN + LAST + USAGE + DONE
    assert await world.metric("penstock_requests_total", outcome="completed") == 2


async def test_the_usage_that_nobody_asked_for_is_hidden_after_heartbeats_too(world: World) -> None:
    first = refusing(b"200 OK", b'{"usage":{"prompt_tokens":5,"completion_tokens":1}}')
    engine = await gated(world, first, HEAD + chunked(TOKEN, LAST, USAGE, DONE))
    await world.gateway(endpoints=[engine.settings], **SOON)
    client = await waiting(world)
    await client.begun()
    engine.go.set()
    body = await body_of(client)
    assert b'"include_usage":true' in engine.requests[1]
    assert TOLD.sub(b"", body) == TOKEN + LAST + DONE
    assert await world.metric("penstock_tokens_total", kind="prompt") == 5 + 7


async def test_a_heartbeat_has_the_estimate_once_there_is_one(world: World) -> None:
    await world.engine(step_s=0.02)
    await world.gateway(slots=1, **SOON)
    await world.chat(tokens=10)  # from which the time that a lease takes is learned
    clients = [await world.streaming(tokens=12) for _ in range(3)]
    await world.until(lambda: world.picture().waiting == 2)
    body = await body_of(clients[2]) if await clients[2].head() else b""
    assert re.match(rb": queued position=[12] eta=\d+\.\ds\n\n", body)
    for client in clients[:2]:
        await client.answer()


async def test_anthropics_clients_get_the_pings_they_know(world: World) -> None:
    message = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    engine = await gated(world, FIRST, HEAD + chunked(message))
    await world.gateway(endpoints=[engine.settings], **SOON)
    client = await waiting(world, path="/v1/messages")
    await client.head()
    ping = await client.piece()
    assert ping == b': queued position=1\nevent: ping\ndata: {"type": "ping"}\n\n'
    engine.go.set()
    assert (await body_of(client)).removeprefix(ping) == message


@pytest.mark.parametrize(
    "timeouts",
    [
        {"x-stainless-read-timeout": "0.4"},
        {"x-stainless-timeout": "0.4"},
        {"x-stainless-read-timeout": "600", "x-stainless-timeout": "0.4"},
        {"x-stainless-read-timeout": "0.4", "x-stainless-timeout": "NaN"},
    ],
    ids=str,
)
async def test_a_client_gets_heartbeats_before_its_time_out_while_queued_and_while_an_engine_works(
    world: World, timeouts: dict[str, str]
) -> None:
    engine = await gated(world, FIRST, HEAD + chunked(LAST, DONE), slots=2)
    await world.gateway(endpoints=[engine.settings])  # heartbeats are off otherwise
    client = await world.client(request(headers={**timeouts, "accept-encoding": "gzip"}, body=chat(stream=True)))
    assert (await client.head()).status == 200
    assert await client.piece() == b": an engine has it\n\n"
    assert await client.piece() == b": an engine has it\n\n"  # and again
    assert b"accept-encoding" not in engine.requests[0].lower()  # a packed answer could not follow
    engine._answers = iter([HEAD + chunked(LAST, DONE)])
    engine.go.set()
    assert TOLD.sub(b"", await body_of(client)) == LAST + DONE


@pytest.mark.parametrize(
    "queue",
    [{"heartbeat_after": "100ms"}, {"heartbeat_after": "250ms"}, {"heartbeat_after": "10s"}, {"max_wait": "100ms"}],
    ids=str,
)
async def test_a_clients_read_timeout_holds_beside_heartbeats_of_the_queue(world: World, queue: dict[str, Any]) -> None:
    engine = await gated(world, HEAD + chunked(LAST, DONE))
    await world.gateway(endpoints=[engine.settings], queue=queue)
    client = await world.client(request(headers={"x-stainless-read-timeout": "0.4"}, body=chat(stream=True)))
    assert (await client.head()).status == 200
    assert await client.piece() == b": an engine has it\n\n"
    assert not engine.go.is_set(), "the engine still computes"
    engine.go.set()
    assert TOLD.sub(b"", await body_of(client)) == LAST + DONE


@pytest.mark.parametrize("name", ["x-stainless-read-timeout", "x-stainless-timeout"])
@pytest.mark.parametrize("timeout", ["600", "600000", "NOT_GIVEN", "", "-1", "1e9", "nan"])
async def test_a_client_that_waits_longer_than_the_queue_lets_it_keeps_its_status(
    world: World, name: str, timeout: str
) -> None:
    engine = await gated(world, FIRST)
    await world.gateway(endpoints=[engine.settings], queue={"max_wait": "400ms"})
    client = await waiting(world, headers={name: timeout})
    refused = await client.answer()
    assert (refused.status, refused.error()["code"]) == (429, "queue_timeout")
    engine.go.set()


async def test_answers_that_are_not_streamed_get_no_heartbeats(world: World) -> None:
    engine = await gated(world, FIRST, FIRST)
    await world.gateway(endpoints=[engine.settings], queue={"heartbeat_after": "50ms", "max_wait": "300ms"})
    await waiting(world)
    plain = await world.client(request(body=chat()))
    answer = await plain.answer()
    assert (answer.status, answer.error()["code"]) == (429, "queue_timeout")
    engine.go.set()


@pytest.mark.parametrize(
    ("path", "event"),
    [
        (
            CHAT,
            rb'data: \{"error":\{"message":"[^"]+","type":"rate_limit_error","param":null,"code":"queue_timeout"\}\}',
        ),
        (
            "/v1/messages",
            rb'event: error\ndata: \{"type":"error","error":\{"type":"rate_limit_error",.+"code":"queue_timeout"\}\}',
        ),
        ("/generate_stream", rb'data: \{"error":"[^"]+","error_type":"overloaded","code":"queue_timeout"\}'),
    ],
)
async def test_a_refusal_after_a_heartbeat_is_an_event_in_the_callers_words(
    world: World, path: str, event: bytes
) -> None:
    engine = await gated(world, FIRST)
    await world.gateway(endpoints=[engine.settings], queue={"heartbeat_after": "50ms", "max_wait": "300ms"})
    client = await waiting(world, path=path)
    assert (await client.head()).status == 200
    body = await body_of(client)
    assert re.search(event + rb"\n\n$", body)
    assert await world.metric("penstock_requests_total", outcome="evicted", reason="queue_timeout") == 1
    engine.go.set()


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        (refusing(b"400 Bad", b'{"error": {\n"message": "too long"}}'), {"error": {"message": "too long"}}),
        (refusing(b"404 No", b'{"object":"error","message":"x"}'), {"object": "error", "message": "x"}),
        (
            refusing(b"422 No", b'{"detail":"x"}'),
            {
                "error": {
                    "message": "The engine answered with status 422.",
                    "type": "server_error",
                    "param": None,
                    "code": "upstream_error",
                }
            },
        ),
        (refusing(b"500 Oops", b'{"error":{"message":"CUDA"}}'), {"error": {"message": "CUDA"}}),
    ],
)
async def test_an_engines_refusal_after_a_heartbeat_is_an_event(
    world: World, answer: bytes, event: dict[str, Any]
) -> None:
    engine = await gated(world, FIRST, answer)
    await world.gateway(
        endpoints=[engine.settings], retry={"max_attempts": 1}, accounting={"usage": "off"}, **SOON
    )  # no field of ours is in question
    client = await waiting(world)
    await client.begun()
    engine.go.set()
    lines = [line for line in (await body_of(client)).split(b"\n\n") if line.startswith(b"data: ")]
    assert [json.loads(line[6:]) for line in lines] == [event]
    await world.idle()
    assert await world.metric("penstock_requests_total", reason="upstream_error") == (b" 500 " in answer)


async def test_an_answer_that_is_no_stream_after_a_heartbeat_is_an_error(world: World) -> None:
    engine = await gated(world, FIRST, refusing(b"200 OK", b'{"choices":[]}'))
    await world.gateway(endpoints=[engine.settings], **SOON)
    client = await waiting(world)
    await client.begun()
    engine.go.set()
    assert b'"code":"stream_broken"' in await body_of(client)
    assert await world.metric("penstock_requests_total", reason="stream_broken") == 1


async def test_a_requeue_after_a_heartbeat_is_not_seen(world: World) -> None:
    busy = refusing(b"503 Busy", b"{}")
    engine = await gated(world, FIRST, busy, busy, HEAD + chunked(TOKEN, LAST, DONE))
    await world.gateway(endpoints=[engine.settings], **SOON)
    client = await waiting(world)
    await client.begun()
    engine.go.set()
    assert TOLD.sub(b"", await body_of(client)) == TOKEN + LAST + DONE
    assert await world.metric("penstock_requeues_total", reason="busy") == 2


async def test_a_client_that_leaves_after_a_heartbeat_leaves_the_queue(world: World) -> None:
    engine = await gated(world, FIRST)
    await world.gateway(endpoints=[engine.settings], **SOON)
    client = await waiting(world)
    await client.begun()
    client.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    assert await world.metric("penstock_requests_total", outcome="evicted", reason="cancelled") == 1
    engine.go.set()


async def test_openais_client_reads_on_through_heartbeats(world: World) -> None:
    engine = await gated(world, FIRST, HEAD + chunked(TOKEN, TOKEN, LAST, DONE))
    await world.gateway(endpoints=[engine.settings])
    await world.client(request(body=chat()))
    await world.until(lambda: world.picture().running == 1)
    patience = openai.Timeout(10.0, read=1.5)
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="x", timeout=patience, max_retries=0) as client:

        async def answered() -> list[str | None]:
            stream = await client.chat.completions.create(**chat(), stream=True)
            return [chunk.choices[0].delta.content async for chunk in stream]

        task = asyncio.ensure_future(answered())
        driver = world.gate.driver
        await world.until(lambda: any(isinstance(j, QueuedJourney) and j.beating for j in driver.journeys()))
        beating_since_s = driver.now()
        await world.until(lambda: driver.now() > beating_since_s + 1.0)  # longer than its time-out
        engine.go.set()
        assert await task == ["a", "a", None]


# --- GET /queue, x-ratelimit-* -----------------------------------------------------------------------------------


async def test_a_caller_sees_its_own_place_and_limits_and_nobody_elses(world: World) -> None:
    engine = await gated(world, FIRST, FIRST, FIRST, FIRST)
    limits = {"running": 5, "queued": 9, "queued_tokens": 4000, "requests_per_minute": 60}
    await world.gateway(endpoints=[engine.settings], tenants=[{"name": "team-a", "limits": limits}])
    mine, theirs = {"x-tenant-id": "team-a"}, {"x-tenant-id": "team-b"}
    for name, headers in (("m0", mine), ("t0", theirs), ("m1", mine), ("m2", mine)):
        await world.client(request(headers={**headers, "x-request-id": name}, body=chat()))
        await world.until(partial(world.gate.driver.knows, name))
    seen = (await world.ask("GET", "/queue", headers=mine)).json()
    assert (seen["tenant"], seen["running"], seen["waiting"]) == ("team-a", 1, 2)
    assert [(r["id"], r["position"], r["model"], r["band"]) for r in seen["requests"]] == [
        ("m1", 1, "sim", "standard"),
        ("m2", 2, "sim", "standard"),
    ]
    assert seen["limits"]["running"] == 5
    assert seen["limits"]["queued_tokens"] == 4000
    assert seen["limits"]["queued"] == 9
    assert seen["limits"]["requests_per_minute"]["limit"] == 60
    assert 57 <= seen["limits"]["requests_per_minute"]["remaining"] <= 58
    assert seen["limits"]["tokens_per_minute"] is None
    other = (await world.ask("GET", "/queue", headers=theirs)).json()
    assert ([r["id"] for r in other["requests"]], other["limits"]["running"]) == (["t0"], None)
    assert (await world.ask("POST", "/queue", headers=theirs)).status == 405
    engine.go.set()


async def test_each_answer_reports_the_rest_of_a_rate(world: World) -> None:
    await world.engine()
    limits = {"requests_per_minute": 60, "tokens_per_minute": 600}
    await world.gateway(tenants=[{"name": "team-a", "limits": limits}, {"name": "team-b", "limits": {"running": 5}}])
    answer = await world.ask(body=chat(), headers={"x-tenant-id": "team-a"})
    assert answer.header("x-ratelimit-limit-requests") == "60"
    assert answer.header("x-ratelimit-remaining-requests") == "59"
    assert re.fullmatch(r"\d+ms|\d(\.\d+)?s", answer.header("x-ratelimit-reset-requests") or "")
    assert answer.header("x-ratelimit-limit-tokens") == "600"
    assert int(answer.header("x-ratelimit-remaining-tokens") or "") < 600
    assert re.fullmatch(r"\d+ms|\d(\.\d+)?s", answer.header("x-ratelimit-reset-tokens") or "")
    for tenant in ("team-b", "team-c"):
        unlimited = await world.ask(body=chat(), headers={"x-tenant-id": tenant})
        assert not [name for name, _ in unlimited.headers if name.startswith("x-ratelimit")]
