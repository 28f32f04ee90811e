"""Several gateways of one group, one with a picker: one queue, and a leader that dies.

`python -m tests.gateway.epp.test_several 20 200` kills the leader so often under so many streams.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.gateway.conftest import Client, World, hurry
from tests.gateway.epp.conftest import Envoy
from tests.gateway.share.group import Group, group
from tests.patience import looks

pytestmark = pytest.mark.slow


async def _with_picker(world: World, its: Group, envoy: Envoy, *, slots: int) -> None:
    """A leader `a`, and a gateway `b` whose picker Envoy asks."""
    endpoints = [{"url": engine.url, "slots": slots} for engine in world.engines]
    a = its.made("a", endpoints=endpoints)
    b = its.made("b", endpoints=endpoints, epp={"listen": f"127.0.0.1:{envoy.picker}"})
    await asyncio.gather(a.start(), b.start())
    await b.until(lambda state: len(state["edges"]) >= 2)
    world.port = envoy.port
    async for _ in looks(60.0, 0.05):
        if (await world.ask("GET", "/v1/models")).status == 200 and (await world.chat()).status == 200:
            return


async def test_a_picker_and_a_proxying_gateway_share_one_queue(world: World, envoy: Envoy, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.02)
    async with group(world, tmp_path) as its:
        await _with_picker(world, its, envoy, slots=2)
        a, _ = its.gateways
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


async def _kills(world: World, its: Group, envoy: Envoy, *, kills: int, streams: int) -> list[float]:
    """Kill the leader again and again. Returns for each time how long a new request through Envoy took."""
    await _with_picker(world, its, envoy, slots=streams + 2)
    a, _ = its.gateways
    waits: list[float] = []
    for _ in range(kills):
        clients: list[Client] = [await world.streaming(tokens=150) for _ in range(streams)]
        await asyncio.gather(*(client.begun() for client in clients))
        a.kill()
        sent = time.monotonic()
        fresh = asyncio.ensure_future(world.chat(tokens=1))
        await a.process.process.wait() if a.process is not None else None
        await a.start()
        assert (await fresh).status == 200
        waits.append(time.monotonic() - sent)
        for client in clients:
            while piece := await client.piece():
                last = piece
            assert last.endswith(b"data: [DONE]\n\n"), "a stream broke"
            client.hang_up()
        async for _ in looks(60.0, 0.05):
            if await a.metric("penstock_leases") == 0:
                break
    return waits


async def test_the_leader_dies_and_streams_through_a_picker_go_on(world: World, envoy: Envoy, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.02)
    async with group(world, tmp_path) as its:
        waits = await _kills(world, its, envoy, kills=2, streams=4)
        assert len(waits) == 2
        assert engine.log.in_engine_max <= 6


async def _main(kills: int, streams: int) -> None:
    world, envoy = World(), Envoy()
    envoy.wait()
    try:
        engine = await world.engine(step_s=0.05, max_num_seqs=streams + 50, max_num_batched_tokens=8_192)
        with tempfile.TemporaryDirectory() as folder:
            async with group(world, Path(folder)) as its:
                waits = await _kills(world, its, envoy, kills=kills, streams=streams)
        ids = [entry.id for entry in engine.log.entries]
        print(f"waits of new requests: longest {max(waits):.2f} s; sent twice: {len(ids) - len(set(ids))}")
    finally:
        await world.close()
        envoy.close()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
