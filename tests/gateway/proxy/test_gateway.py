"""What passes through the gateway passes as it came, over real sockets, whichever API it belongs to."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from typing import Any

import openai
import pytest

from penstock.engines.base import Model
from penstock.gateway import serve
from tests.gateway.conftest import CHAT, Answer, World, chat, fault, request
from tests.gateway.raw_engine import Peer, RawEngine
from tests.ports import free_port

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
ODD = (
    b' {\n"model" :\t"sim" , "messages":[{"role":"user","content":"\\u00e4 \xc3\xa4"}],'
    b'"max_tokens":2.0e0,"x":[1e400]}\r\n'
)
PATHS: dict[str, dict[str, Any]] = {
    CHAT: chat(),
    "/v1/completions": {"model": "sim", "prompt": "hello", "max_tokens": 3},
    "/v1/responses": {"model": "sim", "input": "hello", "max_output_tokens": 3},
    "/v1/messages": chat(),
    "/v1/messages/count_tokens": chat(),
    "/v1/embeddings": {"model": "sim", "input": ["hello", "there"]},
    "/v1/rerank": {"model": "sim", "query": "a b", "documents": ["a", "b c"]},
    "/rerank": {"model": "sim", "query": "a b", "documents": ["a", "b c"]},
    "/v1/score": {"model": "sim", "text_1": "a", "text_2": ["a", "b"]},
    "/tokenize": {"model": "sim", "prompt": "hello"},
    "/detokenize": {"model": "sim", "tokens": [1751477356]},
}


@pytest.mark.parametrize("path", PATHS)
async def test_each_path_is_served_as_the_engine_serves_it(world: World, path: str) -> None:
    engine = await world.engine()
    await world.gateway()
    answer = await world.ask(path=path, body=PATHS[path])
    assert answer.status == 200
    assert answer.header("x-penstock-endpoint") == engine.url.removeprefix("http://")
    assert answer.header("content-type") == "application/json"
    assert isinstance(answer.json(), dict)
    if world.seen():
        assert world.seen()[0].path == path


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_stream_arrives_token_by_token(world: World, path: str) -> None:
    await world.engine(step_s=0.05)
    await world.gateway()
    client = await world.client(request(path=path, body={**PATHS[path], "stream": True}))
    answer = await client.begun()
    assert answer.status == 200
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    assert answer.header("x-accel-buffering") == "no"
    assert world.picture().running == 1, "the first token is here before the last one is said"
    pieces = 1
    while await client.piece():
        pieces += 1
    assert pieces >= 3
    assert client.seen.count(b"data: ") >= 4
    await world.idle()


async def test_what_an_engine_streams_reaches_the_client_byte_for_byte(world: World) -> None:
    said = (
        b'data: {"choices":[{"delta":{"content":"\xf0\x9f\x8c\x8a"}}]}\r\n\r\n: odd\n\n'
        b'data:{"finish_reason":"stop"}\n\n'
    )
    endpoint, _ = await world.scripted(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Odd: a  b\r\nTransfer-Encoding: chunked\r\n\r\n",
        *(b"1\r\n%b\r\n" % said[at : at + 1] for at in range(len(said))),
        b"0\r\n\r\n",
    )
    await world.gateway(endpoints=[endpoint])
    answer = await world.ask(body=chat(stream=True))
    assert answer.body == said
    assert answer.header("x-odd") == "a  b"


async def test_the_body_reaches_the_engine_byte_for_byte(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint])
    assert (await world.ask(body=ODD)).status == 200
    assert requests[0].endswith(b"\r\n\r\n" + ODD)


async def test_a_large_body_and_a_large_answer_pass_unchanged(world: World) -> None:
    said = b"[" + b"1.25," * 300_000 + b"0]"
    endpoint, requests = await world.scripted(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said), said
    )
    await world.gateway(endpoints=[endpoint])
    body = json.dumps(chat("ü" * 1_000_000)).encode()
    answer = await world.ask(body=body)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(said).digest()
    assert requests[0].endswith(body)


async def test_headers_pass_both_ways_but_those_of_one_hop_do_not(world: World) -> None:
    endpoint, requests = await world.scripted(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Odd: 1\r\n"
        b"Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Request-Id: theirs\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    await world.gateway(endpoints=[endpoint])
    client = await world.client(
        b"POST /v1/completions?a=%20b&c HTTP/1.1\r\nHost: gateway\r\nConnection: keep-alive, X-Secret\r\n"
        b"X-Secret: 1\r\nTE: trailers\r\nProxy-Authorization: p\r\nKeep-Alive: 3\r\nUpgrade: h2c\r\n"
        b"Authorization: Bearer mine\r\nX-Custom: \xc3\xa4\r\nX-Custom: two\r\nX-Request-ID: abc-1\r\n"
        b'Content-Length: 15\r\n\r\n{"model":"sim"}'
    )
    answer = await client.answer()
    upper, _, _ = requests[0].partition(b"\r\n\r\n")
    lines = upper.split(b"\r\n")
    assert lines[0] == b"POST /v1/completions?a=%20b&c HTTP/1.1"
    assert b"X-Custom: \xc3\xa4" in lines
    assert b"X-Custom: two" in lines
    assert b"Authorization: Bearer mine" in lines
    assert b"x-request-id: abc-1" in lines
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert names.count(b"content-length") == names.count(b"host") == names.count(b"x-request-id") == 1
    for hop in (b"x-secret", b"te", b"proxy-authorization", b"keep-alive", b"upgrade", b"connection"):
        assert hop not in names
    assert [value for name, value in answer.headers if name == "set-cookie"] == ["a=1", "b=2"]
    assert answer.header("x-odd") == "1"
    assert answer.header("x-hop") is None
    assert answer.header("keep-alive") == "timeout=620", "our own"
    assert [value for name, value in answer.headers if name == "x-request-id"] == ["abc-1"]


async def test_a_request_gets_an_id_where_it_brings_none_or_a_bad_one(world: World) -> None:
    await world.engine()
    await world.gateway()
    given = [await world.chat(), await world.ask(body=chat(), headers={"x-request-id": "x" * 129})]
    ids = [answer.header("x-request-id") for answer in given]
    assert [entry.id for entry in world.seen()] == ids
    assert all(name is not None and name.startswith("req-") for name in ids)
    assert ids[0] != ids[1]


async def test_two_requests_with_one_id_are_two_requests(world: World) -> None:
    await world.engine()
    await world.gateway()
    twice = request(body=chat(tokens=20, stream=True), headers={"x-request-id": "same"})
    clients = [await world.client(twice) for _ in range(3)]
    for client in clients:
        assert (await client.answer()).header("x-request-id") == "same"
    assert [entry.outcome for entry in world.seen()] == ["finished"] * 3


@pytest.mark.virtual_time
async def test_an_answer_has_headers_for_its_endpoint_and_its_wait(world: World) -> None:
    await world.engine(step_s=0.03)
    await world.gateway(slots=1, endpoints=[{"url": world.engines[0].url, "name": "gpu-0", "slots": 1}])
    first = world.soon(world.chat(tokens=4))
    await world.until(lambda: world.picture().running == 1)
    second = await world.chat()
    assert second.header("x-penstock-endpoint") == "gpu-0"
    assert second.header("x-penstock-band") == "standard"
    assert int(second.header("x-penstock-queue-ms") or "") >= 50
    assert int((await first).header("x-penstock-queue-ms") or "") < 50


async def test_a_caller_may_lower_its_band_and_not_raise_it(world: World) -> None:
    await world.engine()
    await world.gateway()
    bands = {"batch": "batch", "interactive": "standard", "nonsense": "standard"}
    for asked, given in bands.items():
        answer = await world.ask(body=chat(), headers={"X-Penstock-Band": asked})
        assert answer.header("x-penstock-band") == given


# --- models and credentials ------------------------------------------------------------------------------------


async def test_models_are_the_union_of_what_the_engines_list(world: World) -> None:
    await world.engine(model="a")
    await world.engine(model="b", max_model_len=1000)
    await world.engine(model="b", max_model_len=500)
    await world.gateway(models={"c": {"to": "b"}})
    models = {model["id"]: model for model in (await world.ask("GET", "/v1/models")).json()["data"]}
    assert sorted(models) == ["a", "b", "c"]
    assert models["b"]["max_model_len"] == 500
    assert models["c"]["root"] == "b"
    assert (await world.ask("GET", "/v1/models/b")).json() == models["b"]
    missing = await world.ask("GET", "/v1/models/d%20e")
    assert (missing.status, missing.error()["code"]) == (404, "model_not_found")
    assert "`d e`" in missing.error()["message"]


async def test_requests_go_where_their_model_is(world: World) -> None:
    for name in ("a", "b"):
        await world.engine(model=name)
    await world.gateway()
    for name in ("b", "a", "b"):
        assert (await world.ask(body={**chat(), "model": name})).json()["model"] == name
    assert [len(engine.log.entries) for engine in world.engines] == [1, 2]


async def test_an_alias_is_replaced_and_nothing_else(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], models={"gpt": {"to": "sim"}})
    body = b'{"messages": [{"model": "gpt"}] ,\n"mod\\u0065l" : "gpt","x":"model"}'
    assert (await world.ask(body=body)).status == 200
    assert requests[0].endswith(b'{"messages": [{"model": "gpt"}] ,\n"mod\\u0065l" : "sim","x":"model"}')


@pytest.mark.parametrize("model", ["sim", "gpt"])
async def test_a_transcription_passes_as_the_form_it_came_in(world: World, model: str) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], models={"gpt": {"to": "sim"}})
    form = (
        b'--xX\r\nContent-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'
        b'RIFF\x00\xff name="model"\r\n\r\n--xx\r\n--xX\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b'
        b"\r\n--xX--\r\n"
    )
    kind = {"content-type": 'multipart/form-data; boundary="xX"'}
    answer = await world.ask(path="/v1/audio/transcriptions", body=form % model.encode(), headers=kind)
    assert answer.status == 200
    assert requests[0].endswith(b"\r\n\r\n" + form % b"sim")
    assert b'content-type: multipart/form-data; boundary="xX"' in requests[0]


async def test_an_engine_gets_its_own_key_and_never_the_callers(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[{**endpoint, "api_key": "engine-key"}])
    await world.ask(body=chat(), headers={"Authorization": "Bearer mine", "X-Api-Key": "mine"})
    assert b"authorization: Bearer engine-key\r\n" in requests[0]
    assert b"mine" not in requests[0]


async def test_a_packed_body_arrives_unpacked(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint])
    answer = await world.ask(body=gzip.compress(ODD), headers={"content-encoding": "gzip"})
    assert answer.status == 200
    assert requests[0].endswith(b"\r\n\r\n" + ODD)
    assert b"content-encoding" not in requests[0].lower()
    assert b"content-length: %d\r\n" % len(ODD) in requests[0].lower()


@pytest.mark.parametrize("path", ["/tokenize", CHAT, "/v1/messages", "/v1/embeddings", "/completion", "/api/chat"])
async def test_a_model_may_be_left_out_where_one_is_served(world: World, path: str) -> None:
    """Its adapters and aliases do not count. The body passes as it came: vLLM takes one without a model."""
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], models={"gpt": {"to": "sim"}})
    listed = [Model("sim", {"id": "sim"}), Model("lora", {"id": "lora", "parent": "sim"})]
    world.gate.endpoints._catalog.listed("e", listed)
    for body in (b'{"prompt":"x"}', b'{"model":null}'):
        assert (await world.ask(path=path, body=body)).status == 200
        assert requests[-1].endswith(b"\r\n\r\n" + body)


async def test_a_model_is_named_where_several_are_served(world: World) -> None:
    for model in ("one", "two"):
        await world.engine(model=model)
    await world.gateway()
    answer = await world.ask(body={"messages": []})
    assert (answer.status, answer.error()["code"], answer.error()["param"]) == (400, "bad_request", "model")
    assert answer.error()["message"] == "The request names no `model`, and not exactly one is served."


async def later(world: World, **settings: Any) -> int:
    """A gateway whose engine is not there yet; that one's port."""
    port = free_port()
    await world.gateway(endpoints=[{"url": f"http://127.0.0.1:{port}"}], **settings)
    return port


