"""Each way an engine can fail, and each moment a client can leave, has the outcome of docs/design.md#failure."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import ANY

import openai
import pytest

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import CHAT, NOT_FOUND, Answer, Client, World, chat, fault, request
from tests.gateway.raw_engine import Peer, RawEngine, Script
from tests.patience import WAIT_S

WHOLE_BYTES_MAX = 64 * 1024

QUICK: dict[str, Any] = {"queue": {"max_wait": 0.4}}
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


async def pair(world: World, *, slots: int = 4, **settings: Any) -> tuple[EngineServer, EngineServer]:
    """Two engines; with nothing running, the first one is chosen first."""
    first, second = [await world.engine() for _ in range(2)]
    await world.gateway(slots=slots, **settings)
    return first, second


def at(engine: EngineServer) -> str:
    return engine.url.removeprefix("http://")


# --- before the first byte: taken back, and served elsewhere -----------------------------------------------------


@STREAMED
@pytest.mark.parametrize("slots", ["auto", 16])
async def test_an_engine_that_bounds_its_own_queue_is_full_and_not_broken(
    world: World, slots: int | str, stream: bool
) -> None:
    """vLLM's `--max-num-queued-reqs` below what is sent: each 503 goes back to the queue, and nobody sees one."""
    engines = [await world.engine(max_num_seqs=2, max_num_queued_reqs=3) for _ in range(2)]
    await world.gateway(slots=slots, retry={"max_attempts": 1, "budget": 0}, queue={"max_wait": "60s"})
    states: set[str] = set()

    def note() -> bool:
        states.update(endpoint.state for endpoint in world.picture().endpoints)
        return len(answers) == sum(task.done() for task in answers)

    answers = [world.soon(world.chat(f"number {n}", tokens=3, stream=stream)) for n in range(40)]
    await world.until(note)
    assert [(await answer).status for answer in answers] == [200] * 40
    assert states <= {"up", "held"}
    assert max(engine.log.in_engine_max for engine in engines) <= 3
    assert await world.metric("penstock_requests_total", outcome="completed") == 40
    refused = sum(engine.service.refused for engine in engines)
    assert refused > 0 or slots == "auto", "slots that are found are soon as few as fit"
    assert await world.metric("penstock_requeues_total", reason="busy") == refused
    await world.until_metric(refused, "penstock_endpoint_refusals")


@STREAMED
@pytest.mark.parametrize("kind", ["refuse", "busy", "error"])
async def test_what_one_engine_fails_another_serves(world: World, kind: str, stream: bool) -> None:
    bad, good = await pair(world)
    fault(bad, kind)
    answer = await world.chat(stream=stream)
    assert answer.status == 200
    assert answer.header("x-penstock-endpoint") == at(good)
    assert [endpoint.dispatches_total for endpoint in world.picture().endpoints] == [1, 1]
    causes = {"refuse": ("reset", "stale"), "busy": ("busy",), "error": ("server_error",)}[kind]
    assert sum([await world.metric("penstock_requeues_total", reason=cause) for cause in causes]) == 1


@STREAMED
async def test_an_engine_that_never_answers_is_given_up_and_another_one_asked(world: World, stream: bool) -> None:
    bad, good = await pair(world, timeouts={"first_byte": 0.2})
    fault(bad, "hang")
    answer = await world.chat(stream=stream)
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(good))
    await world.until(lambda: bad.log.entries[0].outcome == "hung")
    await world.until(lambda: bad.service.load == 0)  # the call there was aborted


async def test_a_first_byte_time_out_everywhere_is_a_504_after_the_second(world: World) -> None:
    bad, also = await pair(world, timeouts={"first_byte": 0.2})
    for engine in (bad, also):
        fault(engine, "hang")
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (504, "upstream_timeout")
    assert answer.error()["type"] == "server_error"
    assert len(world.seen()) == 2


