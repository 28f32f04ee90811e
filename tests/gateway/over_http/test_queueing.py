"""Queueing is switched on and off by a reload; nothing is lost, and it is told why it is as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main as cli
from penstock.config.load import Flags, load
from penstock.core.values.catalogue import Failure
from penstock.gateway.queueing import queueing
from tests.gateway.conftest import World, fault

pytestmark = pytest.mark.virtual_time


async def switch(world: World, *, on: bool, **settings: Any) -> None:
    world.document |= {"queue": {"enabled": on}, **settings}
    answer = await world.ask("POST", "/admin/reload")
    assert answer.status == 200, answer.body
    assert "queue.enabled" in answer.json()["changed"]


async def test_queueing_off_sends_all_queued_requests_and_on_restores_slots(world: World) -> None:
    engine = await world.engine(step_s=0.02, max_num_seqs=2)
    await world.gateway(slots=2)
    tasks = [world.soon(world.chat(str(at), tokens=40)) for at in range(6)]
    await world.until(lambda: world.picture().waiting == 4 and len(engine.log.entries) == 2)

    await switch(world, on=False)
    assert world.picture().waiting == 0
    await world.until(lambda: len(engine.log.entries) == 6)
    through = world.soon(world.chat(tokens=40))
    await world.until(lambda: len(engine.log.entries) == 7)

    await switch(world, on=True)
    waits = world.soon(world.chat(tokens=2))
    await world.until(lambda: world.picture().waiting == 1)
    assert len(engine.log.entries) == 7, "seven run where two may: nothing more is sent until they have ended"
    answers = await asyncio.gather(*tasks, through, waits)
    assert [answer.status for answer in answers] == [200] * 8
    assert max(endpoint.leases for endpoint in world.picture().endpoints) == 0


async def test_a_request_for_a_removed_endpoint_keeps_its_time_in_the_queue(world: World) -> None:
    engine = await world.engine(step_s=0.005)
    await world.gateway(slots=4)
    fault(engine, "refuse")
    port = int(engine.url.rpartition(":")[2])
    world.engines.remove(engine)
    await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    task = world.soon(world.chat(tokens=2))
    await world.until(lambda: world.picture().waiting == 1)
    await switch(world, on=False)
    assert world.picture().waiting == 1
    await world.engine(port=port)
    assert (await task).status == 200


async def test_a_tenants_limit_on_running_requests_holds_with_queueing_off(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    await world.gateway(slots=1, tenants=[{"name": "a", "limits": {"running": 2}}])
    tasks = [world.soon(world.chat_with({"x-tenant-id": "a"}, tokens=20)) for _ in range(4)]
    await world.until(lambda: world.picture().waiting == 3)
    await switch(world, on=False)
    await world.until(lambda: len(engine.log.entries) == 2 and world.picture().waiting == 2)
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 4
    assert engine.log.in_engine_max == 2


async def test_a_request_sent_with_queueing_off_that_fails_after_it_is_on_waits(world: World) -> None:
    """Without a queue its last answer would be the end; with one it goes back to its place."""
    engine = await world.engine(step_s=0.02)
    await world.gateway(slots=1, queue={"enabled": False})
    hold = await world.streaming(tokens=60)
    await hold.begun()
    fault(engine, "hang", count=1)
    task = world.soon(world.chat(tokens=2))
    await world.until(lambda: len(engine.log.entries) == 2)
    await switch(world, on=True)
    (lease,) = [x for x, e in world.gate.driver.scheduler.inspect().leases.items() if not e.request.streamed]
    driver = world.gate.driver
    journey = driver.under_way[driver.scheduler.inspect().leases[lease].request.id]
    journey.hang_up()  # type: ignore[attr-defined]
    journey.failed(Failure.RESET, "the connection broke")  # type: ignore[attr-defined]
    assert world.picture().waiting == 1
    hold.hang_up()
    assert (await task).status == 200


async def test_the_reason_for_queueing_on_or_off_is_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await world.gateway()
    ready = (await world.ask("GET", "/readyz")).json()["queueing"]
    assert ready["enabled"] is True
    assert ready["why"].startswith("On, by default: ")
    assert (await world.ask("GET", "/admin/state")).json()["queueing"] == ready

    await switch(world, on=False)
    ready = (await world.ask("GET", "/readyz")).json()["queueing"]
    assert ready["enabled"] is False
    assert ready["why"].startswith("Off, as the file says")
    state = (await world.ask("GET", "/admin/state")).json()
    assert state["queueing"] == ready
    assert "Queueing: off" in state["headline"]
    assert await asyncio.to_thread(cli.main, ["status", "--url", world.url]) == 0
    assert "Queueing: off" in capsys.readouterr().out


def test_the_origin_is_a_file_a_variable_or_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text("queue: {enabled: false}")
    empty = tmp_path / "empty.yaml"
    empty.write_text("queue: {max_wait: 3s}")
    assert f"as {path} says" in queueing(load(str(path), {})).why
    assert "by default" in queueing(load(str(empty), {})).why
    assert "as --no-queue says" in queueing(load(str(empty), {}, Flags(no_queue=True))).why
    variable = {"PENSTOCK__QUEUE__ENABLED": "false"}
    assert "as PENSTOCK__QUEUE__ENABLED says" in queueing(load(str(path), variable)).why
