"""An endpoint's KV events over ZMQ: what it holds is known, or known to be unknown, whatever happens to the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from penstock.engines.kv_blocks import Changes, prompt_keys
from penstock.gateway.kv_cache import kv_source, kv_stream
from penstock.gateway.kv_cache.kv_source import KvSource
from penstock.http.client.pool import Upstream
from tests.gateway.raw_engine import Peer, RawEngine
from tests.patience import WAIT_S
from tests.ports import free_port

TOKENS = list(range(12))
KEYS = prompt_keys([*TOKENS, 0], 4)
END = (-1).to_bytes(8, "big", signed=True)


def stored(blocks: int, first: int = 0, life: int = 0) -> dict[str, Any]:
    """Some of the three blocks, as an engine says it; each life of an engine has hashes of its own."""
    hashes = [100 * life + n for n in range(1, 4)]
    return {
        "type": "BlockStored",
        "block_hashes": hashes[first : first + blocks],
        "parent_block_hash": hashes[first - 1] if first else None,
        "token_ids": TOKENS[4 * first : 4 * (first + blocks)],
        "block_size": 4,
        "medium": "GPU",
    }


class Publisher:
    """An engine's two sockets, on ports that outlive it. Numbers and payloads are the test's to choose."""

    def __init__(self, ports: tuple[int, int] | None = None, *, replays: bool = True) -> None:
        self._context = zmq.asyncio.Context()
        self._pub, self._router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self.ports = ports or (free_port(), free_port())
        for socket, port in zip((self._pub, self._router), self.ports, strict=True):
            socket.bind(f"tcp://127.0.0.1:{port}")
        self.number = 0
        self.kept: list[tuple[bytes, bytes]] = []
        self._task = asyncio.ensure_future(self._replay()) if replays else None

    async def say(self, *events: object, lose: bool = False, payload: bytes | None = None) -> None:
        frames = self.number.to_bytes(8, "big"), payload or msgspec.msgpack.encode([0.0, list(events), 0])
        self.number += 1
        self.kept.append(frames)
        if not lose:
            await self._pub.send_multipart([b"kv", *frames])

    async def shout(self, frames: list[bytes]) -> None:
        await self._pub.send_multipart(frames)

    async def _replay(self) -> None:
        while True:
            peer, _, start = await self._router.recv_multipart()
            for number, payload in self.kept:
                if number >= start:
                    await self._router.send_multipart([peer, b"", b"kv", number, payload])
            await self._router.send_multipart([peer, b"", b"", END, b""])

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)


class Ear:
    """Who only hears the changes."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.cleared = 0

    def tell(self, changes: Changes) -> None:
        if changes.cleared:
            self.cleared += 1
            self.held.clear()
        self.held.difference_update(changes.removed)
        self.held.update(changes.stored)


@asynccontextmanager
async def listening(
    publisher: Publisher | None, setting: str | None = None, *, url: str = "http://127.0.0.1:1"
) -> AsyncIterator[tuple[KvSource, Ear]]:
    """A source that follows a publisher, at the address it is told."""
    context = zmq.asyncio.Context()
    ear = Ear()
    upstream = Upstream(url)
    setting = setting or f"tcp://127.0.0.1:{publisher.ports[0] if publisher else 1}"
    source = KvSource("gpu-0", setting, upstream, [], url=url, context=context, tell=ear.tell)
    task = asyncio.ensure_future(source.run())
    try:
        yield source, ear
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)
        upstream.close()


@asynccontextmanager
async def telling(*publishers: Publisher) -> AsyncIterator[str]:
    """An engine that tells where it publishes; its url."""
    sources = {
        str(rank): {"endpoint": f"tcp://*:{at.ports[0]}", "replay_endpoint": f"tcp://*:{at.ports[1]}"}
        for rank, at in enumerate(publishers)
    }
    body = msgspec.json.encode(sources)

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    async with RawEngine(script) as raw:
        yield raw.url


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not claim():
            await asyncio.sleep(0.001)