async def test_resets_everywhere_are_a_502_after_all_attempts(world: World) -> None:
    for engine in await pair(world):
        fault(engine, "refuse")
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (502, "upstream_error")
    assert sum(endpoint.dispatches_total for endpoint in world.picture().endpoints) == 3


async def test_an_engines_last_error_passes_through_after_all_attempts(world: World) -> None:
    for engine in await pair(world):
        fault(engine, "error")
    answer = await world.chat()
    assert answer.status == 500
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert len(world.seen()) == 3


async def test_retries_are_the_budgets_share_of_requests_and_ten_at_least(world: World) -> None:
    engines = await pair(world, retry={"budget": 0.2})
    for engine in engines:
        fault(engine, "error")
    answers = await asyncio.gather(*(world.chat() for _ in range(100)))
    assert {answer.status for answer in answers} == {500}
    assert 110 <= len(world.seen()) <= 120, "it was 300: a burst of 256 was free"


async def test_without_a_budget_nothing_is_tried_again(world: World) -> None:
    for engine in await pair(world, retry={"budget": 0}):
        fault(engine, "error")
    assert [(await world.chat()).status for _ in range(3)] == [500] * 3
    assert len(world.seen()) == 3


async def test_refused_by_all_ends_with_their_status_and_a_retry_after(world: World) -> None:
    for engine in await pair(world, **QUICK):
        fault(engine, "busy")
    answer = await world.chat()
    assert answer.status == 503
    assert "currently busy" in answer.json()["error"]["message"]
    assert answer.header("x-penstock-reason") == "queue_timeout"
    assert 1 <= int(answer.header("retry-after") or "") <= 60
    assert int(answer.header("x-penstock-queue-ms") or "") >= 399  # whole milliseconds of one that lacked some µs
    assert len(world.seen()) >= 3, "a refusal spends no attempts"


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_with_a_retry_after_is_left_alone_and_another_one_used(world: World, status: int) -> None:
    body = b'{"error": {"message": "slow down"}}'
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nRetry-After: 60\r\nContent-Length: %d\r\n\r\n"
    busy, seen = await world.scripted(head % (status, len(body)) + body)
    await world.engine()
    await world.gateway(endpoints=[{**busy, "slots": 4}, {"url": world.engines[0].url, "slots": 4}])
    answers = [await world.chat() for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    assert len(seen) == 1
    assert [endpoint.state for endpoint in world.picture().endpoints] == ["held", "up"]


async def test_a_caller_hears_the_rest_of_an_engines_retry_after(world: World) -> None:
    head = b"HTTP/1.1 429 X\r\nContent-Type: application/json\r\nRetry-After: 40\r\nContent-Length: 2\r\n\r\n{}"
    busy, seen = await world.scripted(head)
    await world.gateway(endpoints=[{**busy, "slots": 4}], **QUICK)
    answer = await world.chat()
    assert (answer.status, len(seen)) == (429, 1)
    assert 38 <= int(answer.header("retry-after") or "") <= 60
    pinned = await world.ask(path=f"{CHAT}?id={busy['url'].removeprefix('http://')}", body=chat())
    assert (pinned.status, pinned.error()["code"], len(seen)) == (429, "endpoint_overloaded", 1)
    assert 38 <= int(pinned.header("retry-after") or "") <= 60


WHOLE = b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}'


