"""What holds along the way of the bytes: counted whatever their spelling, unpacked without holding others up."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.http.inflate import BadPacking, InflatesTooFar, TooMuchAtOnce, Unpacking, inflate
from tests.gateway.conftest import World, chat, request, run
from tests.patience import WAIT_S


@given(st.lists(st.sampled_from([b'data: {"a":1}', b'data:{"a":1}', b"data: \xc3\xa4"]), max_size=9), st.integers(1, 7))
def test_events_are_counted_with_and_without_a_space_and_however_they_are_cut(events: list[bytes], size: int) -> None:
    answer = AnswerReader(streamed=True, hides_usage=False)
    stream = b"".join(event + b"\n\n" for event in events)
    assert b"".join(answer.take(stream[at : at + size]) for at in range(0, len(stream), size)) == stream
    assert answer.tokens == len(events)


def test_what_a_model_says_of_data_is_no_event() -> None:
    answer = AnswerReader(streamed=True, hides_usage=False)
    answer.take(b': data: x\n\ndata: {"content":"data: one\\ndata: two"}\r\n\r\n')
    assert answer.tokens == 1


def unpacked(packed: bytes, bytes_max: int = 1 << 20, coding: str = "gzip") -> bytes | None:
    try:
        return run(inflate(packed, coding, bytes_max, lambda _: True))
    except InflatesTooFar:
        return None


@given(st.binary(max_size=2000), st.integers(0, 40), st.integers(0, 9))
def test_what_was_packed_is_unpacked(piece: bytes, times: int, level: int) -> None:
    body = piece * times
    assert unpacked(gzip.compress(body, level), len(body)) == body
    if body:
        assert unpacked(gzip.compress(body, level), len(body) - 1) is None


@given(st.binary(max_size=2000), st.integers(1, 20_000), st.integers(1, 3))
def test_zeros_may_follow_a_gzip_body_and_nothing_else(body: bytes, zeros: int, members: int) -> None:
    packed = gzip.compress(body) * members + bytes(zeros)
    assert unpacked(packed, 1 << 20) == body * members
    for more in (b"x", gzip.compress(b"x")):
        with pytest.raises(BadPacking):
            unpacked(packed + more, 1 << 20)


def test_a_gzip_body_has_at_most_1000_members() -> None:
    member = gzip.compress(b"a")
    assert run(inflate(1_000 * member, "gzip", 1 << 20, lambda _: True)) == 1_000 * b"a"
    with pytest.raises(BadPacking):
        run(inflate(1_001 * member, "gzip", 1 << 20, lambda _: True))


def test_a_body_unpacks_to_a_hundred_times_its_size_at_most_beyond_a_megabyte() -> None:
    assert unpacked(gzip.compress(bytes(1 << 20)), 1 << 30) == bytes(1 << 20)
    assert unpacked(gzip.compress(bytes(2 << 20)), 1 << 30) is None


def test_each_piece_is_counted_before_it_is_kept() -> None:
    held: list[int] = []

    def hold(size: int) -> bool:
        held.append(size)
        return sum(held) <= 300_000

    with pytest.raises(TooMuchAtOnce):
        run(inflate(gzip.compress(bytes(1 << 20)), "gzip", 1 << 30, hold))
    assert sum(held) <= 600_000


@given(st.binary(max_size=200))
def test_a_body_that_is_not_packed_as_declared_is_refused(noise: bytes) -> None:
    packed = gzip.compress(b"hello")
    for bad in (noise, packed[:-1], packed + b"x", packed + packed[:9], zlib.compress(b"hello")):
        with pytest.raises(BadPacking, match="gzip"):
            unpacked(bad)
    for bad in (packed, zlib.compress(b"hello")[:-1], zlib.compress(b"hello") + b"x", zlib.compress(b"hello") * 2):
        with pytest.raises(BadPacking, match="deflate"):
            unpacked(bad, coding="deflate")


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-15)


@given(st.binary(max_size=2000), st.integers(1, 600))
def test_each_packing_that_is_offered_is_unpacked(body: bytes, times: int) -> None:
    assert unpacked(zlib.compress(body * times), 1 << 30, "deflate") == body * times
    assert unpacked(raw_deflate(body * times), 1 << 30, "deflate") == body * times
    members = gzip.compress(body) * min(times, 3) + gzip.compress(b"") + gzip.compress(body * times)
    assert unpacked(members, 1 << 30) == body * (min(times, 3) + times)


def test_gzip_members_are_bounded() -> None:
    assert unpacked(gzip.compress(b"x") * 1000) == b"x" * 1000
    with pytest.raises(BadPacking):
        unpacked(gzip.compress(b"") * 1001)


async def test_a_large_packed_body_is_unpacked_in_steps_with_others_served_in_between(world: World) -> None:
    await world.engine()
    await world.gateway()
    bomb = gzip.compress(b" " * (20 << 20) + json.dumps(chat()).encode(), 0)
    large = await world.client(request(headers={"content-encoding": "gzip"}, body=bomb))
    answered = world.soon(large.answer())
    for _ in range(3):
        assert (await world.ask("GET", "/health")).status == 200
        assert not answered.done()
    assert (await answered).status == 200


async def test_a_client_that_leaves_while_its_body_is_unpacked_is_forgotten(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    client = await world.client(request(headers={"content-encoding": "gzip"}, body=gzip.compress(b" " * (20 << 20), 0)))
    await world.until(lambda: world.gate.server.connections == 1)
    client.hang_up()
    await world.until(lambda: world.gate.server.connections == 0)
    assert (await world.chat()).status == 200
    assert len(engine.log.entries) == 1


async def test_no_byte_of_many_streams_is_lost_changed_or_moved() -> None:
    """A small run of the benchmark that does it at 50,000 events a second; three processes, checksums at both ends."""
    benchmark = Path(__file__).parents[3] / "benchmarks" / "streams.py"
    options = ("--streams", "64", "--rate", "6400", "--seconds", "0.5", "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(benchmark), *options, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    figures = json.loads(told)
    assert (process.returncode, figures["wrong_streams"], figures["completed"]) == (0, 0, 64)
    assert figures["events"] == 64 * (50 + 4)


async def test_a_bomb_is_refused_before_it_is_unpacked(world: World) -> None:
    await world.engine()
    await world.gateway()
    body = gzip.compress(b" " * (20 << 20) + json.dumps(chat()).encode())
    answer = await world.ask(body=body, headers={"content-encoding": "gzip"})
    assert (answer.status, answer.error()["code"]) == (413, "request_too_large")
    assert "100 times" in answer.error()["message"]
    assert world.gate.server.bodies_bytes == 0


def test_bodies_that_are_being_unpacked_share_their_room() -> None:
    """Ten of a megabyte each, a step of each in turn: never more than one beyond the room of one is there."""
    room, size = Unpacking(1 << 20), 1 << 20
    packed, left, most = gzip.compress(bytes(size)), [], 0

    def unpack(at: int) -> Generator[None, None, None]:
        place = room.enter()
        try:
            body = yield from room.inflate(place, packed, "gzip", size, lambda _: True)
            assert body == bytes(size)
            yield  # it is read
        finally:
            room.leave(place)
            left.append(at)

    works = [(at, unpack(at)) for at in range(10)]
    for turn in range(1000):
        for at, work in works:
            if at == 3 and turn == 2:
                work.close()  # its client has gone
            next(work, None)
            most = max(most, room.bytes)
    assert sorted(left) == list(range(10))
    assert 1 << 20 < most <= 2 << 20
    assert room.bytes == 0


async def test_many_packed_bodies_at_once_are_all_served(world: World) -> None:
    engine = await world.engine()
    await world.gateway(slots=16, limits={"max_body": 600_000})
    words = random.Random(1).randbytes(250_000).hex()
    packed = gzip.compress(json.dumps({**chat(), "unknown": words}).encode(), 1)
    asked = [world.ask(body=packed, headers={"content-encoding": "gzip"}) for _ in range(12)]
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 12
    assert len(engine.log.entries) == 12
    assert world.gate.server.bodies_bytes == 0


async def test_packed_bodies_reach_the_engine_unpacked(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    body = json.dumps(chat()).encode()
    packings = {
        "deflate": zlib.compress(body),
        "DEFLATE": raw_deflate(body),
        "x-gzip, identity": gzip.compress(body[:20]) + gzip.compress(body[20:]),
        "": body,
    }
    for coding, packed in packings.items():
        assert (await world.ask(body=packed, headers={"content-encoding": coding})).status == 200, coding
    assert [bytes(entry.body or b"") for entry in engine.log.entries] == [body] * 4


@pytest.mark.parametrize(
    "coding", ["zstd", "br", "compress", "gzip, gzip", "deflate,gzip", "identity\r\ncontent-encoding: br"]
)
async def test_other_packings_are_a_415_that_lists_the_accepted_ones(world: World, coding: str) -> None:
    await world.engine()
    await world.gateway()
    answer = await world.ask(body=gzip.compress(json.dumps(chat()).encode()), headers={"content-encoding": coding})
    assert (answer.status, answer.error()["code"]) == (415, "unsupported_encoding")
    assert answer.header("accept-encoding") == "gzip, deflate"
    assert "gzip, deflate" in answer.error()["message"]
    assert world.seen() == []


async def test_a_large_body_is_counted_until_its_answer_begins(world: World) -> None:
    await world.engine(step_s=0.05)
    await world.gateway()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR" + "QUJD" * 200_000}}
    body = chat(stream=True) | {"messages": [{"role": "user", "content": [picture]}]}
    client = await world.client_for(body)
    await world.until(lambda: world.seen())
    assert world.gate.server.bodies_bytes >= 800_000
    assert (await client.begun()).status == 200
    await world.until(lambda: world.gate.server.bodies_bytes == 0)
