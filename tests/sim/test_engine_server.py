"""The simulated engine speaks vLLM's HTTP, lets go of what is abandoned, and breaks only as it is told."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import openai
import pytest
import uvloop
import zmq
import zmq.asyncio

from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine import http as engine_http
from penstock.sim.fake_engine import server as engine_server
from penstock.sim.fake_engine.server import EngineServer
from tests.patience import WAIT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PACE = EngineConfig(step_s=0.002)
STILL = EngineConfig(step_s=30.0)  # nothing moves while the test looks
CHAT = "/v1/chat/completions"


class Bench:
    """A served engine and a plain client."""

    def __init__(self, server: EngineServer, http: httpx2.AsyncClient) -> None:
        self.server = server
        self.http = http

    async def log(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.http.get("/sim/log")).json()
        return answer

    def tokens(self) -> int:
        """Said so far to the first request seen."""
        return self.server.log.entries[0].tokens if self.server.log.entries else 0

    async def until(self, claim: Callable[[], bool]) -> None:
        """Ask the server something harmless until the claim holds."""
        async with asyncio.timeout(WAIT_S):
            while not claim():
                await self.http.get("/health")

    async def fault(self, **fault: Any) -> None:
        answer = await self.http.post("/sim/fault", json=fault)
        assert answer.status_code == 200, answer.text

    async def gauges(self) -> dict[str, float]:
        page = (await self.http.get("/metrics")).text
        lines = [line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#")]
        return {name.partition("{")[0]: float(value) for name, value in lines}

    @asynccontextmanager
    async def streaming(self, **body: Any) -> AsyncIterator[httpx2.Response]:
        async with self.http.stream("POST", CHAT, json=chat(stream=True, **body)) as answer:
            yield answer

    @asynccontextmanager
    async def raw(self, data: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        url = httpx2.URL(self.server.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(data)
        try:
            yield reader, writer
        finally:
            writer.close()


@asynccontextmanager
async def bench(config: EngineConfig = PACE, **settings: Any) -> AsyncIterator[Bench]:
    server = EngineServer(config, **settings)
    await server.start()
    try:
        async with httpx2.AsyncClient(base_url=server.url, timeout=WAIT_S) as http:
            yield Bench(server, http)
    finally:
        await server.close()


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": content}], **more}


def raw_post(body: dict[str, Any], path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(data), data)


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def silent(reader: asyncio.StreamReader) -> None:
    """No byte comes, nor an end."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)