@pytest.fixture
async def publishers() -> AsyncIterator[list[Publisher]]:
    made: list[Publisher] = []
    yield made
    for publisher in made:
        await publisher.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream, "REPLAY_TIMEOUT_S", 0.1)


async def test_earlier_blocks_are_replayed_and_new_ones_followed(
    publishers: list[Publisher],
) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(1))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: ear.held == {KEYS[0]})
        assert source.listening
        await publisher.say(stored(2, first=1))
        await until(lambda: source.blocks.held(KEYS) == 3)
        await publisher.say({"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"})
        await until(lambda: ear.held == {KEYS[0], KEYS[2]})
        await publisher.say({"type": "AllBlocksCleared"})
        await until(lambda: ear.cleared == 1)
        assert len(source.blocks) == 0


async def test_a_lost_message_is_replayed(publishers: list[Publisher]) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(1))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.blocks.held(KEYS) == 1)
        await publisher.say(stored(1, first=1), lose=True)
        await publisher.say(stored(1, first=2))
        await until(lambda: source.blocks.held(KEYS) == 3)
        assert ear.cleared == 0


async def test_a_lost_message_that_the_engine_has_no_more_clears_all(publishers: list[Publisher]) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(2))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.blocks.held(KEYS) == 2)
        await publisher.say({"type": "BlockRemoved", "block_hashes": [1, 2]}, lose=True)
        publisher.kept.clear()
        await publisher.say(stored(1))
        await until(lambda: ear.held == {KEYS[0]})
        assert ear.cleared == 1


async def test_without_replay_a_lost_message_clears_all(publishers: list[Publisher], impatient: None) -> None:
    publishers.append(publisher := Publisher(replays=False))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.listening)
        while not ear.held:  # a subscription takes a moment to arrive
            await publisher.say(stored(1))
            await asyncio.sleep(0.01)
        await publisher.say({"type": "BlockRemoved", "block_hashes": [1]}, lose=True)
        await publisher.say(stored(2, life=1))
        await until(lambda: ear.held == set(KEYS[:2]))
        assert ear.cleared == 1


async def test_a_restarted_engine_begins_from_nothing(publishers: list[Publisher]) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(3))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.blocks.held(KEYS) == 3)
        await publisher.close()
        await until(lambda: not ear.held)
        publishers.append(again := Publisher(publisher.ports))
        await again.say(stored(2, life=1))
        await until(lambda: source.blocks.held(KEYS) == 2)
        assert source.listening


async def test_numbers_that_fall_are_a_restart_too(publishers: list[Publisher]) -> None:
    """As behind a proxy, whose connection stays."""
    publishers.append(publisher := Publisher())
    for _ in range(3):
        await publisher.say(stored(1))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.blocks.held(KEYS) == 1)
        await publisher.say(stored(2, first=1))
        await until(lambda: source.blocks.held(KEYS) == 3)  # the fourth came live
        publisher.kept.clear()
        publisher.number = 0
        await publisher.say(stored(2, life=1))
        await until(lambda: ear.held == set(KEYS[:2]))


@pytest.mark.parametrize("payload", [b"\xc1garbage", b"\x00" * 300])
async def test_garbage_only_resets_known_blocks(publishers: list[Publisher], payload: bytes) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(1))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.blocks.held(KEYS) == 1)
        await publisher.say(payload=payload)
        await until(lambda: not ear.held)
        await publisher.say(stored(1))
        await until(lambda: source.blocks.held(KEYS) == 1)


async def test_all_ranks_are_followed_and_one_that_dies_takes_the_others_along(publishers: list[Publisher]) -> None:
    publishers += [Publisher(), Publisher()]
    await publishers[0].say(stored(1))
    await publishers[1].say(stored(2, life=1))
    async with telling(*publishers) as url, listening(None, "auto", url=url) as (source, ear):
        await until(lambda: ear.held == set(KEYS[:2]))
        await publishers[1].close()
        await until(lambda: not ear.held)
        publishers.append(Publisher(publishers[1].ports))
        await until(lambda: source.listening and ear.held == {KEYS[0]})