async def test_a_request_without_a_model_waits_until_one_is_known(world: World) -> None:
    port = await later(world)
    asked = [world.soon(world.ask(path=path, body={"prompt": "x"})) for path in ("/completion", "/v1/completions")]
    gone = await world.client(request(path="/completion", body={"prompt": "x"}))
    await world.until(lambda: world.gate.server.connections == 3)
    gone.hang_up()
    engine = await world.engine(port=port)
    assert [(await answer).status for answer in asked] == [404, 200], "the simulated engine has no `/completion`"
    assert len(engine.log.entries) == 1


@pytest.mark.parametrize(
    ("queue", "refused"),
    [
        ({"max_wait": "100ms"}, ["no_endpoint", "no_endpoint"]),
        ({"max_wait": "100ms", "max_requests": 1}, ["no_endpoint", "queue_full"]),
        ({"max_wait": "100ms", "max_requests": 0}, ["queue_full", "queue_full"]),
    ],
)
async def test_a_request_without_a_model_waits_within_the_bounds_of_the_queue(
    world: World, queue: dict[str, Any], refused: list[str]
) -> None:
    await later(world, queue=queue)
    answers = await asyncio.gather(*(world.ask(path="/v1/completions", body={"prompt": "x"}) for _ in range(2)))
    assert sorted(answer.error()["code"] for answer in answers) == refused
    assert {answer.header("retry-after") for answer in answers} == {"1"}


