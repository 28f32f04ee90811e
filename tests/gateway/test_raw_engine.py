"""The engine that plays scripts: whoever hangs up is no failure of it."""

from __future__ import annotations

import asyncio
import socket
import struct

from tests.gateway.conftest import World
from tests.gateway.raw_engine import Peer, RawEngine


async def test_a_caller_that_is_gone_before_its_answer_is_no_failure(world: World) -> None:
    """On uvloop a write to a closed connection is a `RuntimeError`, so busy machines failed tests at their end."""

    async def late(peer: Peer) -> None:
        await peer.request()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()
        await world.until(peer.writer.is_closing)
        await asyncio.sleep(0)
        await peer.send(b"HTTP/1.1 200 OK\r\n", b"\r\n")

    raw = await world.beside(RawEngine(late))
    caller = socket.create_connection(("127.0.0.1", int(raw.url.rpartition(":")[2])))
    caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
    await world.until(lambda: raw.peers and raw.peers[0].is_gone.is_set())