def stale_engine() -> tuple[Script, list[bytes]]:
    """An engine that closes the connection on which its second request comes. Returns its script and the requests."""
    requests: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"GET "):
                await peer.send(NOT_FOUND)
                continue
            requests.append(data)
            if len(requests) == 2:
                return
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            await peer.send(head % len(WHOLE) + WHOLE)

    return script, requests


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?id=e", "/tokenize", "/tokenize?id=e"])
async def test_a_request_lost_on_a_stale_connection_is_sent_again_counted_and_reported(world: World, path: str) -> None:
    script, requests = stale_engine()
    raw = await world.beside(RawEngine(script))
    endpoint = {"url": raw.url, "name": "e", "engine": "openai", "models": ["sim"], "slots": 4}
    await world.gateway(endpoints=[endpoint])
    first, second = [await world.ask(path=path, body=chat()) for _ in range(2)]
    assert (first.status, first.header("x-penstock-attempts")) == (200, None)
    assert (second.status, second.header("x-penstock-attempts")) == (200, "2")
    assert len(requests) == 3
    assert await world.metric("penstock_requeues_total", reason="stale") == 1
    assert [endpoint.state for endpoint in world.picture().endpoints] == ["up"]


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_with_one_attempt_a_request_is_written_to_an_engine_once(world: World, path: str) -> None:
    script, requests = stale_engine()
    raw = await world.beside(RawEngine(script))
    endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4}
    await world.gateway(endpoints=[endpoint], retry={"max_attempts": 1})
    answers = [await world.ask(path=path, body=chat()) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 502]
    assert len(requests) == 2


@pytest.mark.parametrize("queue", [True, False])
async def test_64_connections_that_an_engine_closes_at_once_cost_no_request_and_none_of_the_budget(
    world: World, queue: bool
) -> None:
    came = closed = 0
    all_came = [asyncio.Event(), asyncio.Event()]  # of each of two waves; retries come after both

    async def script(peer: Peer) -> None:
        nonlocal came, closed
        while True:
            if (await peer.request()).startswith(b"GET "):
                await peer.send(NOT_FOUND)
                continue
            came += 1
            wave, of_wave = divmod(came - 1, 64)
            if of_wave == 63 and wave < 2:
                all_came[wave].set()
            if wave < 2:
                await all_came[wave].wait()
            if wave == 1 and len(peer.requests) > 1:  # the gateway had kept this connection
                closed += 1
                return
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            await peer.send(head % len(WHOLE) + WHOLE)

    raw = await world.beside(RawEngine(script))
    endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 64}
    await world.gateway(endpoints=[endpoint], queue={"enabled": queue})
    for _ in range(2):
        answers = await asyncio.gather(*(world.ask(body=chat()) for _ in range(64)))
        assert [answer.status for answer in answers] == [200] * 64
    assert 62 <= closed <= 64  # each of the observer's two questions may have been on a kept one meanwhile
    assert await world.metric("penstock_requeues_total", reason="stale") == closed


