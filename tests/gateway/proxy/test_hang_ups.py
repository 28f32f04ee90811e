"""A slot whose client hung up is used again when the engine has seen it: limits hold through any number of hang-ups."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.http.client.pool import Call
from penstock.http.client.upstream_connection import UpstreamConnection
from tests.gateway.conftest import NOT_FOUND, Client, World
from tests.gateway.raw_engine import Peer, RawEngine
from tests.patience import WAIT_S

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
PIECE = b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)
LIMIT = 2


class Counting:
    """An engine that counts itself, and sees a hang-up only when it looks, as engines do once in a step."""

    def __init__(self, looks_s: float) -> None:
        self.looks_s = looks_s
        self.now = self.most = self.requests = 0

    async def serve(self, peer: Peer) -> None:
        if (await peer.request()).startswith(b"GET "):
            await peer.send(NOT_FOUND)
            return
        self.now += 1
        self.requests += 1
        self.most = max(self.most, self.now)
        try:
            await peer.send(HEAD, PIECE)
            await peer.reader.read()
            await asyncio.sleep(self.looks_s)
        finally:
            self.now -= 1


async def counting(world: World, looks_s: float, **settings: Any) -> Counting:
    engine = Counting(looks_s)
    raw = await world.beside(RawEngine(engine.serve))
    endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": LIMIT}
    await world.gateway(endpoints=[endpoint], **settings)
    return engine


async def test_a_limit_holds_through_hang_ups(world: World) -> None:
    engine = await counting(world, 0.01)

    async def hang_up() -> None:
        client = await world.streaming()
        await client.begun()
        client.hang_up()

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(hang_up() for _ in range(40)))
    assert (engine.requests, engine.most) == (40, LIMIT)
    await world.idle()


async def test_an_engine_that_never_closes_its_side_costs_a_moment_and_no_more(world: World) -> None:
    engine = await counting(world, 1.0)
    clients: list[Client] = [await world.streaming() for _ in range(LIMIT)]
    for client in clients:
        await client.begun()
    waits = await world.streaming()
    await world.until(lambda: world.picture().waiting == 1)
    loop = asyncio.get_running_loop()
    left_s = loop.time()
    for client in clients:
        client.hang_up()
    await waits.begun()
    assert round(loop.time() - left_s, 3) >= 0.1  # the loop's clock counts in milliseconds
    assert engine.requests == LIMIT + 1
    waits.hang_up()


async def test_an_id_that_is_used_again_at_once_is_another_request(world: World) -> None:
    await counting(world, 0.05)
    for _ in range(3):
        client = await world.client_for({"model": "sim", "stream": True}, {"x-request-id": "the-same"})
        await client.begun()
        client.hang_up()
    await world.idle()


@pytest.mark.interpreted  # it has a pool of its own
async def test_a_disconnect_during_a_large_body_to_the_engine_ends_it_at_once() -> None:
    """What is left of the body was written after the end of our side: an error in the loop, found by a soak."""
    pool, transport = Mock(), Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.return_value = 0
    call = Call(b"POST / HTTP/1.1\r\n\r\n", [bytes(8 << 20)], Mock(), is_head_request=False)
    connection = UpstreamConnection(pool, call)
    connection.connection_made(transport)
    assert connection._unsent
    closed: list[bool] = []
    connection.hang_up(lambda: closed.append(True))
    written = transport.write.call_count
    await asyncio.sleep(0)
    assert closed == [True]
    transport.abort.assert_called_once()
    transport.write_eof.assert_not_called()
    assert transport.write.call_count == written
