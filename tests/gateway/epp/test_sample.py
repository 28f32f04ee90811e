"""Where bodies of answers do not come, a few are asked for: they teach the pace, and measure the estimate."""

from __future__ import annotations

import json

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode

from penstock.gateway.epp import unseen
from tests.gateway.conftest import World, chat
from tests.gateway.epp.conftest import Envoy, behind
from tests.gateway.epp.test_messages import BUFFERED, NONE, STREAMED, USAGE, Pool, Proxy, pool

EVENT = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}]}).encode() + b"\n\n"
LAST = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"


async def _answered(its: Pool, *, stream: bool, kind: bytes) -> tuple[Proxy, ProcessingMode | None]:
    """A request up to its answer's head: the stream, and the mode that is asked for."""
    made = its.stream()
    await made.head(modes=(BUFFERED, NONE))
    await made.hears()
    await made.body(json.dumps(chat(stream=stream)).encode())
    assert (await made.hears()).WhichOneof("response") == "request_body"
    await made.answered(kind=kind)
    message = await made.hears()
    assert message.WhichOneof("response") == "response_headers"
    return made, message.mode_override if message.HasField("mode_override") else None


async def _shown(made: Proxy, *pieces: bytes) -> None:
    """The body comes: each piece is let pass as it is."""
    for at, piece in enumerate(pieces, 1):
        await made.answer_body(piece) if at == len(pieces) else await made.say(response_body={"body": piece})
        message = await made.hears()
        assert message.WhichOneof("response") == "response_body"
        assert not message.response_body.HasField("response")
    await made.call.done_writing()
    await made.to_the_end()


async def test_the_first_answer_and_then_one_in_so_many_is_sampled(world: World) -> None:
    async with pool(world, 1, epp={"sample_every": 2}) as its:
        asked = []
        for _ in range(5):
            made, mode = await _answered(its, stream=True, kind=b"text/event-stream")
            asked.append(None if mode is None else (mode.response_body_mode, mode.response_trailer_mode))
            await made.call.done_writing()
            await made.to_the_end()
        whole = (STREAMED, ProcessingMode.SEND)
        assert asked == [whole, None, whole, None, whole]


async def test_no_sample_is_taken_if_it_is_switched_off(world: World) -> None:
    async with pool(world, 1, epp={"sample_every": 0}) as its:
        made, mode = await _answered(its, stream=True, kind=b"text/event-stream")
        assert mode is None
        await made.call.done_writing()
        await made.to_the_end()


async def test_a_reload_switches_samples_on(world: World) -> None:
    async with pool(world, 1) as its:
        world.document["epp"]["sample_every"] = 1
        await world.gate.reload()
        made, mode = await _answered(its, stream=True, kind=b"text/event-stream")
        assert mode is not None
        await made.call.done_writing()
        await made.to_the_end()


async def test_a_sampled_stream_is_charged_by_its_tokens_and_measures_the_estimate(world: World) -> None:
    async with pool(world, 1, epp={"sample_every": 1}) as its:
        unseen.paces.learn(world.engines[0].url.removeprefix("http://"), 1_000_000.0, 2)  # estimates are one token
        made, _ = await _answered(its, stream=True, kind=b"text/event-stream")
        await _shown(made, EVENT, EVENT, EVENT, EVENT, LAST)
        await world.idle()
        assert await world.metric("penstock_tokens_total", kind="completion") == 4
        assert await world.metric("penstock_epp_estimate_ratio_count") == 1
        assert await world.metric("penstock_epp_estimate_ratio_sum") == 0.25


async def test_a_sampled_whole_answer_is_charged_by_its_usage(world: World) -> None:
    async with pool(world, 1, epp={"sample_every": 1}) as its:
        made, _ = await _answered(its, stream=False, kind=b"application/json")
        await _shown(made, json.dumps({"choices": [], "usage": USAGE}).encode())
        await world.idle()
        assert await world.metric("penstock_tokens_total", kind="prompt") == 10
        assert await world.metric("penstock_tokens_total", kind="completion") == 4


async def test_a_filter_that_ignores_the_request_for_bodies_loses_nothing(world: World) -> None:
    async with pool(world, 1, epp={"sample_every": 1}) as its:
        made, mode = await _answered(its, stream=True, kind=b"text/event-stream")
        assert mode is not None
        await made.call.done_writing()
        await made.to_the_end()
        await world.idle()
        assert await world.metric("penstock_requests_total", outcome="completed") == 1


async def test_envoy_shows_a_sample_and_passes_it_unchanged(world: World) -> None:
    envoy = Envoy(bodies="NONE", request_body_mode="BUFFERED", request_trailer_mode="SKIP", allow_mode_override="true")
    try:
        envoy.wait()
        await world.engine()
        await behind(world, envoy, sample_every=1)
        for _ in range(3):
            answer = await world.chat(tokens=7, stream=True)
            assert sum(bool(event["choices"][0]["delta"].get("content")) for event in answer.events()) == 7
            assert (await world.chat(tokens=3)).json()["usage"]["completion_tokens"] == 3
            await world.idle()
        world.port = world.gate.port
        assert await world.metric("penstock_epp_estimate_ratio_count") == 2, "of the first one no pace was known"
    finally:
        envoy.close()