async def test_a_request_that_kills_its_connections_is_executed_three_times(world: World) -> None:
    executed = 0

    async def script(peer: Peer) -> None:
        nonlocal executed
        while True:
            data = await peer.request()
            if data.startswith(b"GET "):
                await peer.send(NOT_FOUND)
            elif b"poison" in data:
                executed += 1
                return
            else:
                await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    engines = [await world.beside(RawEngine(script)) for _ in range(4)]
    endpoints = [{"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4} for raw in engines]
    await world.gateway(endpoints=endpoints)
    for _ in range(2):
        await asyncio.gather(*(world.chat() for _ in range(8)))  # kept connections to all of them
    answer = await world.chat("poison")
    assert (answer.status, executed) == (502, 3)


async def test_a_refused_request_keeps_its_place(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    fault(engine, "busy", count=1)
    first = world.soon(world.chat("first"))
    await world.until(lambda: len(engine.log.entries) == 1)
    second = world.soon(world.chat("second", tokens=1))
    assert [(await task).status for task in (first, second)] == [200, 200]
    order = [b"first" in bytes(entry.body or b"") for entry in engine.log.entries if entry.outcome == "finished"]
    assert sorted(order) == [False, True]


async def test_an_engine_that_is_gone_is_found_dead_by_the_first_request_and_found_again(world: World) -> None:
    dead, alive = await pair(world, health={"probe_interval": 60})
    await dead.close()
    answer = await world.chat()
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(alive))
    assert world.picture().endpoints[0].state == "down"
    await world.restart(dead)
    await world.until(lambda: world.picture().endpoints[0].state == "up")


@STREAMED
async def test_a_killed_engines_work_is_done_by_another(world: World, stream: bool) -> None:
    bad = await world.engine(step_s=5.0)  # no first token while we look
    good = await world.engine()
    await world.gateway(slots=8)
    tasks = [world.soon(world.chat(stream=stream)) for _ in range(8)]
    await world.until(lambda: bool(bad.log.entries))
    fault(bad, "die")
    answers = await asyncio.gather(*tasks)
    assert [answer.status for answer in answers] == [200] * 8
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {at(good)}


async def test_a_known_model_with_no_engine_alive_waits_and_is_served_when_one_returns(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    waiter = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    await world.restart(engine)
    assert (await waiter).status == 200


async def test_a_known_model_with_no_engine_alive_is_a_503_when_its_time_is_over(world: World) -> None:
    engine = await world.engine()
    await world.gateway(**QUICK)
    await engine.close()
    answer = await world.chat()
    assert (answer.status, answer.error()["code"], answer.error()["type"]) == (503, "no_endpoint", "server_error")
    assert 1 <= int(answer.header("retry-after") or "") <= 60
    direct = await world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"})
    assert (direct.status, direct.error()["code"]) == (503, "no_endpoint")


async def test_a_request_for_an_empty_pool_has_a_wait_of_its_own(world: World) -> None:
    engine = await world.engine()
    await world.gateway(queue={"max_wait": "600s", "empty_pool_wait": "100ms"})
    assert (await world.chat()).status == 200
    await engine.close()
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (503, "no_endpoint")
    assert 1 <= int(answer.header("retry-after") or "") <= 60


async def test_a_wait_that_is_too_long_is_a_429(world: World) -> None:
    await world.engine(step_s=0.02)
    await world.gateway(slots=1, **QUICK)
    running = await world.streaming(tokens=500)
    await running.begun()
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (429, "queue_timeout")
    assert 1 <= int(answer.header("retry-after") or "") <= 60
    assert len(world.seen()) == 1


async def test_before_the_engines_have_reported_their_models_requests_wait(world: World) -> None:
    engine = await world.engine()
    await engine.close()
    world.engines.clear()
    await world.gateway(endpoints=[{"url": engine.url}])
    waiter = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    world.engines.append(engine)
    await world.restart(engine)
    assert (await waiter).status == 200


# --- after the first byte: a typed error in the stream -----------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_stream_that_dies_ends_with_a_typed_error_event(world: World, path: str) -> None:
    bad, _ = await pair(world)
    fault(bad, "die", after_bytes=1500, count=1)
    client = await world.client(request(path=path, body=chat(tokens=100, stream=True)))
    answer = await client.answer()
    assert answer.status == 200
    *_, broken, end = answer.body.split(b"\n\n")
    assert end == b""
    event = Answer(200, [], broken).events()[0]
    assert event["error"]["code"] == "stream_broken"
    assert broken.startswith(b"event: error\n" if path == "/v1/messages" else b"data: ")
    assert event.get("type") == ("error" if path == "/v1/messages" else None)
    assert len(world.seen()) == 1, "nothing is taken back after the first byte"
    assert await world.metric("penstock_requests_total", outcome="failed", reason="stream_broken") == 1


async def test_the_openai_client_raises_on_a_stream_that_dies(world: World) -> None:
    bad = await world.engine()
    await world.gateway()
    first = await world.streaming(tokens=99)
    await first.begun()
    fault(bad, "die", after_bytes=len(first.seen), count=1)  # between two events
    first.hang_up()
    async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        stream = await client.chat.completions.create(model="sim", messages=messages, max_tokens=99, stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in stream:
                pass


async def test_an_error_inside_of_a_stream_passes_and_counts_as_a_failure(world: World) -> None:
    bad, _ = await pair(world)
    fault(bad, "error", after_bytes=1000, count=1)
    answer = await world.chat(tokens=50, stream=True)
    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.events()[-1]["error"]["type"] == "InternalServerError"
    assert await world.metric("penstock_requests_total", outcome="failed", reason="stream_broken") == 1


async def test_an_abort_inside_a_stream_is_an_error_event_before_done(world: World) -> None:
    """As vLLM ends what runs when it gets SIGTERM: by a finish reason that a client may well take for an end."""
    bad, _ = await pair(world)
    fault(bad, "abort", after_bytes=1000, count=1)
    answer = await world.chat(tokens=50, stream=True)
    error, done = answer.body.split(b"\n\n")[-3:-1]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "stream_broken"
    assert done == b"data: [DONE]"
    assert b'"finish_reason":"abort"' in answer.body
    assert await world.metric("penstock_requests_total", outcome="failed", reason="stream_broken") == 1


WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
WHY = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"data: [DONE]\n\n"


def sse(*events: bytes) -> bytes:
    return SSE_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (*events, b""))


async def test_streams_of_an_engine_without_finish_reasons_pass_unchanged(world: World) -> None:
    endpoint, seen = await world.scripted(sse(WORD, END))
    await world.gateway(endpoints=[endpoint])
    for _ in range(4):
        answer = await world.chat(stream=True)
        assert (answer.status, answer.body) == (200, WORD + END)
    assert len(seen) == 4
    assert await world.metric("penstock_requests_total", outcome="completed") == 4
    assert world.picture().endpoints[0].state == "up"


CALLED = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","type":"function",'
    b'"function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}\n\n'
)
COUNTED = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'


@pytest.mark.parametrize(
    "events",
    [(CALLED, COUNTED, END), (CALLED, COUNTED), (WORD, END), (WORD, b"data:[DONE]\n\n")],
    ids=["usage and done", "usage", "done", "done without a space"],
)
async def test_a_stream_that_ends_with_usage_or_done_is_whole_without_a_finish_reason(
    world: World, events: tuple[bytes, ...]
) -> None:
    endpoint, seen = await world.scripted(sse(WORD, WHY, END), then=sse(*events))
    await world.gateway(endpoints=[endpoint])
    assert (await world.chat(stream=True)).body == WORD + WHY + END
    for _ in range(6):
        answer = await world.chat(stream=True, stream_options={"include_usage": True})
        assert answer.body == b"".join(events)
    assert len(seen) == 7
    assert await world.metric("penstock_requests_total", outcome="completed") == 7
    assert world.picture().endpoints[0].state == "up"


@pytest.mark.parametrize("kind", ["abort", "error"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_stream_that_fails_with_its_first_event_is_asked_for_again(world: World, kind: str, path: str) -> None:
    """As vLLM ends what still queues inside of it: status 200, and then an error, or nothing but `[DONE]`."""
    bad, good = await pair(world)
    fault(bad, kind, after_bytes=0, count=1)
    answer = await world.ask(path=path, body={**chat(stream=True), "prompt": "hello"})
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(good))
    assert b"error" not in answer.body
    assert bad.log.entries[0].status == 200
    assert await world.metric("penstock_requeues_total", reason="server_error") == 1


async def test_if_all_engines_send_empty_streams_the_caller_gets_an_error(world: World) -> None:
    for engine in await pair(world):
        fault(engine, "abort", after_bytes=0)
    answer = await world.chat(stream=True)
    assert (answer.status, answer.error()["code"]) == (502, "upstream_error")


async def test_where_every_engine_fails_at_once_the_last_ones_own_error_passes(world: World) -> None:
    for engine in await pair(world):
        fault(engine, "error", after_bytes=0)
    answer = await world.chat(stream=True)
    assert answer.status == 200
    assert answer.events() == [{"error": ANY}]
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert await world.metric("penstock_requests_total", outcome="failed", reason="upstream_error") == 1


async def test_a_callers_own_mistake_reported_in_the_stream_is_not_retried(world: World) -> None:
    event = b'data: {"error":{"message":"too long","code":400}}\n\n'
    endpoint, requests = await world.scripted(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(event), event)
    )
    await world.gateway(endpoints=[endpoint])
    answer = await world.chat(stream=True)
    assert (answer.status, answer.body, len(requests)) == (200, event, 1)


async def test_a_whole_answer_that_breaks_off_before_its_first_byte_is_asked_for_again(world: World) -> None:
    bad, good = await pair(world)
    fault(bad, "die", after_bytes=0, count=1)
    answer = await world.chat()
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(good))


async def test_a_small_answer_that_breaks_off_is_asked_for_again(world: World) -> None:
    """Nothing of it has reached the client: it is held back until it is whole."""
    bad, good = await pair(world)
    fault(bad, "die", after_bytes=40, count=1)
    answer = await world.chat()
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(good))
    assert bad.log.entries[0].outcome == "died"
    assert await world.metric("penstock_requeues_total", reason="reset") == 1


