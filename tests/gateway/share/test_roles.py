"""A fault of ours in what looks after a gateway's place in its group is told, and does not end the looking."""

from __future__ import annotations

import pytest

from penstock.gateway.share import roles
from penstock.gateway.share.roles import GroupRole
from penstock.gateway.share.static import StaticElection
from tests.gateway.conftest import World
from tests.gateway.share.test_strangers import _beside, decider

__all__ = ["_beside"]


@pytest.mark.usefixtures("_beside")
async def test_a_fault_in_the_looking_is_told_and_it_goes_on(
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
    monkeypatch.setattr(roles, "FAULT_S", 0.01)
    await decider(world)
    await world.until(lambda: looks > 4)
    told = [record for record in caplog.records if "a fault of ours" in record.message and record.exc_info]
    assert [record.message.rpartition(" in ")[2] for record in told] == ["0.01 s", "0.02 s"]
    events = (await world.ask("GET", "/admin/state")).json()["events"]
    assert any("a fault of ours" in event["text"] for event in events)
    assert (await world.chat()).status == 200
    caplog.clear()  # those two errors were to be


@pytest.mark.usefixtures("_beside")
async def test_a_fault_in_the_election_is_told_and_it_begins_again(
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
    monkeypatch.setattr(roles, "FAULT_S", 0.01)
    await decider(world)
    assert world.gate.sharing is not None
    group = world.gate.sharing.roles
    await world.until(lambda: group.role == "leads")
    assert (await world.chat()).status == 200
    assert sum("a fault of ours" in record.message for record in caplog.records) >= 1
    caplog.clear()
