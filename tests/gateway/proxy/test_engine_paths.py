"""The engines' own inference paths pass with a lease, and what they stream is counted and ended as they mean it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config.paths import BUILT_IN, PathKind
from tests.gateway.conftest import World
from tests.gateway.openai.test_usage import SSE, chunked

NDJSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
EVALUATED = {"total_duration": 9, "prompt_eval_count": 26, "prompt_eval_duration": 3, "eval_count": 4}


def whole(body: dict[str, Any] | list[Any], status: bytes = b"200 OK") -> bytes:
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(data) + data


def lines(*said: dict[str, Any]) -> list[bytes]:
    """Ollama's stream: a chunk per line."""
    pieces = [json.dumps(line).encode() + b"\n" for line in said]
    return [NDJSON, *chunked(pieces)[1:]]


def said(content: str) -> dict[str, Any]:
    return {"model": "sim", "message": {"role": "assistant", "content": content}, "done": False}


DONE = {
    "model": "sim",
    "message": {"role": "assistant", "content": ""},
    "done": True,
    "done_reason": "stop",
    **EVALUATED,
}
OLLAMA = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}


async def tokens(world: World) -> dict[str, float]:
    kinds = ("prompt", "cached_prompt", "completion")
    return {kind: await world.metric("penstock_tokens_total", kind=kind) for kind in kinds}


async def one_engine(world: World, *pieces: bytes, thinks_s: float = 0.0, **settings: Any) -> list[bytes]:
    endpoint, requests = await world.scripted(*pieces, thinks_s=thinks_s)
    await world.gateway(endpoints=[{**endpoint, "slots": 1}], **settings)
    return requests


@pytest.mark.parametrize(
    "path", [path.replace("*", "x") for path, kind in BUILT_IN.items() if kind is not PathKind.FREE]
)
async def test_each_path_is_asked_for_under_a_lease_and_passes_as_it_came(world: World, path: str) -> None:
    requests = await one_engine(world, whole({"fine": True}))
    body = {"model": "sim", "unknown": {"to": "us"}}
    answer = await world.ask(path=path, body=body, headers={"x-own": "kept"})
    assert (answer.status, answer.json()) == (200, {"fine": True})
    head, _, sent = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(f"POST {path} HTTP/1.1\r\n".encode())
    assert b"x-own: kept" in head
    assert json.loads(sent) == body
    assert await world.metric("penstock_dispatches_total") == 1


@pytest.mark.parametrize("path", [path for path, kind in BUILT_IN.items() if kind is PathKind.FREE])
async def test_what_costs_next_to_nothing_takes_no_lease(world: World, path: str) -> None:
    await one_engine(world, whole({"fine": True}))
    assert (await world.ask(path=path, body={"model": "sim", "content": "x"})).json() == {"fine": True}
    assert await world.metric("penstock_dispatches_total") == 0


async def test_a_stream_of_lines_is_passed_as_it_comes_and_counted(world: World) -> None:
    pieces = lines(said("one"), said("two"), said("three"), DONE)
    await one_engine(world, *pieces)
    answer = await world.ask(path="/api/chat", body=OLLAMA)
    assert [json.loads(line) for line in answer.body.splitlines()] == [said("one"), said("two"), said("three"), DONE]
    assert answer.header("content-type") == "application/x-ndjson"
    assert answer.header("x-accel-buffering") == "no"
    assert await tokens(world) == {"prompt": 26, "cached_prompt": 0, "completion": 4}
    assert await world.metric("penstock_requests_total", outcome="completed") == 1
    assert await world.metric("penstock_ttft_seconds_count") == 1, "it streams unless it says that it shall not"


async def test_the_first_line_is_the_first_token(world: World) -> None:
    """So the prompt counts as computed while the rest is still made."""
    pieces = lines(said("one"), DONE)
    await one_engine(world, b"".join(pieces[:2]), *pieces[2:], thinks_s=0.3)
    task = world.soon(world.ask(path="/api/chat", body=OLLAMA))
    await world.until(lambda: world.picture().endpoints[0].leases == 1)
    await world.until(lambda: world.picture().endpoints[0].reserved == 0)
    assert not task.done()
    assert (await task).status == 200


async def test_an_answer_that_shall_not_stream_is_whole_and_counted(world: World) -> None:
    await one_engine(world, whole(DONE))
    answer = await world.ask(path="/api/generate", body={"model": "sim", "prompt": "hello", "stream": False})
    assert answer.json() == DONE
    assert await tokens(world) == {"prompt": 26, "cached_prompt": 0, "completion": 4}
    assert await world.metric("penstock_ttft_seconds_count") == 0