async def test_a_large_answer_that_breaks_off_is_never_taken_for_a_complete_one(world: World) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (WHOLE_BYTES_MAX + 1)
    endpoint, _ = await world.scripted(head + b" " * 40)
    await world.gateway(endpoints=[endpoint], timeouts={"between_bytes": 0.2})
    client = await world.client(request(body=chat()))
    answer = await client.head()
    assert int(answer.header("content-length") or "") > WHOLE_BYTES_MAX
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.piece()


async def test_a_whole_answer_that_its_engine_aborted_is_asked_for_again(world: World) -> None:
    """As vLLM answers what runs when it is put to sleep: status 200, a few words, and this finish reason."""
    body = b'{"choices":[{"message":{"content":"a few wo"},"finish_reason":"abort"}],"usage":{"completion_tokens":3}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    endpoint, requests = await world.scripted(head + body[:20], body[20:], thinks_s=0.05)
    good = await world.engine()
    settings = [{**endpoint, "slots": 4}, {"url": good.url, "slots": 1}]
    await world.gateway(endpoints=settings, routing={"policy": "round_robin"})
    answer = await world.chat()
    assert (answer.status, answer.header("x-penstock-endpoint"), len(requests)) == (200, at(good), 1)
    assert await world.metric("penstock_requeues_total", reason="server_error") == 1
    await world.until(lambda: world.picture().running == 0)