async def test_a_gateway_that_is_ready_knows_its_engines(world: World) -> None:
    """What they serve, how they order, and what they cost: the first request goes where all others do."""
    dear, cheap = await world.engine(), await world.engine()
    world.engines.clear()  # whose models are else waited for
    endpoints = [{"url": dear.url, "name": "dear", "price": 9}, {"url": cheap.url, "name": "cheap", "price": 1}]
    await world.gateway(endpoints=endpoints, admission={"engine_priority": True})
    world.engines += [dear, cheap]
    first = await world.ask(body=chat())
    assert (first.status, first.header("x-penstock-endpoint")) == (200, "cheap")
    assert cheap.log.entries[0].priority is not None
    assert (await world.ask(path=f"{CHAT}?id=dear", body=chat())).status == 200
    assert (await world.ask("GET", "/ready")).json()["models"] == ["sim"]


async def test_an_engine_that_does_not_answer_holds_up_no_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "FIRST_LOOK_S", 0.05)
    silent = await world.beside(RawEngine(Peer.gone))
    await world.gateway(endpoints=[{"url": silent.url, "slots": 1}])
    assert (await world.ask("GET", "/ready")).status == 200


async def test_an_engines_own_refusal_passes_as_it_is(world: World) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.chat(stream_options={"include_usage": True})
    assert answer.status == 400
    assert answer.json()["error"]["type"] == "BadRequestError"
    assert answer.header("x-penstock-reason") is None
    assert await world.metric("penstock_requests_total", outcome="completed", model="sim") == 1


