"""A background response that a proxy carries holds its lease until its engine has computed it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from tests.gateway.conftest import World
from tests.gateway.epp.test_messages import Pool, Proxy
from tests.gateway.proxy.test_background import ASKED, NAME, PATH, RESPONSES, USAGE, Computes
from tests.gateway.raw_engine import RawEngine
from tests.ports import free_port

CREATED = {"type": "response.created", "response": {"id": NAME, "status": "in_progress", "usage": None}}


@asynccontextmanager
async def before(world: World, engine: Computes) -> AsyncIterator[Pool]:
    raw, port = await world.beside(RawEngine(engine)), free_port()
    endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4}
    await world.gateway(endpoints=[endpoint], epp={"listen": f"127.0.0.1:{port}"})
    made = Pool(world, grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    try:
        yield made
        await world.idle()
    finally:
        await made.channel.close()


async def sent(proxy: Proxy, **more: object) -> None:
    await proxy.head(path=RESPONSES)
    await proxy.body(json.dumps({**ASKED, **more}).encode())
    await proxy.picked()
    await proxy.hears_body("request_body")


async def counted_once(world: World) -> None:
    await world.idle()
    for kind, count in (("prompt", 70), ("completion", 30)):
        await world.until_metric(count, "penstock_tokens_total", model="sim", kind=kind)


async def test_the_lease_lasts_after_the_proxys_stream(world: World) -> None:
    engine = Computes()
    async with before(world, engine) as its:
        stream = its.stream()
        await sent(stream)
        await stream.answered()
        await stream.answer_body(json.dumps({"id": NAME, "status": "queued", "usage": None}).encode(), b"")
        assert (await stream.hears()).WhichOneof("response") == "response_headers"
        await stream.hears_body("response_body")
        await stream.call.done_writing()
        await stream.to_the_end()
        await world.until(lambda: engine.asked("GET", PATH))
        assert world.picture().running == 1
        engine.done(usage=USAGE)
        await counted_once(world)


async def test_the_lease_lasts_after_a_stream_that_the_proxy_ends(world: World) -> None:
    engine = Computes()
    async with before(world, engine) as its:
        stream = its.stream()
        await sent(stream, stream=True)
        await stream.answered(kind=b"text/event-stream")
        delta = {"type": "response.output_text.delta", "delta": "Hello"}
        for event in (CREATED, delta):
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            await stream.say(response_body={"body": data.encode()})
        await stream.hears()
        await world.until(lambda: b"Hello" in _seen(world))
        stream.call.cancel()
        await world.until(lambda: engine.asked("GET", PATH))
        assert world.picture().running == 1
        engine.done()
        await counted_once(world)


def _seen(world: World) -> bytes:
    """What came of the answer under way."""
    (journey,) = world.gate.driver.journeys()
    return bytes(journey._answer.tail)  # type: ignore[attr-defined]
