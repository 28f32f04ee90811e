"""Pickers of one group: one queue, one of them leads, and the leader is killed.

`python -m tests.gateway.epp.test_several 20 200 valkey` kills the leader so often under so many streams.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateway.conftest import Client, World, hurry
from tests.gateway.elect.stores import KINDS, store
from tests.gateway.epp.conftest import Envoy
from tests.gateway.share.group import GatewayProcess, Group, group
from tests.patience import WAIT_S, looks

pytestmark = pytest.mark.slow

SERVING = b"\x08\x01"
STATIC = "static"


class Picker:
    """A gateway of the group whose picker one Envoy asks."""

    def __init__(self, world: World, gateway: GatewayProcess, envoy: Envoy) -> None:
        self._world = world
        self.gateway = gateway
        self.envoy = envoy

    async def ready(self) -> bytes:
        """The state of its readiness service; empty: nobody answers."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.envoy.picker}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                state: bytes = await check(b"\x0a\x09readiness")
            except grpc.aio.AioRpcError:
                return b""
        return state

    async def until_served(self) -> None:
        """Until requests through its Envoy are answered."""
        async for _ in looks(60.0, 0.05):
            self._world.port = self.envoy.port
            if (await self._world.ask("GET", "/v1/models")).status == (await self._world.chat(tokens=1)).status == 200:
                return

    async def streaming(self, tokens: int) -> Client:
        self._world.port = self.envoy.port
        return await self._world.streaming(tokens=tokens)

    async def chat(self) -> int:
        self._world.port = self.envoy.port
        return (await self._world.chat(tokens=1)).status

    async def timed(self) -> float:
        """How long a request takes, in seconds."""
        sent_s = time.monotonic()
        assert await self.chat() == 200
        return time.monotonic() - sent_s


@asynccontextmanager
async def pickers(world: World, its: Group, *, slots: int, **share: Any) -> AsyncIterator[list[Picker]]:
    """Two gateways, each with a picker behind an Envoy of its own."""
    endpoints = [{"url": engine.url, "slots": slots} for engine in world.engines]
    async with AsyncExitStack() as ending:
        made: list[Picker] = []
        for name in ("a", "b"):
            envoy = Envoy()
            ending.callback(envoy.close)
            listen = {"listen": f"127.0.0.1:{envoy.picker}"}
            made.append(Picker(world, its.made(name, share=share, endpoints=endpoints, epp=listen), envoy))
        for one in made:
            one.envoy.wait()
        await asyncio.gather(*(one.gateway.start() for one in made))
        for one in made:
            await one.gateway.until(lambda state: len(state["edges"]) == 3)
            await one.until_served()
        yield made


async def leader_and_other(made: list[Picker]) -> tuple[Picker, Picker]:
    roles = [(await one.gateway.state())["share"] for one in made]
    leader = next(one for one in made if all(role["name"] == one.gateway.name for role in roles))
    return leader, next(one for one in made if one is not leader)


async def test_a_picker_and_a_proxying_gateway_share_one_queue(world: World, envoy: Envoy, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.02)
    async with group(world, tmp_path) as its:
        endpoints = [{"url": engine.url, "slots": 2}]
        a = its.made("a", endpoints=endpoints)
        b = its.made("b", endpoints=endpoints, epp={"listen": f"127.0.0.1:{envoy.picker}"})
        await asyncio.gather(a.start(), b.start())
        await b.until(lambda state: len(state["edges"]) >= 2)
        await Picker(world, b, envoy).until_served()
        streams = [await world.streaming(tokens=5_000) for _ in range(2)]
        for stream in streams:
            await stream.begun()
        proxied = await a.streaming()
        picked = await world.streaming()
        await a.until(lambda state: state["waiting"] == 2)
        assert engine.log.in_engine_max == 2
        for stream in streams:
            stream.hang_up()
        hurry(engine)
        assert (await proxied.answer()).status == 200
        assert (await picked.answer()).status == 200


@dataclass
class Seen:
    """What kills of the leader did."""

    waits_s: list[float] = field(default_factory=list)  #: of a request that came with each kill
    whole: int = 0  #: streams through the other picker
    broken: int = 0
    leases_left: float = 0.0


