"""The picker's messages: llm-d's hermetic cases by their description, and messages that should not come."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from tests.gateway.conftest import CHAT, World, chat
from tests.patience import WAIT_S
from tests.ports import free_port

Request = ext_proc.ProcessingRequest
DESTINATION, SUBSET = "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset"
NONE, STREAMED, BUFFERED = 0, 1, 2
FULL_DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED


class Proxy:
    """One ext_proc stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def say(self, **message: Any) -> None:
        await self.call.write(Request(**message))

    async def head(
        self,
        method: str = "POST",
        path: str = CHAT,
        *,
        end: bool = False,
        modes: tuple[int, int] | None = None,
        subset: Iterable[str] | None = None,
        **headers: bytes,
    ) -> None:
        values = {":method": method.encode(), ":path": path.encode(), ":authority": b"x", **headers}
        message = Request(request_headers=ext_proc.HttpHeaders(headers=table(values), end_of_stream=end))
        if modes is not None:
            message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.get_or_create_list(SUBSET).extend(list(subset))
        await self.call.write(message)

    async def body(self, *pieces: bytes) -> None:
        for at, piece in enumerate(pieces, 1):
            await self.say(request_body=ext_proc.HttpBody(body=piece, end_of_stream=at == len(pieces)))

    async def answered(self, status: int = 200, kind: bytes = b"application/json", *, end: bool = False) -> None:
        values = {":status": b"%d" % status, "content-type": kind, "x-envoy-upstream-service-time": b"1"}
        await self.say(response_headers=ext_proc.HttpHeaders(headers=table(values), end_of_stream=end))

    async def answer_body(self, *pieces: bytes) -> None:
        for at, piece in enumerate(pieces, 1):
            await self.say(response_body=ext_proc.HttpBody(body=piece, end_of_stream=at == len(pieces)))

    async def hears(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, "the stream ended"
        return message

    async def to_the_end(self) -> None:
        while await self.call.read() is not grpc.aio.EOF:
            pass

    async def hears_body(self, kind: str) -> bytes:
        data = b""
        while True:
            message = await self.hears()
            assert message.WhichOneof("response") == kind, message
            piece = getattr(message, kind).response.body_mutation.streamed_response
            data += piece.body
            if piece.end_of_stream:
                return data  # type: ignore[no-any-return]

    async def picked(self) -> str:
        """The endpoint, the same in both places."""
        message = await self.hears()
        assert message.WhichOneof("response") == "request_headers", message
        place = headers(message.request_headers)[DESTINATION]
        assert message.dynamic_metadata["envoy.lb"][DESTINATION] == place
        assert message.request_headers.response.clear_route_cache
        return place

    async def refused(self) -> tuple[int, dict[str, str], Any]:
        message = await self.hears()
        assert message.WhichOneof("response") == "immediate_response", message
        its = message.immediate_response
        values = {option.header.key: option.header.raw_value.decode() for option in its.headers.set_headers}
        return its.status.code, values, json.loads(its.body)["error"]


def table(values: dict[str, bytes]) -> Any:
    lines = [base_pb2.HeaderValue(key=key.replace("_", "-"), raw_value=value) for key, value in values.items()]
    return base_pb2.HeaderMap(headers=lines)


def headers(part: Any) -> dict[str, str]:
    return {option.header.key: option.header.raw_value.decode() for option in part.response.header_mutation.set_headers}


class Pool:
    """A picker before engines that are only named: nobody sends them anything but the picker's own looks."""

    def __init__(self, world: World, channel: Any, port: int = 0) -> None:
        self.world = world
        self.channel = channel
        self.port = port
        self._process = self.channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=Request.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )

    def stream(self, **metadata: str) -> Proxy:
        return Proxy(self._process(metadata=tuple((key.replace("_", "-"), value) for key, value in metadata.items())))

    async def health(self, service: str) -> bytes:
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        name = service.encode()
        return bytes(await check(b"\n" + bytes([len(name)]) + name))


@asynccontextmanager
async def pool(
    world: World, engines: int = 2, *, host: str = "127.0.0.1", epp: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Pool]:
    for _ in range(engines):
        await world.engine()
    port = free_port()
    await world.gateway(epp={"listen": f"{host}:{port}", "fallbacks": 0, "sample_every": 0, **(epp or {})}, **settings)
    async with another(world, port) as made:
        yield made
        await world.idle()


