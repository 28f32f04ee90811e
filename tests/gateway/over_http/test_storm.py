"""2,000 requests, half of them abandoned at a random moment, on engines that fail and die: nothing leaks.

Leases are counted by the scheduler, slots by the engines: after the storm as many requests as there are slots must
run at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import Client, World, chat, fault, request

REQUESTS = 2_000
CLIENTS = 96
STORM_S = 300.0  # ends one that would hang; it takes some seconds of CPU time
SLOTS = 8
ENGINES = 3
PACE: dict[str, Any] = {"step_s": 0.003, "max_num_seqs": SLOTS}
KINDS = ("stays", "stays", "leaves while queued", "leaves before the first token", "leaves in mid-stream")


def leave(client: Client, rng: Random) -> None:
    if rng.random() < 0.5:
        client.hang_up()
    else:
        client.writer.transport.abort()


async def one(world: World, rng: Random, tally: Counter[str]) -> None:
    kind = rng.choice(KINDS)
    stream = rng.random() < 0.6 or kind == "leaves in mid-stream"
    body = chat("x" * rng.randrange(2000), tokens=rng.randrange(1, 16), stream=stream)
    client = await world.client(request(body=body))
    world.clients.remove(client)
    try:
        if kind == "leaves while queued":
            await asyncio.sleep(0)
        elif kind == "leaves before the first token":
            await asyncio.sleep(rng.random() * 0.05)  # the moment is meant to be random
        elif kind == "leaves in mid-stream":
            await client.begun()
        else:
            kind = str((await client.answer()).status)
    except (asyncio.IncompleteReadError, ConnectionError):
        kind = "broken off"
    tally[kind] += 1
    leave(client, rng)


async def weather(world: World, rng: Random, over: asyncio.Event) -> None:
    """One engine after another fails in some way, and every now and then one dies and comes back."""
    while not over.is_set():
        await asyncio.sleep(0.005 + rng.random() * 0.03)
        engine = rng.choice(world.engines)
        kind = rng.choice(("busy", "busy", "refuse", "error", "die late", "die"))
        if kind == "die":
            await restarted(world, engine)
        elif kind == "die late":
            fault(engine, "die", after_bytes=rng.randrange(1500), count=rng.randrange(1, 4))
        else:
            fault(engine, kind, count=rng.randrange(1, 6))


async def restarted(world: World, engine: EngineServer) -> None:
    """The engine's process dies; a new one takes its place a moment later."""
    engine.set_fault(engine.faults.read(b'{"kind": "die"}'))
    await asyncio.sleep(0.05)
    await world.restart(engine, **PACE)


@pytest.mark.slow
async def test_2000_requests_in_a_storm_leak_nothing(world: World) -> None:
    rng = Random(4711)
    for _ in range(ENGINES):
        await world.engine(**PACE)
    await world.gateway(slots=SLOTS, retry={"budget": 1.0})
    tally: Counter[str] = Counter()
    left = iter(range(REQUESTS))

    async def caller() -> None:
        for _ in left:
            await one(world, rng, tally)

    over = asyncio.Event()
    async with asyncio.timeout(STORM_S), asyncio.TaskGroup() as group:
        storm = group.create_task(weather(world, rng, over))
        callers = [group.create_task(caller()) for _ in range(CLIENTS)]
        await asyncio.gather(*callers)
        over.set()
        await storm
    await world.idle()

    assert tally.total() == REQUESTS
    assert set(tally) <= {*KINDS, "200", "500", "502", "503", "broken off"}, tally
    assert tally["200"] > REQUESTS / 5, tally
    assert world.picture().waiting == 0
    assert await world.metric("penstock_requests_total") == REQUESTS
    await every_slot_is_usable(world)


async def every_slot_is_usable(world: World) -> None:
    for engine in world.engines:
        fault(engine, "none")
    await world.until(lambda: all(endpoint.state == "up" for endpoint in world.picture().endpoints), within_s=35)
    clients = [await world.streaming(tokens=6000) for _ in range(ENGINES * SLOTS)]
    await world.until(lambda: all(engine.engine.running_now == SLOTS for engine in world.engines))
    assert [endpoint.leases for endpoint in world.picture().endpoints] == [SLOTS] * ENGINES
    for client in clients:
        client.hang_up()