async def test_a_silent_engines_events_are_read_at_the_configured_address(
    publishers: list[Publisher], impatient: None
) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(1))
    async with listening(publisher) as (source, _):
        await until(lambda: source.listening)
        while not len(source.blocks):  # nothing says where it replays, so what came before is unknown
            await publisher.say(stored(1))
            await asyncio.sleep(0.01)


def test_a_publisher_that_breaks_again_and_again_is_tried_less_and_less_often() -> None:
    pauses = [0.2]
    for _ in range(6):
        pauses.append(kv_source.pause_after(pauses[-1], lasted_s=0.1))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert kv_source.pause_after(5.0, lasted_s=60.0) == 0.2


@pytest.mark.parametrize("frames", [[b"kv"], [b"kv", b"short", b"x"], [b"kv", bytes(8), bytes(5 << 20)]])
async def test_a_malformed_event_ends_the_session(publishers: list[Publisher], frames: list[bytes]) -> None:
    publishers.append(publisher := Publisher())
    await publisher.say(stored(1))
    async with telling(publisher) as url, listening(publisher, "auto", url=url) as (source, ear):
        await until(lambda: source.blocks.held(KEYS) == 1)
        await publisher.shout(frames)
        await until(lambda: ear.cleared)
        await until(lambda: source.blocks.held(KEYS) == 1)  # and another one begins


async def test_it_waits_for_an_engine_that_is_not_there_yet(publishers: list[Publisher]) -> None:
    reserved = Publisher()
    await reserved.close()
    async with listening(reserved) as (source, _):
        assert not source.listening
        publishers.append(Publisher(reserved.ports))
        await until(lambda: source.listening)


@pytest.mark.parametrize(
    ("path", "told", "ports"),
    [
        ("/kv_event_sources", {"0": {"endpoint": "tcp://*:5", "replay_endpoint": "tcp://*:6"}}, [(0, 5, 6)]),
        ("/kv_event_sources", {"1": {"endpoint": "tcp://10.0.0.1:5", "replay_endpoint": None}}, [(1, 5, None)]),
        ("/kv_event_sources", {"0": {"endpoint": "ipc:///tmp/x"}, "x": {}, "1": None}, []),
        (
            "/server_info",
            {"kv_events": {"endpoint_port_base": 50, "replay_endpoint_port_base": 60, "dp_size": 2}},
            [(0, 50, 60), (1, 51, 61)],
        ),
        ("/server_info", {"kv_events": None}, []),
        ("/server_info", {"kv_events": {"endpoint_port_base": 10**9, "dp_size": 10**9}}, []),
        ("/server_info", ["nonsense"], []),
    ],
)
async def test_engines_report_their_publishers(
    path: str, told: object, ports: list[tuple[int, int, int | None]]
) -> None:
    body = msgspec.json.encode(told)

    async def script(peer: Peer) -> None:
        while True:
            here = (await peer.request()).startswith(b"GET " + path.encode())
            status = b"200 OK" if here else b"404 Not Found"
            await peer.send(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

    async with RawEngine(script) as raw:
        upstream = Upstream(raw.url)
        context = zmq.asyncio.Context()
        source = KvSource("gpu-0", "auto", upstream, [], url=raw.url, context=context, tell=Ear().tell)
        found = await source.addresses()
        upstream.close()
        context.term()
    default = [(0, 5557, 5558)]
    assert [(at.rank, at.events, at.replay) for at in found] == [
        (rank, f"tcp://127.0.0.1:{port}", replay and f"tcp://127.0.0.1:{replay}")
        for rank, port, replay in ports or default
    ]
