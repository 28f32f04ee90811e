"""Bad input for the picker: a clear status, no lost lease, no crash."""

from __future__ import annotations

import json

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from penstock.gateway.admin import watch
from penstock.gateway.admin.failing import strangers
from tests.gateway.conftest import World
from tests.gateway.epp.conftest import Envoy, behind
from tests.gateway.epp.test_messages import BODY, USAGE, Proxy, headers, places, pool

ANSWER = json.dumps({"choices": [], "usage": USAGE}).encode()


async def _picked(stream: Proxy) -> None:
    await stream.head()
    await stream.body(BODY)
    await stream.picked()
    await stream.hears_body("request_body")


@pytest.mark.parametrize(
    "then", ["a_body_again", "a_head_again", "trailers_first", "two_answers", "more_after_the_end"]
)
async def test_messages_out_of_order_after_the_pick_end_the_stream_and_its_lease(world: World, then: str) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await _picked(stream)
        assert world.picture().running == 1
        if then == "a_body_again":
            await stream.body(b"{}")
        elif then == "a_head_again":
            await stream.head()
        elif then == "trailers_first":
            await stream.say(response_trailers=ext_proc.HttpTrailers())
        elif then == "two_answers":
            await stream.answered()
            await stream.answered()
        else:
            await stream.answered()
            await stream.answer_body(ANSWER)
            await stream.answer_body(ANSWER)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.to_the_end()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await world.idle()


async def test_an_unknown_objective_is_named_and_served_in_the_default_band(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head(x_llm_d_inference_objective=b"nobody-knows-it")
        await stream.body(BODY)
        await stream.picked()
        await stream.hears_body("request_body")
        await stream.answered()
        await stream.answer_body(ANSWER)
        changed = headers((await stream.hears()).response_headers)
        assert changed["x-penstock-band"] == "standard"
        assert "nobody-knows-it" in changed["x-penstock-warning"]
        await stream.call.done_writing()


@pytest.mark.slow
async def test_a_body_of_100_megabytes_through_envoy_is_a_413_and_holds_no_memory(world: World, envoy: Envoy) -> None:
    await world.engine()
    await behind(world, envoy)
    client = await world.client(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 104857600\r\n\r\n{")
    assert (await client.answer()).status == 413
    assert world.gate.server.bodies_bytes == 0
    assert (await world.chat()).status == 200


async def test_requests_that_a_proxy_sends_past_the_picker_are_reported_as_others_load(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`failure_mode_allow: true`, and no picker where Envoy looks for it."""
    monkeypatch.setattr(strangers, "LASTS_S", 0.3)
    monkeypatch.setattr(watch, "INTERVAL_S", 0.02)
    await world.engine()
    envoy = Envoy(
        engines=places(world),
        failure_mode_allow="true",
        request_body_mode="BUFFERED",  # in duplex mode Envoy fails closed
        request_trailer_mode="SKIP",
    )
    try:
        envoy.wait()
        await world.gateway(slots=8)
        gate, world.port = world.port, envoy.port
        past = [await world.streaming(tokens=5_000) for _ in range(4)]
        heads = [await client.head() for client in past]
        assert {head.header("x-penstock-endpoint") for head in heads} == {None}
        world.port = gate
        said = "Something else has sent requests to 1 of 1 endpoints"
        await world.until(lambda: any(said in record.message for record in caplog.records))
        assert said in (await world.ask("GET", "/admin/state")).json()["headline"]
        for client in past:
            client.hang_up()
    finally:
        envoy.close()