# the wire ------------------------------------------------------------------------------------------


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        bench() as at,
        openai.AsyncOpenAI(base_url=at.server.url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        yield sdk


async def test_the_official_client_gets_the_same_words_streamed_or_not(client: openai.AsyncOpenAI) -> None:
    asked: Any = chat("hello " * 60, max_tokens=7)
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 7 + ["length"]
    assert chunks[-1].choices == []
    for usage in (whole.usage, chunks[-1].usage):
        assert usage is not None
        assert (usage.completion_tokens, usage.total_tokens) == (7, usage.prompt_tokens + 7)
    details = chunks[-1].usage and chunks[-1].usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == 96


async def test_completions_and_embeddings_answer_the_official_client(client: openai.AsyncOpenAI) -> None:
    plain = await client.completions.create(model="sim", prompt=[1, 2, 3, 4, 5])
    assert plain.usage is not None
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (5, 16)  # a token id is a token
    stream = await client.completions.create(model="sim", prompt=[1, 2, 3, 4, 5], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == plain.choices[0].text
    one, two = [await client.embeddings.create(model="sim", input=["a", "b"]) for _ in range(2)]
    assert one.data == two.data
    assert [entry.index for entry in one.data] == [0, 1]


async def test_responses_answer_the_official_client(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model="sim", input="hello", max_output_tokens=5)
    assert whole.usage is not None
    assert whole.usage.output_tokens == 5
    stream = await client.responses.create(model="sim", input="hello", max_output_tokens=5, stream=True)
    seen = [event async for event in stream]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.output_text == text


async def test_messages_stream_in_anthropics_shape() -> None:
    async with bench() as at:
        asked = chat(max_tokens=3)
        whole = (await at.http.post("/v1/messages", json=asked)).json()
        answer = await at.http.post("/v1/messages", json=asked | {"stream": True})
        seen = events(answer.text)
        assert [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")] == [
            event["type"] for event in seen
        ]
        text = "".join(event["delta"]["text"] for event in seen if event["type"] == "content_block_delta")
        assert text == whole["content"][0]["text"]
        assert (whole["stop_reason"], seen[-2]["delta"]["stop_reason"]) == ("max_tokens", "max_tokens")
        assert seen[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 3
        assert seen[-1] == {"type": "message_stop"}
        count = await at.http.post("/v1/messages/count_tokens", json=asked)
        assert count.json() == {"input_tokens": whole["usage"]["input_tokens"]}


async def test_scores_and_ranks_wait_for_their_prefill() -> None:
    async with bench() as at:
        ranks = await at.http.post("/rerank", json={"query": "a b", "documents": ["c", "b a"]})
        assert [rank["index"] for rank in ranks.json()["results"]] == [1, 0]
        scores = await at.http.post("/v1/score", json={"text_1": "a", "text_2": ["a", "b"]})
        assert [score["score"] for score in scores.json()["data"]] == [1.0, 0.0]
        assert [entry["tokens"] for entry in (await at.log())["requests"]] == [0, 0]
        assert (await at.http.post("/score", json={})).status_code == 400
        assert (await at.http.post("/v1/rerank", json={})).status_code == 400


async def test_the_small_endpoints_answer_as_vllm_does() -> None:
    async with bench(STILL) as at:
        assert (await at.http.get("/health")).content == b""
        assert (await at.http.get("/ping")).status_code == 200
        assert (await at.http.get("/version")).json() == {"version": engine_server.VERSION}
        (model,) = (await at.http.get("/v1/models")).json()["data"]
        assert (model["id"], model["owned_by"], model["max_model_len"]) == ("sim", "vllm", 32768)
        tokens = (await at.http.post("/tokenize", json={"prompt": "hello wörld"})).json()
        assert (tokens["count"], len(tokens["tokens"])) == (3, 3)
        back = await at.http.post("/detokenize", json={"tokens": tokens["tokens"]})
        assert back.json() == {"prompt": "hello wörld"}
        assert (await at.http.post("/detokenize", json={"tokens": ["x"]})).status_code == 400
        assert (await at.http.get("/nowhere")).status_code == 404
        assert (await at.http.get(CHAT)).status_code == 405


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{nope", 400, "BadRequestError"),
        (b"\xff\xfe", 400, "BadRequestError"),
        (b"[]", 400, "BadRequestError"),
        (b'{"model":"sim"}', 400, "BadRequestError"),
        (b'{"model":"other","messages":[]}', 404, "NotFoundError"),
        (b'{"messages":[],"priority":"high"}', 400, "BadRequestError"),
        (b'{"messages":[],"max_tokens":0}', 400, "BadRequestError"),
        (b'{"messages":[],"max_tokens":99999}', 400, "BadRequestError"),
        (b'{"messages":[],"stream_options":{"include_usage":true}}', 400, "BadRequestError"),
        (b'{"messages":["%b"]}' % (b"x" * 140_000), 400, "BadRequestError"),
    ],
)
async def test_a_wrong_call_is_refused_in_vllms_words(body: bytes, status: int, kind: str) -> None:
    async with bench() as at:
        answer = await at.http.post(CHAT, content=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (status, kind, status)
        assert set(error) == {"message", "type", "param", "code"}
        assert (await at.log())["requests"][0]["outcome"] == "rejected"


async def test_priority_comes_from_the_body_or_from_vllms_header() -> None:
    async with bench() as at:
        await at.http.post(CHAT, json=chat(priority=3, max_tokens=1))
        await at.http.post(CHAT, json=chat(priority=3, max_tokens=1), headers={"x-vllm-priority": "-7"})
        wrong = await at.http.post(CHAT, json=chat(), headers={"x-vllm-priority": "high"})
        assert wrong.status_code == 400
        assert [entry["priority"] for entry in (await at.log())["requests"]][:2] == [3, -7]


async def test_answers_of_open_length_are_drawn_by_the_seed() -> None:
    async def lengths(seed: int) -> list[tuple[int, str]]:
        async with bench(EngineConfig(step_s=0.0001), seed=seed) as at:
            answers = [(await at.http.post(CHAT, json=chat())).json() for _ in range(4)]
            return [(answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) for answer in answers]

    first = await lengths(1)
    assert first == await lengths(1)
    assert first != await lengths(2)
    assert {reason for _, reason in first} == {"stop"}


async def test_requests_are_taken_chunked_pipelined_and_byte_by_byte() -> None:
    body = json.dumps(chat(max_tokens=1)).encode()
    chunked = (
        b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: r-1\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
    ) % (CHAT.encode(), body[:5], len(body) - 5, body[5:])
    async with bench() as at, at.raw(chunked + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n") as (reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"x-request-id: r-1\r\n" in head
        await reader.readuntil(b"}}}")  # the end of its usage
        assert b"version" in await reader.readuntil(b"}")
        for byte in b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        assert b"connection: close" in await reader.read()
        assert (await at.log())["requests"][0]["id"] == "r-1"


async def test_bad_or_too_large_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "BODY_BYTES_MAX", 100)
    async with bench() as at:
        for sent, status in (
            (b"nonsense\r\n\r\n", b"400"),
            (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
            (raw_post(chat("x" * 200)), b"413"),
        ):
            async with at.raw(sent) as (reader, _):
                assert (await reader.read()).startswith(b"HTTP/1.1 " + status)


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "KEEP_ALIVE_S", 0.05)
    async with bench() as at, at.raw(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n") as (reader, _):
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")


async def test_a_new_connection_may_be_slow_with_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "KEEP_ALIVE_S", 0.0)
    async with bench() as at, at.raw(b"") as (reader, writer):
        asked = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
        async with at.raw(asked) as (other, _), asyncio.timeout(WAIT_S):
            await other.read()  # answered, and closed by then
        writer.write(asked)
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")


# the gauges ----------------------------------------------------------------------------------------


async def test_metrics_stand_still_between_steps_while_load_moves_at_once() -> None:
    async with bench(STILL) as at:
        before = (await at.http.get("/metrics")).text
        async with at.raw(raw_post(chat())):
            await at.until(lambda: at.server.engine.in_engine == 1)
            assert (await at.http.get("/metrics")).text == before
            assert (await at.http.get("/load")).json() == {"server_load": 1}
            assert 'vllm:num_requests_running{engine="0",model_name="sim"} 0.0' in before
            assert 'num_gpu_blocks="8192"' in before


async def test_metrics_count_the_work() -> None:
    async with bench() as at:
        for _ in range(2):
            await at.http.post(CHAT, json=chat("hello " * 60, max_tokens=4))
        gauges = await at.gauges()
        assert gauges["vllm:generation_tokens_total"] == 8
        assert gauges["vllm:prefix_cache_hits_total"] == 96
        assert gauges["vllm:num_requests_running"] == gauges["vllm:kv_cache_usage_perc"] == 0
        success = (await at.http.get("/metrics")).text
        assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 2.0' in success


async def test_the_log_shows_requests() -> None:
    async with bench(EngineConfig(step_s=0.002, max_num_seqs=2)) as at:
        await asyncio.gather(*(at.http.post(CHAT, json=chat(max_tokens=5), headers={"X-Who": "me"}) for _ in range(6)))
        log = await at.log()
        assert (log["in_engine"], log["in_engine_max"], log["running_max"], log["waiting_max"]) == (0, 6, 2, 5)
        for entry in log["requests"]:
            assert (entry["outcome"], entry["status"], entry["tokens"]) == ("finished", 200, 5)
            assert entry["headers"]["x-who"] == "me"
            assert entry["body"] == chat(max_tokens=5)
            assert entry["arrived"] <= entry["started"] + 0.05 + 0.01, "steps count from when they were due"
            assert entry["started"] < entry["first_token"] < entry["finished"]
        await at.http.request("DELETE", "/sim/log")
        assert (await at.log())["requests"] == []


# leaving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_waiting_is_aborted(stream: bool) -> None:
    async with bench(EngineConfig(step_s=0.01, max_num_seqs=1)) as at:
        async with at.streaming(max_tokens=5000) as first:
            chunks = first.aiter_bytes()  # held: a dropped iterator closes its response
            await anext(chunks)
            async with at.raw(raw_post(chat(stream=stream))):
                await at.until(lambda: at.server.engine.waiting_now == 1)
            await at.until(lambda: at.server.engine.in_engine == 1)
            assert [entry["outcome"] for entry in (await at.log())["requests"]] == ["open", "aborted"]
        await at.until(lambda: at.server.engine.in_engine == 0)
        assert at.server.engine.pool.used == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_running_is_aborted(stream: bool) -> None:
    async with bench() as at:
        async with at.raw(raw_post(chat(stream=stream, max_tokens=5000))):
            await at.until(lambda: at.tokens() > 3)
        await at.until(lambda: at.server.engine.in_engine == 0)
        (entry,) = (await at.log())["requests"]
        assert entry["outcome"] == "aborted"
        assert entry["started"] <= entry["finished"]
        assert (await at.http.get("/load")).json() == {"server_load": 0}


async def test_a_client_that_leaves_during_prefill_is_aborted() -> None:
    async with bench(STILL) as at:
        async with at.raw(raw_post(chat("x" * 50_000, stream=True))):
            await at.until(lambda: at.server.engine.running_now == 1)
        await at.until(lambda: at.server.engine.in_engine == 0)
        assert at.server.engine.pool.used == 0


async def test_a_slow_reader_holds_no_slot_and_loses_no_token() -> None:
    model, count = "m" * 4000, 3000  # 12 MB of events: more than sockets and buffers take
    async with bench(EngineConfig(step_s=0.0001), model=model) as at:
        url = httpx2.URL(at.server.url)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
            slow.connect((url.host, url.port))
            body = chat(stream=True, max_tokens=count) | {"model": model}
            slow.sendall(raw_post(body).replace(b"host: x", b"connection: close"))
            await at.until(lambda: at.tokens() == count)
            assert at.server.engine.in_engine == 0
            assert at.server.log.entries[0].outcome == "open"
            text = await asyncio.to_thread(lambda: b"".join(iter(lambda: slow.recv(1 << 20), b"")))
        assert text.count(b'"content":" ') == count
        assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


# faults --------------------------------------------------------------------------------------------


async def test_refused_requests_see_a_reset_and_the_next_one_an_answer() -> None:
    async with bench() as at:
        await at.fault(kind="refuse", count=2)
        for _ in range(2):
            async with at.raw(raw_post(chat())) as (reader, _):
                with pytest.raises(ConnectionResetError):
                    await reader.read()
        assert (await at.http.post(CHAT, json=chat(max_tokens=1))).status_code == 200
        assert [entry["outcome"] for entry in (await at.log())["requests"]] == ["refused"] * 2 + ["finished"]


async def test_a_reset_is_a_reset_on_uvloop_too() -> None:
    async def refused() -> None:
        async with bench() as at, at.raw() as (reader, writer):
            await at.fault(kind="refuse")
            writer.write(raw_post(chat()))
            with pytest.raises(ConnectionResetError):
                await reader.read()

    await asyncio.to_thread(uvloop.run, refused())


async def test_a_hanging_request_gets_no_byte_and_is_load_but_no_work() -> None:
    async with bench() as at:
        await at.fault(kind="hang", count=1)
        async with at.raw(raw_post(chat())) as (reader, _):
            await at.until(lambda: len(at.server.log.entries) == 1)
            assert (await at.http.get("/load")).json() == {"server_load": 1}
            assert at.server.engine.in_engine == 0
            await silent(reader)
        load = {"server_load": 1}
        async with asyncio.timeout(WAIT_S):
            while load["server_load"]:
                load = (await at.http.get("/load")).json()
        assert (await at.log())["requests"][0]["outcome"] == "hung"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_hang_after_some_bytes_stops_right_there(stream: bool) -> None:
    async with bench() as at:
        await at.fault(kind="hang", after_bytes=300, count=1)
        async with at.raw(raw_post(chat(stream=stream, max_tokens=20))) as (reader, _):
            await at.until(lambda: at.tokens() == 20)
            await reader.readuntil(b"\r\n\r\n")
            size = int(await reader.readuntil(b"\r\n"), 16) if stream else 300
            body = await reader.readexactly(size)
            if stream:
                await reader.readexactly(2)
                size = int(await reader.readuntil(b"\r\n"), 16)
                body += await reader.readexactly(size + 2)
            assert len(body.rstrip(b"\r\n")) in (299, 300)
            await at.until(lambda: at.server.log.entries[0].outcome == "hung")
            await silent(reader)


async def test_a_busy_engine_answers_as_vllm_does_when_its_queue_is_full() -> None:
    async with bench(EngineConfig(step_s=0.002, max_num_queued_reqs=1)) as at:
        await at.fault(kind="busy", count=1)
        told = await at.http.post(CHAT, json=chat())
        async with at.streaming(max_tokens=5000):
            truly = await at.http.post(CHAT, json=chat())
        assert told.status_code == truly.status_code == 503
        assert told.json() == truly.json()
        assert told.json()["error"]["type"] == "Service Unavailable"
        assert "retry-after" not in told.headers


async def test_an_error_is_a_500_or_an_event_before_done() -> None:
    async with bench() as at:
        await at.fault(kind="error", count=1)
        assert (await at.http.post(CHAT, json=chat())).json()["error"]["code"] == 500
        await at.fault(kind="error", after_bytes=1000, count=1)
        async with at.streaming(max_tokens=500) as answer:
            text = (await answer.aread()).decode()
        assert answer.status_code == 200
        assert events(text)[-1]["error"]["type"] == "InternalServerError"
        assert text.endswith("data: [DONE]\n\n")
        assert all(event["choices"][0]["finish_reason"] is None for event in events(text)[:-1])
        assert [entry["outcome"] for entry in (await at.log())["requests"]] == ["error", "error"]
        assert at.server.engine.in_engine == 0
        await at.fault(kind="error", after_bytes=1000, count=1)
        assert (await at.http.post(CHAT, json=chat())).status_code == 500


@pytest.mark.parametrize("stream", [True, False])
async def test_dying_after_some_bytes_resets_in_the_middle(stream: bool) -> None:
    async with bench() as at:
        await at.fault(kind="die", after_bytes=150, count=1)
        async with at.raw(raw_post(chat(stream=stream, max_tokens=30))) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        await at.until(lambda: at.server.engine.in_engine == 0)
        assert (await at.log())["requests"][0]["outcome"] == "died"
        assert (await at.http.get("/load")).json() == {"server_load": 0}


async def test_dying_resets_all_and_closes_the_door() -> None:
    async with bench() as at, at.raw(raw_post(chat(stream=True, max_tokens=9999))) as (reader, _):
        await reader.readuntil(b"data: ")
        await at.fault(kind="die")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        with pytest.raises(httpx2.TransportError):
            await at.http.get("/health")
        assert at.server.log.entries[0].outcome == "died"


async def test_a_slow_engine_takes_longer_steps_until_the_fault_ends() -> None:
    async with bench() as at:
        await at.fault(kind="slow", factor=10_000)
        async with at.raw(raw_post(chat(stream=True))):
            await at.until(lambda: at.server.engine.running_now == 1)
            due = at.server.engine.next_step_end()
            assert due is not None
            assert due - asyncio.get_running_loop().time() > 15
        await at.fault(kind="none")
        assert (await at.http.get("/sim/fault")).json() == {"faults": []}


async def test_metrics_can_lie_stall_and_stand_still() -> None:
    async with bench() as at:
        await at.fault(kind="metrics_garbage", count=1)
        garbage = await at.http.get("/metrics")
        assert garbage.status_code == 200
        assert b"\xff" in garbage.content
        await at.http.post(CHAT, json=chat(max_tokens=5))
        await at.fault(kind="metrics_freeze", value={"waiting": 9})
        await at.http.post(CHAT, json=chat(max_tokens=5))
        frozen = await at.gauges()
        assert frozen["vllm:generation_tokens_total"] == 5
        assert frozen["vllm:num_requests_waiting"] == 9
        await at.fault(kind="metrics_hang")
        async with at.raw(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n") as (reader, _):
            await silent(reader)
        await at.fault(kind="none")
        assert (await at.gauges())["vllm:generation_tokens_total"] == 10


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "bogus"}, {}, {"kind": "busy", "count": 0}, {"kind": "slow"}, {"kind": "die", "after_bytes": -1},
        {"kind": "metrics_freeze", "value": {"speed": 1}}, {"kind": "busy", "count": "many"},
    ],
)  # fmt: skip
async def test_a_fault_that_makes_no_sense_is_refused(fault: dict[str, Any]) -> None:
    async with bench() as at:
        answer = await at.http.post("/sim/fault", json=fault)
        assert answer.status_code == 400
        assert (await at.http.get("/sim/fault")).json() == {"faults": []}
    if fault.get("kind") == "bogus":
        assert "refuse, hang, busy, error, abort, die, slow" in answer.json()["error"]["message"]


# KV events, the process ----------------------------------------------------------------------------


async def test_kv_events_have_vllms_frames() -> None:
    async with bench(EngineConfig(step_s=0.002, kv_blocks=8), kv_events="tcp://127.0.0.1:*") as at:
        assert at.server.kv is not None
        context = zmq.asyncio.Context()
        listener = context.socket(zmq.SUB)
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.setsockopt(zmq.LINGER, 0)
        listener.connect(at.server.kv.endpoint)
        try:
            seen: list[dict[str, Any]] = []
            sequences: list[int] = []
            async with asyncio.timeout(WAIT_S):
                for number in range(1000):  # the first messages may come before the subscription
                    await at.http.post("/v1/completions", json={"prompt": f"{number:4}" * 40, "max_tokens": 1})
                    if not await listener.poll(0):
                        continue
                    topic, sequence, payload = await listener.recv_multipart()
                    stamp, batch, rank = msgspec.msgpack.decode(payload)
                    assert (topic, rank, stamp > 0) == (b"kv@sim", 0, True)
                    sequences.append(int.from_bytes(sequence, "big"))
                    seen += batch
                    if len(sequences) == 6:
                        break
        finally:
            listener.close()
            context.term()
    assert sequences == list(range(sequences[0], sequences[0] + 6))
    stored = [event for event in seen if event["type"] == "BlockStored"]
    removed = {block for event in seen if event["type"] == "BlockRemoved" for block in event["block_hashes"]}
    assert len(stored) == 6
    assert all(len(event["token_ids"]) == 32 == 16 * len(event["block_hashes"]) for event in stored)
    assert stored[0]["parent_block_hash"] is None
    assert removed & {block for event in stored for block in event["block_hashes"]}


async def test_lost_kv_events_are_replayed_as_vllm_does() -> None:
    anywhere = "tcp://127.0.0.1:*"
    async with bench(kv_events=anywhere, kv_replay=anywhere) as at:
        assert at.server.kv is not None
        for number in range(3):
            await at.http.post("/v1/completions", json={"prompt": f"{number:4}" * 40, "max_tokens": 1})
        told = (await at.http.get("/kv_event_sources")).json()["0"]
        assert told["endpoint"] == at.server.kv.endpoint
        context = zmq.asyncio.Context()
        asking = context.socket(zmq.DEALER)
        asking.setsockopt(zmq.LINGER, 0)
        asking.connect(told["replay_endpoint"])
        try:
            async with asyncio.timeout(WAIT_S):
                for start in (0, 2):
                    await asking.send_multipart([b"", start.to_bytes(8, "big")])
                    frames = [await asking.recv_multipart() for _ in range(4 - start)]
                    numbers = [int.from_bytes(number, "big", signed=True) for _, _, number, _ in frames]
                    assert numbers == [*range(start, 3), -1]
                    assert all(topic == b"kv@sim" and payload for _, topic, _, payload in frames[:-1])
                    assert frames[-1][3] == b""
        finally:
            asking.close()
            context.term()


async def test_a_cleared_cache_finds_nothing() -> None:
    async with bench(kv_events="tcp://127.0.0.1:*") as at:
        for _ in range(2):
            await at.http.post(CHAT, json=chat("x" * 200, max_tokens=1))
            assert (await at.http.post("/reset_prefix_cache")).status_code == 200
        assert [entry["cached_tokens"] for entry in (await at.log())["requests"]] == [0, 0]
        async with at.streaming(max_tokens=5000):
            assert (await at.http.post("/reset_prefix_cache")).status_code == 409


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", "penstock.sim.fake_engine.server", *flags]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(WAIT_S):
            yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def listening(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    line = (await child.stdout.readline()).decode()
    assert line.startswith("engine sim listening on http://127.0.0.1:")
    return line.split()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_prints_its_address_and_exits_quietly(number: signal.Signals) -> None:
    async with process("--port", "0", "--step-ms", "2") as child:
        url = await listening(child)
        async with httpx2.AsyncClient(base_url=url) as http:
            assert (await http.post(CHAT, json=chat(max_tokens=3))).status_code == 200
        child.send_signal(number)
        _, complaints = await child.communicate()
        assert (child.returncode, complaints) == (0, b"")


async def test_the_process_dies_by_the_fault() -> None:
    async with process("--port", "0") as child:
        async with httpx2.AsyncClient(base_url=await listening(child)) as http:
            assert (await http.post("/sim/fault", json={"kind": "die"})).status_code == 200
        assert await child.wait() == 1


async def test_a_failed_start_is_one_line() -> None:
    async with bench() as at:
        port = str(httpx2.URL(at.server.url).port)
        for flags, complaint in (
            (("--port", port), f"penstock engine: cannot listen on 127.0.0.1:{port}: the port is in use\n"),
            (("--port", "99999"), "penstock engine: --port must be between 0 and 65535, got 99999\n"),
            (("--port", "0", "--kv-events", "bogus://x"), "penstock engine: cannot bind --kv-events bogus://x: "),
            (("--slots", "0"), "penstock engine: max_num_seqs must be at least 1, got 0\n"),
        ):
            async with process(*flags) as child:
                _, said = await child.communicate()
                assert child.returncode == 1
                assert said.decode().startswith(complaint)
                assert said.count(b"\n") == 1
