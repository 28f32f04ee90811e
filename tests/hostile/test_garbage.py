"""What is over is freed at once: nothing of it stays in a cycle until the collector looks, which it does rarely.

The collector is off in these tests. Each kind of traffic comes and goes, and then it is asked what it would have found.
A soak found uploads, 9 KB each with their exchange, and connections to engines that were given up, with their bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.batch.test_batch import FORM, Batches, form, gateway, jsonl, line
from tests.gateway.conftest import NOT_FOUND, World, chat, request
from tests.gateway.raw_engine import Peer, RawEngine
from tests.hostile.test_files_and_batches import bad_chunk, too_large

TIMES = 5
NONSENSE = (
    b"GET / RTSP/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    request(body=b"[]"),
    request(body=b'{"model":'),
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
PIECE = b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
WHOLE = b'HTTP/1.1 200 OK\r\ncontent-length: 44\r\n\r\n{"choices":[{"index":0,"text":"a"}],"n":"x"}'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


async def engine(peer: Peer) -> None:
    """Answers as the prompt says; not one of ours, whose own garbage would be found here."""
    while True:
        data = await peer.request()
        if data.startswith(b"GET "):
            await peer.send(NOT_FOUND)
        elif b"busy" in data:
            await peer.send(BUSY)
        elif b"refuse" in data:
            return
        elif b"die" in data:
            await peer.send(HEAD, PIECE)
            return
        elif b"endless" in data:
            await peer.send(HEAD, PIECE)
            await peer.reader.read()
            return
        elif b'"stream": true' in data:
            await peer.send(HEAD, PIECE, DONE)
        else:
            await peer.send(WHOLE)


@contextlib.asynccontextmanager
async def nothing_in_cycles() -> AsyncIterator[None]:
    """Of all that is penstock's and is made in here."""
    gc.collect()
    gc.disable()
    try:
        yield
        await asyncio.sleep(0)  # what was called for soon
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(
            type(thing).__qualname__ for thing in gc.garbage if type(thing).__module__.startswith("penstock")
        )
        assert not found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def sent_and_gone(world: World, data: bytes) -> None:
    """The client reads what comes, and leaves."""
    client = await world.client(data)
    client.writer.write_eof()
    await client.rest()
    client.hang_up()


async def answers(world: World) -> None:
    assert (await world.chat()).status == 200
    stream = await world.streaming()
    await stream.answer()
    stream.hang_up()


async def hang_ups(world: World) -> None:
    for data in (request(body=b"x" * 1_000_000), request(body=b"x" * 1000)):
        client = await world.client(data[: len(data) // 2])
        await asyncio.sleep(0)
        client.hang_up()
    stream = await world.streaming("endless")
    await stream.begun()
    stream.hang_up()
    await world.idle()


async def faults(world: World) -> None:
    for content in ("busy", "refuse", "die"):
        for stream in (True, False):
            await sent_and_gone(world, request(body=chat(content, stream=stream)))


async def nonsense(world: World) -> None:
    for data in NONSENSE:
        await sent_and_gone(world, data)


async def uploads(world: World) -> None:
    made = await Batches(world).upload(jsonl(line("a")))
    assert made.status == 200
    assert (await Batches(world).call("DELETE", f"/v1/files/{made.json()['id']}")).status == 200
    whole = form(b"x" * 1000, purpose="batch")
    await sent_and_gone(world, too_large(whole))
    await sent_and_gone(world, bad_chunk(whole))
    await sent_and_gone(world, request("POST", "/v1/files", whole, {"content-type": FORM})[:-20])
    await sent_and_gone(world, request("POST", "/v1/files", b"--edge  ", {"content-type": FORM}))


async def looks(world: World) -> None:
    for path in ("/metrics", "/admin/state", "/v1/models", "/admin/history"):
        assert (await world.ask("GET", path)).status == 200


@pytest.mark.parametrize("kind", [answers, hang_ups, faults, nonsense, uploads, looks])
async def test_finished_objects_do_not_wait_for_the_collector(
    world: World, tmp_path: Path, kind: Callable[[World], Awaitable[None]]
) -> None:
    raw = await world.beside(RawEngine(engine))
    endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4}
    limits = {"max_file": 30_000, "max_line": 20_000}
    gate = await gateway(world, tmp_path, limits=limits, endpoints=[endpoint], retry={"max_attempts": 2})

    async def over() -> None:
        await world.idle()
        await world.until(lambda: gate.server.connections == 0)

    await kind(world)  # what is made once
    await over()
    async with nothing_in_cycles():
        for _ in range(TIMES):
            await kind(world)
        await over()


async def test_a_connection_that_was_given_up_before_it_stood_is_gone(world: World) -> None:
    """An engine that does not go on with TLS: the call's body hung on the frame that its cancellation knew."""
    peers: list[Peer] = []

    async def mute(peer: Peer) -> None:
        peers.append(peer)
        await peer.reader.read()

    raw = await world.beside(RawEngine(mute))
    url = raw.url.replace("http:", "https:")
    gate = await world.gateway(endpoints=[{"url": url, "engine": "openai", "models": ["sim"], "slots": 2}])
    async with nothing_in_cycles():
        for _ in range(TIMES):
            client = await world.streaming("x" * 100_000)
            await world.until(lambda: world.picture().running)
            await asyncio.sleep(0.01)  # it connects
            client.hang_up()
            await world.idle()
        await world.until(lambda: gate.server.connections == 0)