@asynccontextmanager
async def another(world: World, port: int, credentials: Any = None) -> AsyncIterator[Pool]:
    """A further proxy, with a connection of its own; with TLS if it has credentials."""
    place, options = f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(place, options)
    else:
        channel = grpc.aio.secure_channel(place, credentials, options)
    async with channel:
        yield Pool(world, channel, port)


def places(world: World) -> list[str]:
    return [engine.url.removeprefix("http://") for engine in world.engines]


BODY = json.dumps(chat()).encode()
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


async def whole(stream: Proxy, body: bytes = BODY) -> str:
    """A request to its end; where it went."""
    await stream.head()
    await stream.body(body)
    place = await stream.picked()
    await answered(stream, body)
    return place


async def answered(stream: Proxy, body: bytes = BODY) -> None:
    """The rest of a request that was picked an endpoint."""
    assert await stream.hears_body("request_body") == body
    await stream.answered()
    await stream.answer_body(json.dumps({"choices": [], "usage": USAGE}).encode(), b"")
    assert (await stream.hears()).WhichOneof("response") == "response_headers"
    await stream.hears_body("response_body")
    await stream.call.done_writing()


async def test_a_body_in_many_pieces_is_one_request(world: World) -> None:
    async with pool(world) as its:
        stream = its.stream()
        await stream.head()
        await stream.body(*(BODY[at : at + 7] for at in range(0, len(BODY), 7)), b"")
        assert await stream.picked() in places(world)
        assert await stream.hears_body("request_body") == BODY
        await stream.call.done_writing()


async def test_a_large_body_goes_back_in_pieces_of_62_000_bytes(world: World) -> None:
    body = json.dumps(chat("x" * 150_000)).encode()
    async with pool(world) as its:
        stream = its.stream()
        await stream.head()
        await stream.body(body)
        await stream.picked()
        parts = [(await stream.hears()).request_body.response.body_mutation.streamed_response for _ in range(3)]
        sizes = [len(part.body) for part in parts]
        assert sizes == [62_000, 62_000, len(body) - 124_000]
        await stream.call.done_writing()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_request"),
        (b'{"messages": [], "model": 7}', 400, "bad_request"),
        (json.dumps(chat(model="none")).encode(), 404, "model_not_found"),
    ],
)
async def test_what_no_engine_can_take_is_refused(world: World, body: bytes, status: int, code: str) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head()
        await stream.body(body)
        got, _, error = await stream.refused()
        assert (got, error["code"]) == (status, code)