async def test_if_every_engine_aborts_the_caller_gets_an_error_and_no_half_answer(world: World) -> None:
    body = b'{"choices":[{"message":{"content":"a few wo"},"finish_reason": "abort"}]}'
    endpoint, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await world.gateway(endpoints=[endpoint])
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (502, "upstream_error")
    assert len(requests) == 3


@STREAMED
async def test_an_engine_that_falls_silent_in_mid_answer_is_given_up(world: World, stream: bool) -> None:
    bad, good = await pair(world, timeouts={"between_bytes": 0.2})
    fault(bad, "hang", after_bytes=600 if stream else 100)  # of a stream beyond the role
    answer = await world.chat(tokens=50, stream=stream)
    if stream:
        assert b'"code":"stream_broken"' in answer.body
    else:
        assert (answer.status, answer.header("x-penstock-endpoint")) == (200, at(good))
    await world.until(lambda: bad.service.load == 0)


async def test_an_engine_that_sends_its_head_at_once_may_think_before_its_first_token(world: World) -> None:
    """As vLLM does: from the head to the first token `first_byte` is what counts, not `between_bytes`."""
    endpoint, requests = await world.scripted(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 19\r\n\r\n",
        b'data: {"text":"a"}\n',
        thinks_s=0.5,
    )
    await world.gateway(endpoints=[endpoint], timeouts={"first_byte": 5, "between_bytes": 0.1})
    answer = await world.chat(stream=True)
    assert (answer.status, answer.body) == (200, b'data: {"text":"a"}\n')
    assert len(requests) == 1


# --- metrics pages that lie --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["metrics_garbage", "metrics_hang", "metrics_freeze"])
async def test_a_bad_metrics_page_neither_opens_nor_closes_an_engine(world: World, kind: str) -> None:
    engine = await world.engine(step_s=0.005)
    fault(engine, kind)
    await world.gateway(slots=4)
    answers = await asyncio.gather(*(world.chat(tokens=4) for _ in range(40)))
    assert [answer.status for answer in answers] == [200] * 40
    assert engine.log.in_engine_max == 4


