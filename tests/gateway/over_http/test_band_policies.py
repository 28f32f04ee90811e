"""Each band may divide and order its requests in its own way, over HTTP and by reload."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.gateway.conftest import World, chat

pytestmark = pytest.mark.virtual_time

BANDS: list[dict[str, Any]] = [
    {"name": "standard", "ordering": "shortest_first"},
    {"name": "batch", "fairness": {"policy": "fcfs"}},
]


def _waits(world: World, count: int) -> bool:
    return world.picture().waiting == count


async def order(world: World, band: str, asked: list[tuple[str, str, int]]) -> list[str]:
    """In which order requests are served that come one after the other to a slot that is taken."""
    (engine,) = world.engines
    engine.log.clear()
    hold = await world.client_for(chat(tokens=300, stream=True), headers={"x-tenant-id": "holder"})
    await hold.begun()
    tasks = []
    for count, (name, tenant, tokens) in enumerate(asked, start=1):
        headers = {"x-tenant-id": tenant, "x-penstock-band": band, "x-request-id": name}
        tasks.append(world.soon(world.chat_with(headers, tokens=tokens)))
        await world.until(partial(_waits, world, count))
    hold.hang_up()
    for task in tasks:
        assert (await task).status == 200
    return [entry.headers["x-request-id"] for entry in engine.log.entries][1:]


async def test_each_band_has_its_own_fairness(world: World) -> None:
    await world.engine(max_num_seqs=1)
    await world.gateway(slots=1, bands=[{"name": "standard"}, {"name": "batch", "fairness": "fcfs"}])
    asked = [(f"a{at}", "a", 3) for at in range(3)] + [(f"b{at}", "b", 3) for at in range(3)]
    assert await order(world, "standard", asked) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert await order(world, "batch", asked) == [name for name, _, _ in asked], "whoever came first"


async def test_each_band_has_its_own_order(world: World) -> None:
    await world.engine(max_num_seqs=1)
    await world.gateway(slots=1, bands=BANDS)
    asked = [("long", "a", 14), ("middle", "a", 8), ("short", "a", 2)]  # below what is guessed of any answer
    assert await order(world, "standard", asked) == ["short", "middle", "long"]
    assert await order(world, "batch", asked) == ["long", "middle", "short"]


async def test_a_reload_changes_them_for_queued_requests(world: World) -> None:
    (engine,) = [await world.engine(max_num_seqs=1)]
    await world.gateway(slots=1, bands=[{"name": "standard"}, {"name": "batch"}])
    hold = await world.streaming(tokens=300)
    await hold.begun()
    tasks = []
    for count, (name, tokens) in enumerate((("long", 40), ("short", 2)), start=1):
        tasks.append(world.soon(world.chat_with({"x-request-id": name}, tokens=tokens)))
        await world.until(partial(_waits, world, count))
    world.document["bands"] = BANDS
    changed = (await world.ask("POST", "/admin/reload")).json()["changed"]
    assert sorted(changed) == ["bands[batch].fairness.policy", "bands[standard].ordering"]
    hold.hang_up()
    for task in tasks:
        assert (await task).status == 200
    assert [entry.headers["x-request-id"] for entry in engine.log.entries][1:] == ["short", "long"]