async def test_usage_that_only_the_gateway_asked_for_stays_with_it(world: World) -> None:
    await world.engine()
    await world.gateway()
    quiet = await world.chat(stream=True)
    assert all(event["choices"] for event in quiet.events())
    assert b"include_usage" in bytes(world.seen()[0].body or b"")
    asked = await world.chat(stream=True, stream_options={"include_usage": True})
    assert asked.events()[-1]["usage"]["completion_tokens"] == 3
    assert await world.metric("penstock_tokens_total", kind="completion") == 6


async def test_with_accounting_off_a_streamed_body_is_not_touched_either(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], accounting={"usage": "off"})
    body = b'{ "model":"sim","stream" : true }'
    assert (await world.ask(body=body)).status == 200
    assert requests[0].endswith(b"\r\n\r\n" + body)


# --- pinned ----------------------------------------------------------------------------------------------------


async def test_a_pinned_request_goes_to_its_endpoint_or_is_refused_at_once(world: World) -> None:
    busy, idle = [await world.engine(step_s=0.02) for _ in range(2)]
    await world.gateway(
        endpoints=[{"url": busy.url, "name": "a", "slots": 1}, {"url": idle.url, "name": "b", "slots": 1}]
    )
    running = await world.client(request(path=f"{CHAT}?id=a", body=chat(stream=True, tokens=500)))
    await running.begun()

    overloaded = await world.ask(path=f"{CHAT}?id=a", body=chat())
    assert (overloaded.status, overloaded.error()["code"]) == (429, "endpoint_overloaded")
    assert overloaded.error()["type"] == "rate_limit_error"
    assert 1 <= int(overloaded.header("retry-after") or "") <= 60
    assert (await world.ask(path=f"{CHAT}?x=1&id=b", body=chat())).header("x-penstock-endpoint") == "b"
    unknown = await world.ask(path=f"{CHAT}?id=c", body=chat())
    assert (unknown.status, unknown.error()["code"]) == (404, "endpoint_not_found")
    twice = await world.ask(path=f"{CHAT}?id=a&id=b", body=chat())
    assert (twice.status, twice.error()["code"], twice.error()["param"]) == (400, "bad_request", "id")
    fault(idle, "busy")
    refused = await world.ask(path=f"{CHAT}?id=b", body=chat())
    assert refused.status in (503, 429), "never queued: the engine refuses, or the gateway if a probe came first"
    assert len(busy.log.entries) == 1