async def test_without_any_engine_alive_it_is_503_with_the_reason(world: World) -> None:
    engine = await world.engine()
    async with pool(world, 0, queue={"max_wait": 0.3}) as its:
        await engine.close()
        world.engines.clear()
        await world.until(lambda: not any(model.up for model in world.picture().models))
        stream = its.stream()
        await stream.head()
        await stream.body(BODY)
        status, values, error = await stream.refused()
        assert (status, error["code"]) == (503, "no_endpoint")
        assert values["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert int(values["retry-after"]) >= 1


async def test_a_subset_is_kept_to(world: World) -> None:
    async with pool(world) as its:
        for wanted in (*places(world), *places(world)):
            stream = its.stream()
            await stream.head(subset=[wanted, "10.9.9.9:1"])
            await stream.body(BODY)
            assert await stream.picked() == wanted
            await stream.call.done_writing()


async def test_a_subset_of_strangers_is_503(world: World) -> None:
    async with pool(world) as its:
        stream = its.stream()
        await stream.head(subset=["10.9.9.9:1"])
        assert (await stream.refused())[0] == 503


async def test_a_request_of_a_subset_waits_for_its_own_endpoint(world: World) -> None:
    async with pool(world, slots=1) as its:
        first, second = places(world)
        held = its.stream()
        await held.head(subset=[first])
        await held.body(BODY)
        assert await held.picked() == first
        waiting = its.stream()
        await waiting.head(subset=[first])
        await waiting.body(BODY)
        await world.until(lambda: world.picture().waiting == 1)
        other = its.stream()
        await other.head(subset=[second])
        await other.body(BODY)
        assert await other.picked() == second
        held.call.cancel()
        assert await waiting.picked() == first
        await waiting.call.done_writing()
        await other.call.done_writing()


async def test_a_path_below_root_path_is_the_engines_own(world: World) -> None:
    async with pool(world, 1, root_path="/vllm") as its:
        stream = its.stream()
        await stream.head(path=f"/vllm{CHAT}")
        await stream.body(BODY)
        assert headers((await stream.hears()).request_headers)[":path"] == CHAT
        await stream.call.done_writing()


async def test_tokenizing_is_sent_once_even_if_it_fails(world: World) -> None:
    async with pool(world) as its:
        stream = its.stream()
        await stream.head(path="/tokenize")
        await stream.body(b'{"model": "sim", "prompt": "x"}')
        assert await stream.picked() in places(world)
        await stream.hears_body("request_body")
        values = {":status": b"503", "content-type": b"text/plain"}
        await stream.say(response_headers=ext_proc.HttpHeaders(headers=table(values)))
        status, _, error = await stream.refused()
        assert (status, error["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_a_key_of_ours_is_taken_out_whatever_header_brings_it(world: World, header: str) -> None:
    key = "a-key-of-team-a-0123456789"
    tenants = [{"name": "team-a", "keys": ["sha256:" + hashlib.sha256(key.encode()).hexdigest()]}]
    async with pool(world, tenants=tenants, identity={"require_key": True}) as its:
        stream = its.stream()
        brought: dict[str, Any] = {header: key.encode()}
        await stream.head(**brought)
        await stream.body(BODY)
        message = await stream.hears()
        assert message.WhichOneof("response") == "request_headers", message
        assert header in message.request_headers.response.header_mutation.remove_headers
        await stream.call.done_writing()


async def test_an_alias_is_rewritten_in_the_body(world: World) -> None:
    async with pool(world, 1, models={"small": {"to": "sim"}}) as its:
        stream = its.stream()
        await stream.head()
        await stream.body(json.dumps(chat(model="small")).encode())
        head = await stream.hears()
        data = await stream.hears_body("request_body")
        assert json.loads(data)["model"] == "sim"
        assert headers(head.request_headers)["content-length"] == str(len(data))
        await stream.call.done_writing()


async def test_usage_of_a_stream_is_counted_and_what_we_asked_for_is_taken_out(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head()
        await stream.body(json.dumps(chat(stream=True)).encode())
        await stream.picked()
        assert json.loads(await stream.hears_body("request_body"))["stream_options"] == {"include_usage": True}
        await stream.answered(kind=b"text/event-stream")
        event = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
        last = {"choices": [], "usage": USAGE}
        sent = [b"data: %b\n\n" % json.dumps(part).encode() for part in (event, last)]
        await stream.answer_body(sent[0], sent[1], b"data: [DONE]\n\n", b"")
        assert (await stream.hears()).WhichOneof("response") == "response_headers"
        assert await stream.hears_body("response_body") == sent[0] + b"data: [DONE]\n\n"
        await stream.call.done_writing()
        await world.idle()
        assert await world.metric("penstock_tokens_total", kind="completion") == 4


async def test_a_refused_field_of_ours_is_left_out_of_the_next_request(world: World) -> None:
    async with pool(world, 1) as its:
        asked: list[bool] = []
        for status in (400, 200):
            stream = its.stream()
            await stream.head()
            await stream.body(json.dumps(chat(stream=True)).encode())
            await stream.picked()
            asked.append("stream_options" in json.loads(await stream.hears_body("request_body")))
            await stream.answered(status)
            await stream.answer_body(b'{"error":{"message":"Extra inputs are not permitted: stream_options"}}')
            await stream.call.done_writing()
            await stream.to_the_end()
            await world.idle()
        assert asked == [True, False]


async def test_an_answer_in_many_pieces_is_counted(world: World) -> None:
    async with pool(world, 1) as its:
        await whole(its.stream())
        await world.idle()
        assert await world.metric("penstock_tokens_total", kind="completion") == 4


async def test_a_buffered_request_is_answered_with_its_body(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head(modes=(BUFFERED, FULL_DUPLEX))
        assert not headers((await stream.hears()).request_headers)
        await stream.body(BODY)
        message = await stream.hears()
        assert message.WhichOneof("response") == "request_body"
        assert headers(message.request_body)[DESTINATION] == places(world)[0]
        assert message.request_body.response.body_mutation.body == BODY
        await stream.call.done_writing()


@pytest.mark.parametrize(
    ("modes", "line"),
    [
        ((NONE, FULL_DUPLEX), "request_body_mode: NONE"),
        ((STREAMED, FULL_DUPLEX), "request_body_mode: STREAMED"),
        ((FULL_DUPLEX, BUFFERED), "response_body_mode: BUFFERED"),
    ],
)
async def test_a_filter_that_cannot_work_is_reported(
    world: World, modes: tuple[int, int], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head(modes=modes)
        status, _, error = await stream.refused()
        assert status == 502
        assert line in error["message"]
        assert line in caplog.text
        assert line in json.loads((await world.ask("GET", "/admin/state")).body)["headline"]
    caplog.clear()


@pytest.mark.parametrize("mode", [FULL_DUPLEX, BUFFERED])
@pytest.mark.parametrize("waits", [False, True])
async def test_trailers_of_a_request_are_answered_after_its_head_and_body(
    world: World, mode: int, *, waits: bool
) -> None:
    """Also if they come while the request is queued."""
    async with pool(world, 1, slots=1) as its:
        runs, stream = its.stream(), its.stream()
        if waits:
            await runs.head()
            await runs.body(BODY)
            await runs.picked()
        await stream.head(modes=(mode, mode if mode == FULL_DUPLEX else NONE))
        await stream.say(request_body=ext_proc.HttpBody(body=BODY))
        await stream.say(request_trailers=ext_proc.HttpTrailers())
        if waits:
            await world.until(lambda: world.picture().waiting == 1)
            runs.call.cancel()
        kinds = [(await stream.hears()).WhichOneof("response") for _ in range(3)]
        assert kinds == ["request_headers", "request_body", "request_trailers"]
        stream.call.cancel()
        await world.idle()


@pytest.mark.parametrize("first", ["body", "answer", "answer_body", "trailers", "nothing", "two_heads"])
async def test_messages_out_of_order_end_the_stream_with_a_clear_status(world: World, first: str) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        if first == "body":
            await stream.body(b"{}")
        elif first == "answer":
            await stream.answered()
        elif first == "answer_body":
            await stream.answer_body(b"{}")
        elif first == "trailers":
            await stream.say(request_trailers=ext_proc.HttpTrailers())
        elif first == "nothing":
            await stream.say()
        else:
            await stream.head()
            await stream.head()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.to_the_end()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_body_that_is_too_large_is_refused_by_its_length_and_by_its_bytes(world: World) -> None:
    async with pool(world, 1, limits={"max_body": 10_000}) as its:
        told = its.stream()
        await told.head(content_length=b"100000000")
        assert (await told.refused())[0] == 413
        silent = its.stream()
        await silent.head()
        await silent.say(request_body=ext_proc.HttpBody(body=b"x" * 10_001))
        assert (await silent.refused())[0] == 413
        assert world.gate.server.bodies_bytes == 0


async def test_a_body_that_never_ends_is_a_408(world: World) -> None:
    async with pool(world, 1, timeouts={"client_body": 0.05}) as its:
        stream = its.stream()
        await stream.head()
        await stream.say(request_body=ext_proc.HttpBody(body=b"{"))
        assert (await stream.refused())[0] == 408


async def test_a_body_that_drips_is_a_408_when_its_time_in_all_is_over(world: World) -> None:
    async with pool(world, 1, timeouts={"client_body_total": 0.3}) as its:
        stream = its.stream()
        await stream.head()
        refused = asyncio.ensure_future(stream.refused())
        while not refused.done():
            await stream.say(request_body=ext_proc.HttpBody(body=b" "))
            await asyncio.sleep(0.02)
        assert (await refused)[0] == 408


async def test_headers_that_are_no_utf8_pass(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head(x_tenant_id=b"\xff\xfe", x_llm_d_inference_objective=b"unknown")
        await stream.body(BODY)
        answer = await stream.hears()
        assert answer.WhichOneof("response") in ("request_headers", "immediate_response")
        await stream.call.done_writing()


async def test_a_stream_that_ends_gives_its_lease_back(world: World) -> None:
    async with pool(world, 1, slots=1) as its:
        for _ in range(3):
            stream = its.stream()
            await stream.head()
            await stream.body(BODY)
            await stream.picked()
            stream.call.cancel()
        assert await whole(its.stream()) == places(world)[0]


async def test_health_is_that_of_the_three_services(world: World) -> None:
    async with pool(world, 1) as its:
        for service in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            assert await its.health(service) == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await its.health("else")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        world.gate.driver.leaving = True  # from SIGTERM on
        assert await its.health("readiness") == b"\x08\x02"
        assert await its.health("liveness") == b"\x08\x01"