async def test_a_stream_of_lines_without_done_is_broken_and_ends_with_an_error_line(world: World) -> None:
    await one_engine(world, *lines(said("one"), said("two")))
    answer = await world.ask(path="/api/chat", body=OLLAMA)
    told = [json.loads(line) for line in answer.body.splitlines()]
    assert told[:2] == [said("one"), said("two")]
    assert told[2]["code"] == "stream_broken"
    assert isinstance(told[2]["error"], str)
    assert await world.metric("penstock_requests_total", reason="stream_broken") == 1


async def test_an_error_line_of_the_engine_is_a_failure_and_passes_as_it_is(world: World) -> None:
    await one_engine(world, *lines(said("one"), {"error": "out of memory"}))
    answer = await world.ask(path="/api/chat", body=OLLAMA)
    assert [json.loads(line) for line in answer.body.splitlines()] == [said("one"), {"error": "out of memory"}]
    assert await world.metric("penstock_requests_total", reason="stream_broken") == 1


async def test_a_stream_that_begins_with_an_error_is_asked_for_elsewhere(world: World) -> None:
    broken, _ = await world.scripted(*lines({"error": "model runner has unexpectedly stopped"}))
    well, _ = await world.scripted(*lines(said("one"), DONE))
    endpoints = [{**broken, "slots": 1, "price": 1}, {**well, "slots": 1, "price": 2}]
    await world.gateway(endpoints=endpoints)
    answer = await world.ask(path="/api/chat", body=OLLAMA)
    assert json.loads(answer.body.splitlines()[-1]) == DONE
    assert await world.metric("penstock_requeues_total") == 1


async def test_ollama_gets_errors_in_its_own_shape(world: World) -> None:
    await one_engine(world, whole(DONE))
    refused = await world.ask(path="/api/chat", body={**OLLAMA, "model": "other"})
    assert refused.status == 404
    assert refused.json().keys() == {"error", "code"}
    assert refused.json()["code"] == "model_not_found"
    assert isinstance(refused.json()["error"], str)


async def test_a_name_without_a_tag_is_the_latest_of_that_name(world: World) -> None:
    endpoint, requests = await world.scripted(whole(DONE))
    await world.gateway(endpoints=[{**endpoint, "models": ["llama3:latest"]}])
    body = {"model": "llama3", "prompt": "hello", "stream": False}
    assert (await world.ask(path="/api/generate", body=body)).status == 200
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2]) == body, "as it came"


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_llamacpps_own_completions_tell_what_they_cost(world: World, *, streamed: bool) -> None:
    timings = {"cache_n": 7, "prompt_n": 5, "prompt_ms": 1.5, "predicted_n": 3, "predicted_ms": 2.5}
    last = {"content": "", "stop": True, "tokens_predicted": 3, "prompt": "x" * 9000, "timings": timings}
    if streamed:
        events = [{"content": "a", "stop": False}, {"content": "b", "stop": False}, last]
        pieces = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
        await one_engine(world, SSE, *chunked(pieces)[1:])
    else:
        await one_engine(world, whole(last))
    answer = await world.ask(path="/completion", body={"prompt": "hello", "n_predict": 3, "stream": streamed})
    assert answer.status == 200
    assert await tokens(world) == {"prompt": 12, "cached_prompt": 7, "completion": 3}


async def test_what_an_engine_does_not_do_at_all_is_asked_once_and_counts_as_no_failure(world: World) -> None:
    """llama.cpp without `--embeddings`: three of these would take it out, and chats with it."""
    requests = await one_engine(world, whole({"error": {"code": 501, "message": "no"}}, b"501 Not Implemented"))
    for _ in range(4):
        assert (await world.ask(path="/embedding", body={"content": "x"})).status == 501
    assert len(requests) == 4
    assert world.picture().endpoints[0].state == "up"


@pytest.mark.parametrize(
    "own", [{"n_predict": 5}, {"options": {"num_predict": 5}}, {"sampling_params": {"max_new_tokens": 5}}]
)
async def test_an_engines_own_cap_on_an_answer_is_read(world: World, own: dict[str, Any]) -> None:
    """What is estimated of the answer is no more than the cap."""
    answer = whole({"fine": True})
    await one_engine(world, answer[:20], answer[20:], thinks_s=0.2)
    path = "/api/generate" if "options" in own else "/completion"
    task = world.soon(world.ask(path=path, body={"model": "sim", "prompt": "x", **own}))
    await world.until(lambda: world.gate.driver.scheduler.inspect().leases)
    (entry,) = world.gate.driver.scheduler.inspect().leases.values()
    assert entry.output_tokens <= 5
    await task