async def test_a_page_that_dies_while_it_says_full_does_not_close_the_engine_for_ever(world: World) -> None:
    engine = await world.engine(step_s=0.005)
    fault(engine, "metrics_freeze", value={"running": 2, "waiting": 3})
    await world.gateway(slots=4)
    await world.until(lambda: world.picture().endpoints[0].engine_waiting == 3)
    waiter = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    fault(engine, "metrics_garbage")
    assert (await waiter).status == 200


# --- clients that leave ------------------------------------------------------------------------------------------


@STREAMED
async def test_a_client_that_disconnects_while_waiting_never_reaches_an_engine(world: World, stream: bool) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    running = await world.streaming(tokens=2000)
    await running.begun()
    waiters = [await world.client(request(body=chat("gone", stream=stream))) for _ in range(3)]
    await world.until(lambda: world.picture().waiting == 3)
    for waiter in waiters:
        waiter.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    running.hang_up()
    await world.idle()
    assert len(engine.log.entries) == 1
    assert await world.metric("penstock_queue_cancellations_total") == 3
    assert await world.metric("penstock_requests_total", outcome="evicted", reason="cancelled") == 3


@STREAMED
async def test_a_client_that_hangs_up_after_a_requeue_cancels_a_queued_request(world: World, stream: bool) -> None:
    """The engine refused the request, so it is back in the queue: it is listed there, and it is no failure."""
    head = b"HTTP/1.1 503 X\r\nContent-Type: application/json\r\nRetry-After: 60\r\nContent-Length: 2\r\n\r\n{}"
    busy, seen = await world.scripted(head)
    await world.gateway(endpoints=[{**busy, "slots": 1}])
    client = await world.client(request(body=chat("again", stream=stream)))
    await world.until(lambda: len(seen) == 1 and world.picture().waiting == 1)
    queue = (await world.ask("GET", "/queue", body=b"")).json()
    assert (queue["waiting"], queue["running"]) == (1, 0), queue
    client.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    await world.idle()
    assert len(seen) == 1
    assert await world.metric("penstock_requests_total", outcome="evicted", reason="cancelled") == 1
    assert await world.metric("penstock_requests_total", outcome="failed") == 0


async def _left(world: World, engine: EngineServer, client: Client) -> None:
    client.hang_up()
    await world.idle()
    await world.until(lambda: engine.engine.in_engine == 0)
    assert [entry.outcome for entry in engine.log.entries] == ["aborted"]
    assert await world.metric("penstock_requests_total", outcome="failed", reason="client_gone") == 1
    assert (await world.chat(tokens=1)).status == 200, "the slot is free"


@STREAMED
async def test_a_disconnect_before_the_first_token_aborts_at_the_engine(world: World, stream: bool) -> None:
    engine = await world.engine(step_s=0.3)
    await world.gateway(slots=1)
    client = await world.client(request(body=chat(tokens=500, stream=stream)))
    await world.until(lambda: engine.engine.in_engine == 1)
    await _left(world, engine, client)


async def test_a_disconnect_in_mid_stream_aborts_at_the_engine(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    client = await world.streaming(tokens=2000)
    await client.begun()
    await _left(world, engine, client)


async def test_a_client_that_stops_reading_stops_the_engines_stream_and_then_loses_its_connection(
    world: World,
) -> None:
    said = b"data: %b\n\n" % (b"x" * 65536)
    endpoint, _ = await world.scripted(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % (400 * len(said)),
        *([said] * 400),
    )
    await world.gateway(endpoints=[endpoint], timeouts={"client_write": 0.3})
    client = await world.streaming()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await world.until(lambda: world.picture().running == 1)
    await world.idle()
    async with asyncio.timeout(WAIT_S):
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await client.rest()) < 400 * len(said)
