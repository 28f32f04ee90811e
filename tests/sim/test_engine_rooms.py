"""Rooms: the one who waits gets what is computed, once, or learns that nothing will come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.sim.fake_engine import rooms as engine_rooms
from penstock.sim.fake_engine.rooms import ComputedKv, Rooms, fetch


@pytest.fixture
async def rooms() -> AsyncIterator[Rooms]:
    made = Rooms()
    await made.start("127.0.0.1", 0)
    yield made
    made.close()


@pytest.mark.parametrize("first", ["computed", "asked"])
async def test_a_rooms_result_reaches_early_and_late_engines(rooms: Rooms, first: str) -> None:
    if first == "computed":
        rooms.computed(7, (1, 2), 33)
    asking = asyncio.ensure_future(fetch("127.0.0.1", rooms.port, 7))
    if first == "asked":
        while 7 not in rooms._rooms:
            await asyncio.sleep(0)
        rooms.computed(7, (1, 2), 33)
    assert await asking == ComputedKv([1, 2], 33)
    assert not rooms._rooms


async def test_a_hopeless_wait_is_reported(rooms: Rooms) -> None:
    asking = asyncio.ensure_future(fetch("127.0.0.1", rooms.port, 7))
    while 7 not in rooms._rooms:
        await asyncio.sleep(0)
    rooms.gave_up(7)
    assert await asking is None
    rooms.close()
    assert await fetch("127.0.0.1", rooms.port, 7) is None


async def test_rooms_are_bounded_and_the_oldest_are_given_up(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_rooms, "ROOMS_MAX", 2)
    for room in range(5):
        rooms.computed(room, (), room)
    assert list(rooms._rooms) == [3, 4]
    assert await fetch("[127.0.0.1]", rooms.port, 4) == ComputedKv([], 4)
