"""Who is served when there is too little for all: isolation, shares and priorities, over real sockets.

Small versions of what the simulator shows in virtual time. Everything runs in one process on a machine that others
use too, so nothing is compared with a number of milliseconds, only with another part of the same run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from tests.server.conftest import Answer, Client, World, chat, request

STEP_S = 0.05  # slow steps: what is measured is waiting for engines, not for this machine
SLOTS = 64
FLOOD_TOKENS = (30, 170)  # of an answer, from and to
FLOOD_REQUESTS = 7 * SLOTS  # under way at all times: 3.5 times what two engines run
LIGHT_TENANTS = 8
LIGHT_PER_S = 20.0  # of each tenant; together a fifth of the capacity
LIGHT_TOKENS = 3
BANDS: dict[str, Any] = {"identity": {"max_band": "interactive"}}


def high(name: str = "interactive") -> dict[str, str]:
    return {"x-penstock-band": name}


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def said(world: World) -> int:
    """Tokens that the engines have made so far."""
    return sum(engine.engine.gauges().generation_tokens for engine in world.engines)


@asynccontextmanager
async def backlog(world: World, count: int, bodies: Iterator[dict[str, Any]], tenant: str) -> AsyncIterator[list[Any]]:
    """So many requests under way at all times while this is entered; the usage of each answer."""
    usages: list[Any] = []

    async def work() -> None:
        client = await world.client()
        try:
            while True:
                body = next(bodies)
                client.send(request(body=body, headers={"x-tenant-id": tenant, "x-user-id": tenant[-1]}))
                client.send(b"")
                answer = await patient(client)
                assert answer.status == 200
                usages.append(answer.json()["usage"])
        finally:
            client.hang_up()

    tasks = [world.soon(work()) for _ in range(count)]  # type: ignore[arg-type]
    try:
        yield usages
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended[:1]
        await world.idle()


async def patient(client: Client) -> Answer:
    """The next answer, however long it waits in the queue of a flood."""
    head = await client.reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return Answer(int(head.split(b" ")[1]), [], await client.reader.readexactly(length))


def answers(seed: str, low: int, high: int) -> Iterator[dict[str, Any]]:
    """Bodies of requests whose answers are of many lengths, so that they do not all end together."""
    random = Random(seed)
    while True:
        yield chat(tokens=random.randint(low, high))


async def light_load(world: World, seconds: float) -> list[float]:
    """Times to first token of eight tenants that each ask now and then."""
    ttfts_s: list[float] = []

    async def one(tenant: str) -> None:
        began_s = time.monotonic()
        client = await world.client(
            request(body=chat(tokens=LIGHT_TOKENS, stream=True), headers={"x-tenant-id": tenant})
        )
        try:
            assert (await client.begun()).status == 200
            ttfts_s.append(time.monotonic() - began_s)
            while await client.piece():
                pass
        finally:
            client.hang_up()

    async with asyncio.TaskGroup() as group:
        random = Random("light")
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            group.create_task(one(f"light-{random.randrange(LIGHT_TENANTS)}"))
            await asyncio.sleep(random.expovariate(LIGHT_TENANTS * LIGHT_PER_S))
    return ttfts_s


async def two_engines(world: World) -> None:
    for _ in range(2):
        await world.engine(step_s=STEP_S, max_num_seqs=SLOTS)


async def flooded(world: World, usages: list[Any]) -> None:
    """Wait until the flood is in steady state: its answers no longer begin and end together."""
    await world.until(lambda: len(usages) > 2 * SLOTS)


async def test_light_tenants_hardly_notice_one_that_floods(world: World) -> None:
    await two_engines(world)
    await world.gateway(slots=SLOTS)
    await light_load(world, 0.5)  # connections, caches, averages
    alone_s = await light_load(world, 3.0)
    async with backlog(world, FLOOD_REQUESTS, answers("flood", *FLOOD_TOKENS), "flood") as usages:
        await flooded(world, usages)
        beside_s = await light_load(world, 4.0)
        assert world.picture().waiting > 2 * SLOTS
    ratio = p99(beside_s) / p99(alone_s)
    print(f"RATIO {ratio:.2f} alone {p99(alone_s):.3f} beside {p99(beside_s):.3f} n {len(alone_s)} {len(beside_s)}")
    assert ratio <= 1.5, f"p99 to the first token: {p99(alone_s):.3f} s alone, {p99(beside_s):.3f} s beside the flood"
