"""How many turns of the event loop pass before a newcomer has its first byte? Counted: no busy machine changes it.

While 500 streams run, a turn is what all of them brought meanwhile, up to 20 ms, and a newcomer waits for each of its
turns. Here clients and the engine are bare sockets outside the loop, looked after between two turns, so that each of
them has answered before the next turn begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator

import pytest

from tests.gateway.conftest import NOT_FOUND, World, chat, request
from tests.patience import WAIT_S

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 44\r\n\r\n{"choices":[{"index":0,"text":"a"}],"n":"x"}'
ACCEPTED, SENT, ANSWERED = 1, 1, 1  # turns: its socket is taken; its request is read and sent on; the answer is relayed
CONNECTED = 2  # more, for a new connection to the engine: one until it connects, one until it is made
_LENGTH = re.compile(rb"content-length: (\d+)")


class ByHand:
    """An engine that answers at once what is asked of it, each time that it is looked at."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self._peers: dict[socket.socket, bytes] = {}
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            peer, _ = self._listening.accept()
            peer.setblocking(False)
            self._peers[peer] = b""
        for peer, came in tuple(self._peers.items()):
            with contextlib.suppress(BlockingIOError):
                more = peer.recv(1 << 16)
                self._peers[peer] = self._answered(peer, came + more)
                if not more:
                    del self._peers[peer]
                    peer.close()

    def _answered(self, peer: socket.socket, came: bytes) -> bytes:
        """Answer what is whole; returns the rest."""
        head, end, body = came.partition(b"\r\n\r\n")
        length = _LENGTH.search(head.lower())
        if not end or len(body) < (0 if length is None else int(length[1])):
            return came
        peer.sendall(NOT_FOUND if head.startswith(b"GET ") else ANSWER)
        return b""

    def hang_up(self) -> None:
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def close(self) -> None:
        self.hang_up()
        self._listening.close()


@pytest.fixture
async def engine(world: World) -> ByHand:
    """The engine, and a gateway before it."""

    @contextlib.asynccontextmanager
    async def lives() -> AsyncIterator[ByHand]:
        made = ByHand()
        try:
            yield made
        finally:
            made.close()

    made = await world.beside(lives())
    await world.gateway(endpoints=[{"url": made.url, "engine": "openai", "models": ["sim"], "slots": 100}])
    return made


async def turns_of(world: World, engine: ByHand, newcomers: int) -> int:
    """How many turns pass until the last of so many newcomers, who come together, has its first byte."""
    loop = asyncio.get_running_loop()
    clients: list[socket.socket] = []
    told: asyncio.Future[int] = loop.create_future()
    turns = -1

    def between() -> None:
        nonlocal turns
        turns += 1
        try:
            if not turns:
                for _ in range(newcomers):
                    clients.append(socket.create_connection(("127.0.0.1", world.port)))
                    clients[-1].sendall(request(body=chat()))
                    clients[-1].setblocking(False)
            engine.look()
            for client in waiting():
                with contextlib.suppress(BlockingIOError):
                    assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
                    client.close()
        except BaseException as error:
            told.set_exception(error)
            raise
        if waiting():
            loop.call_soon(between)
        else:
            told.set_result(turns)

    def waiting() -> list[socket.socket]:
        return [client for client in clients if client.fileno() >= 0]

    loop.call_soon(between)
    async with asyncio.timeout(WAIT_S):
        return await told


async def test_a_newcomer_has_its_first_byte_after_three_turns(world: World, engine: ByHand) -> None:
    await turns_of(world, engine, 1)  # it makes the connection to the engine
    assert min([await turns_of(world, engine, 1) for _ in range(5)]) == ACCEPTED + SENT + ANSWERED


async def test_simultaneous_newcomers_cost_each_other_no_turn(world: World, engine: ByHand) -> None:
    await turns_of(world, engine, 32)
    assert min([await turns_of(world, engine, 32) for _ in range(5)]) == ACCEPTED + SENT + ANSWERED


async def test_a_new_connection_to_the_engine_costs_two_turns_more(world: World, engine: ByHand) -> None:
    upstreams = [target.upstream for target in world.gate.endpoints.targets.values()]
    turns = []
    for _ in range(5):
        engine.hang_up()
        await world.until(lambda: not any(upstream.statistics().idle for upstream in upstreams))
        turns.append(await turns_of(world, engine, 1))
    assert min(turns) == ACCEPTED + SENT + CONNECTED + ANSWERED
