"""Another gateway before the same engines, which shares nothing with this one: it is seen in their gauges, and said."""

from __future__ import annotations

import logging

import pytest

from penstock.gateway.admin import watch
from penstock.gateway.admin.failing import strangers
from penstock.gateway.admin.failing.strangers import Strangers
from tests.gateway.conftest import Client, World

SAID = "Something else has sent requests to"


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "LASTS_S", 0.3)
    monkeypatch.setattr(watch, "INTERVAL_S", 0.02)


async def _beside(world: World, streams: int) -> list[Client]:
    """So many streams at each engine that do not come through the gateway."""
    clients: list[Client] = []
    gateway = world.port
    for engine in world.engines:
        world.port = int(engine.url.rpartition(":")[2])
        clients += [await world.streaming(tokens=5000) for _ in range(streams)]
    world.port = gateway
    for client in clients:
        await client.begun()
    return clients


async def _headline(world: World) -> tuple[str, str]:
    state = (await world.ask("GET", "/admin/state")).json()
    return state["headline"], state["tone"]


async def test_another_gateway_on_the_same_engines_is_said_and_when_it_is_gone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        await world.engine()
    await world.gateway(slots=8)
    clients = await _beside(world, 4)
    ours = [await world.streaming(tokens=2000) for _ in range(4)]
    await world.until(lambda: any(SAID in record.message for record in caplog.records))
    headline, tone = await _headline(world)
    assert headline.startswith(f"{SAID} 2 of 2 endpoints for ")
    assert "let them share (docs/scale.md)" in headline
    assert tone == "busy"
    for client in (*clients, *ours):
        client.hang_up()
    await world.until(lambda: any("nothing else sends requests" in record.message for record in caplog.records))
    assert SAID not in (await _headline(world))[0]
    warned = [record for record in caplog.records if SAID in record.message and record.levelno == logging.WARNING]
    assert len(warned) == 1, "once"


async def test_one_who_asks_an_engine_directly_is_no_gateway(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are our own requests, many of them short, and clients that hang up."""
    looks = 0
    look = Strangers.look

    def counted(self: Strangers, *args: object) -> str | None:
        nonlocal looks
        looks += 1
        return look(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Strangers, "look", counted)
    for _ in range(3):
        await world.engine()
    await world.gateway(slots=8)
    first, *others = world.engines
    world.engines = [first]
    clients = await _beside(world, 4)
    world.engines = [first, *others]
    for _ in range(1000):
        answers = [world.soon(world.chat(tokens=4)) for _ in range(10)]
        gone = await world.streaming(tokens=100)
        await gone.begun()
        gone.hang_up()
        for answer in answers:
            assert (await answer).status == 200
        if looks > 30:
            break
    assert looks > 30
    assert SAID not in (await _headline(world))[0]
    for client in clients:
        client.hang_up()