async def kill_leaders(made: list[Picker], *, kills: int, streams: int, tokens: int, stays: bool) -> Seen:
    """Kill the leader under streams through the other picker, and start it again. `stays`: no other may lead."""
    seen = Seen()
    for _ in range(kills):
        leader, other = await leader_and_other(made)
        clients = [await other.streaming(tokens) for _ in range(streams)]
        await asyncio.gather(*(client.begun() for client in clients))
        leader.gateway.kill()
        fresh = asyncio.create_task(other.timed())
        assert leader.gateway.process is not None
        await leader.gateway.process.process.wait()
        assert (await leader.ready(), await other.ready()) == (b"", SERVING)
        if stays:
            await leader.gateway.start()
        seen.waits_s.append(await fresh)
        for client in clients:
            while await client.piece():
                pass
            is_whole = client.seen.endswith(b"data: [DONE]\n\n")
            seen.whole, seen.broken = seen.whole + is_whole, seen.broken + (not is_whole)
            client.hang_up()
        if not stays:
            await leader.gateway.start()
        for one in made:
            state = await one.gateway.until(lambda state: len(state["edges"]) == 3 and state["running"] == 0)
            assert state["share"]["name"] == (leader if stays else other).gateway.name
        seen.leases_left += await other.gateway.metric("penstock_leases")
        await leader.until_served()
    return seen


def elected(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`share` of a group that elects by this kind of store, or by none."""
    return {} if kind == STATIC else {"elect": settings, "alone_after": "10s"}


@contextmanager
def election(kind: str) -> Iterator[dict[str, Any]]:
    """The settings of an election, and its store while they are used."""
    if kind == STATIC:
        yield {}
    else:
        with store(kind) as stores:
            yield stores.settings


@pytest.mark.parametrize("kind", [*KINDS, STATIC])
async def test_the_leader_dies_and_streams_through_another_picker_go_on(
    world: World, tmp_path: Path, kind: str
) -> None:
    engine = await world.engine(step_s=0.05)
    with election(kind) as settings:
        async with group(world, tmp_path) as its, pickers(world, its, slots=6, **elected(kind, settings)) as made:
            for one in made:
                assert await one.ready() == SERVING, "the standby picks as well"
            seen = await kill_leaders(made, kills=1, streams=4, tokens=80, stays=kind == STATIC)
    assert (seen.whole, seen.broken, seen.leases_left) == (4, 0, 0)
    assert engine.log.in_engine_max <= 6
    ids = [entry.id for entry in engine.log.entries]
    assert len(ids) == len(set(ids)), "nothing was sent twice"


async def refused(port: int) -> None:
    """Wait until nobody listens at this port."""
    async for _ in looks(WAIT_S):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        writer.close()


async def test_one_envoy_before_two_pickers_goes_to_the_living_one(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    with store("valkey") as stores:
        async with (
            group(world, tmp_path) as its,
            pickers(world, its, slots=20, **elected("valkey", stores.settings)) as two,
        ):
            both = Envoy(picker=two[0].envoy.picker, also=two[1].envoy.picker)
            try:
                both.wait()
                leader, _ = await leader_and_other(two)
                one = Picker(world, leader.gateway, both)
                await one.until_served()
                leader.gateway.kill()
                await refused(leader.envoy.picker)  # what is with a picker while it dies fails with it
                assert [await one.chat() for _ in range(20)] == [200] * 20
            finally:
                both.close()


async def _main(kills: int, streams: int, kind: str) -> None:
    world = World()
    try:
        engine = await world.engine(step_s=0.05, max_num_seqs=streams + 50, max_num_batched_tokens=8_192)
        with tempfile.TemporaryDirectory() as folder, election(kind) as settings:
            async with (
                group(world, Path(folder)) as its,
                pickers(world, its, slots=streams + 2, **elected(kind, settings)) as made,
            ):
                seen = await kill_leaders(made, kills=kills, streams=streams, tokens=150, stays=kind == STATIC)
        ids = [entry.id for entry in engine.log.entries]
        print(f"streams: {seen.whole} whole, {seen.broken} broken; sent twice: {len(ids) - len(set(ids))}")
        print(f"in the engine at most {engine.log.in_engine_max} of {streams + 2}; leases left: {seen.leases_left:g}")
        print("waits of new requests:", *(f"{wait_s:.2f}" for wait_s in sorted(seen.waits_s)), "s")
    finally:
        await world.close()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