async def test_a_tokenizer_call_may_be_pinned_too_and_takes_no_slot(world: World) -> None:
    for _ in range(2):
        await world.engine(step_s=0.02)
    await world.gateway(
        endpoints=[{"url": engine.url, "name": f"e{n}", "slots": 1} for n, engine in enumerate(world.engines)]
    )
    for n in (1, 0, 1):
        answer = await world.ask(path=f"/tokenize?id=e{n}", body={"prompt": "x"})
        assert answer.header("x-penstock-endpoint") == f"e{n}"
    assert (await world.ask(path="/tokenize?id=no", body={"prompt": "x"})).error()["code"] == "endpoint_not_found"
    assert [endpoint.dispatches_total for endpoint in world.picture().endpoints] == [0, 0]


# --- switched off, and own paths -------------------------------------------------------------------------------


async def test_with_queueing_off_nothing_waits_and_slots_do_not_limit(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1, queue={"enabled": False})
    clients = [await world.streaming(tokens=30) for _ in range(8)]
    for client in clients:
        await client.begun()
    assert engine.log.in_engine_max == 8
    for client in clients:
        client.hang_up()


async def test_with_queueing_off_the_first_requests_wait_until_the_engines_report_their_models(
    world: World,
) -> None:
    engine = await world.engine()
    world.engines.clear()  # whose models are else waited for
    await world.gateway(endpoints=[{"url": engine.url}], queue={"enabled": False})
    world.engines.append(engine)
    assert (await world.ask("GET", "/readyz")).status == 200
    answers = await asyncio.gather(*(world.chat() for _ in range(20)), world.ask(body=chat() | {"model": "other"}))
    assert [answer.status for answer in answers] == [200] * 20 + [404]


async def test_own_paths_answer_without_any_engine(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9", "name": "gone"}])
    for path in ("/health", "/healthz", "/livez", "/version", "/metrics", "/v1/models"):
        assert (await world.ask("GET", path)).status == 200, path
    for path in ("/health", "/metrics", "/v1/models", "/queue", "/nothing"):
        answer = await world.ask("GET", path, headers={"X-Request-Id": "mine"})
        assert answer.header("x-request-id") == "mine", path
    for path in ("/ready", "/readyz"):
        ready = await world.ask("GET", path)
        assert ready.status == 200
        assert ready.json()["missing"] == {"models": [], "endpoints": ["gone"]}
    head = await world.client(request("HEAD", "/health"))
    answer = await head.head()
    assert (answer.status, answer.header("content-length")) == (200, "15")


async def test_pipelined_requests_are_answered_in_turn(world: World) -> None:
    await world.engine()
    await world.gateway()
    client = await world.client(b"".join(request(body=chat(), headers={"x-request-id": f"r{n}"}) for n in range(4)))
    answers: list[Answer] = [await client.answer() for _ in range(4)]
    assert [answer.header("x-request-id") for answer in answers] == ["r0", "r1", "r2", "r3"]


# --- the official client ---------------------------------------------------------------------------------------


async def test_the_openai_client_works(world: World) -> None:
    for _ in range(2):
        await world.engine()
    await world.gateway(slots=1)
    async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="sim", messages=messages, max_tokens=5)
        text = whole.choices[0].message.content
        assert text
        stream = await client.chat.completions.create(model="sim", messages=messages, max_tokens=5, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == text
        assert (await client.completions.create(model="sim", prompt="x", max_tokens=4)).usage
        assert len((await client.embeddings.create(model="sim", input="x")).data) == 1
        assert (await client.responses.create(model="sim", input="x", max_output_tokens=16)).output_text
        assert [model.id async for model in client.models.list()] == ["sim"]
        assert (await client.models.retrieve("sim")).id == "sim"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nobody", messages=messages)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


async def test_the_openai_client_understands_a_full_queue(world: World) -> None:
    await world.engine(step_s=0.02)
    await world.gateway(slots=1, queue={"max_requests": 0})
    running = await world.streaming(tokens=500)
    await running.begun()
    async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as full:
            await client.completions.create(model="sim", prompt="x")
    assert full.value.code == "queue_full"
    assert 1 <= int(full.value.response.headers["retry-after"]) <= 60
