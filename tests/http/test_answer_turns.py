"""Thousands of streams with bytes at once leave the loop's turns short, and each stream gets its share."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock

import pytest

from penstock.http.client.answer_turns import AnswerTurns
from penstock.http.client.call import Call
from penstock.http.client.upstream_connection import UpstreamConnection
from penstock.http.client.values import UpstreamLimits, UpstreamTimeouts
from tests.gateway.raw_engine import on_both_loops

if TYPE_CHECKING:
    from penstock.http.client.values import Headers, UpstreamError

pytestmark = pytest.mark.interpreted  # its connections and pools are not the real ones


class _Reader:
    """A connection that notes when it is paused and resumed."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def pause_turn(self) -> None:
        self._log.append(f"-{self._name}")

    def resume_turn(self) -> None:
        self._log.append(f"+{self._name}")


async def test_a_turn_of_too_many_reads_pauses_the_later_ones_and_512_go_on_in_each_turn() -> None:
    log: list[str] = []
    turns = AnswerTurns()
    readers = [cast("UpstreamConnection", _Reader(log, str(number))) for number in range(3000)]
    for reader in readers:
        turns.read(reader)
    assert log == [f"-{number}" for number in range(2047, 3000)]
    log.clear()
    await asyncio.sleep(0)
    assert log == [f"+{number}" for number in range(2047, 2559)]
    log.clear()
    turns.read(readers[2047])
    assert log == ["-2047"], "while others wait for their turn"
    log.clear()
    await asyncio.sleep(0)
    assert log == [f"+{number}" for number in (*range(2559, 3000), 2047)]
    log.clear()
    for reader in readers[:2047]:
        turns.read(reader)
    assert log == []


async def test_reads_of_several_turns_pause_nobody() -> None:
    log: list[str] = []
    turns = AnswerTurns()
    reader = cast("UpstreamConnection", _Reader(log, "it"))
    for _ in range(20):
        for _ in range(1000):
            turns.read(reader)
        await asyncio.sleep(0)
    assert log == []


class _Endless:
    """An answer that brings more with every read."""

    def __init__(self, engine: socket.socket) -> None:
        self._engine = engine
        self.reads = 0

    def on_response(self, status: int, headers: Headers, /) -> None: ...

    def on_data(self, data: bytes, /) -> None:
        self.reads += 1
        self._engine.send(b"5\r\ndata\n\r\n")

    def on_end(self) -> None: ...
    def on_error(self, error: UpstreamError, /) -> None: ...


@on_both_loops
async def test_1100_endless_streams_leave_the_loop_its_turns_and_all_are_read() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
    loop, turns = asyncio.get_running_loop(), AnswerTurns()
    pool = Mock(timeouts=UpstreamTimeouts(), limits=UpstreamLimits(), turns=turns)
    sinks: list[_Endless] = []
    connections: list[UpstreamConnection] = []
    try:
        for _ in range(1100):
            ours, engine = socket.socketpair()
            ours.setblocking(False)
            sinks.append(_Endless(engine))
            call = Call(b"GET / HTTP/1.1\r\n\r\n", b"", sinks[-1], is_head_request=False)
            connections.append(UpstreamConnection(pool, call))
            await loop.connect_accepted_socket(lambda: cast("asyncio.Protocol", connections[-1]), ours)
        for sink in sinks:
            sink._engine.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata\n\r\n")
        in_turns: list[int] = []
        while len(in_turns) < 12:
            before = sum(sink.reads for sink in sinks)
            await asyncio.sleep(0)
            in_turns.append(sum(sink.reads for sink in sinks) - before)
    finally:
        for connection in connections:
            connection.close()
        for sink in sinks:
            sink._engine.close()
        await asyncio.sleep(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert max(in_turns) <= 2048 + 1100 + 512, in_turns
    assert min(sink.reads for sink in sinks) >= 1
    assert max(sink.reads for sink in sinks) <= min(sink.reads for sink in sinks) + 6
