"""A fault of ours in what looks after a gateway's place in its group is told, and does not end the looking."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from unittest.mock import Mock

import pytest

from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.cluster import role
from penstock.gateway.cluster.role import GroupRole
from penstock.gateway.elect.static import StaticElection
from tests.gateway.conftest import World
from tests.gateway.share.test_strangers import _beside, decider, section

__all__ = ["_beside"]


@pytest.mark.usefixtures("_beside")
async def test_a_fault_while_looking_is_reported_and_looking_goes_on(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, count = 0, GroupRole._count

    def fails_twice(self: GroupRole, now: float) -> None:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise ZeroDivisionError("a fault of the test's")
        count(self, now)

    monkeypatch.setattr(GroupRole, "_count", fails_twice)
    monkeypatch.setattr(role, "FAULT_S", 0.01)
    await decider(world)
    await world.until(lambda: looks > 4)
    told = [record for record in caplog.records if "unexpected error" in record.message and record.exc_info]
    assert [record.message.rpartition(" in ")[2] for record in told] == ["0.01 s", "0.02 s"]
    events = (await world.ask("GET", "/admin/state")).json()["events"]
    assert any("unexpected error" in event["text"] for event in events)
    assert (await world.chat()).status == 200
    caplog.clear()  # those two errors were to be


@pytest.mark.usefixtures("_beside")
async def test_a_fault_in_the_election_is_reported_and_the_election_restarts(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, runs = StaticElection.run, 0

    async def fails_once(self: StaticElection, changed: object) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ZeroDivisionError("a fault of the test's")
        await run(self, changed)  # type: ignore[arg-type]

    monkeypatch.setattr(StaticElection, "run", fails_once)
    monkeypatch.setattr(role, "FAULT_S", 0.01)
    await decider(world)
    assert world.gate.cluster is not None
    assert world.gate.cluster.group is not None
    group = world.gate.cluster.group.role
    await world.until(lambda: group.role == "leads")
    assert (await world.chat()).status == 200
    assert sum("unexpected error" in record.message for record in caplog.records) >= 1
    caplog.clear()


@pytest.mark.virtual_time
async def test_a_fault_after_it_went_well_for_long_is_the_first_again(caplog: pytest.LogCaptureFixture) -> None:
    now, beside = asyncio.get_running_loop().time, Mock()
    role = GroupRole(
        *(section(), beside, beside, beside, beside), events=EventLog(), orders=beside, now=now, drains=bool
    )
    lasts_s = [0.0, 0.0, 0.0, 29.0, 31.0, 0.0, 31.0]  # each run, until its fault
    runs = iter(lasts_s)

    async def fails() -> None:
        with suppress(StopIteration):
            await asyncio.sleep(next(runs))
            raise ZeroDivisionError("a fault of the test's")

    await role._lasting(fails)
    pauses_s = [0.5, 1.0, 2.0, 4.0, 0.5, 1.0, 0.5]
    assert [record.message.rpartition(" in ")[2] for record in caplog.records] == [f"{pause:g} s" for pause in pauses_s]
    assert now() == pytest.approx(sum(lasts_s) + sum(pauses_s))
