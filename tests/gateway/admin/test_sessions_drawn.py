"""Agents' sessions as the page draws them: bounded, whatever the number of endpoints and tenants."""

from __future__ import annotations

from typing import Any

from penstock.core.values.rows import MemoryRow, SessionsSnapshot
from penstock.gateway.admin.picture.memory import sessions_drawn


def sums(memory: list[MemoryRow], resident: int = 0, waiting: int = 0) -> SessionsSnapshot:
    return SessionsSnapshot(
        on=True, wait_s=300.0, resident=resident, waiting=waiting, price=0.1, price_of_minute=0.5,
        pauses_total=0, moves_total=0, forced_total=0, memory=memory,
    )  # fmt: skip


def row(number: int, tenants: dict[str, int]) -> MemoryRow:
    return MemoryRow(f"e{number}", 1000, 900, sum(tenants.values()), len(tenants), 1, tenants)


def drawn(sessions: SessionsSnapshot) -> Any:
    return sessions_drawn(sessions)


def test_nothing_is_drawn_without_sessions() -> None:
    assert sessions_drawn(None) is None
    assert drawn(sums([row(1, {})])) is None
    assert drawn(sums([row(1, {})], waiting=1))["waiting"] == 1


def test_endpoints_that_hold_most_and_their_first_tenants_are_drawn() -> None:
    many = [row(number, {f"t{at}": number * 10 - at for at in range(9)}) for number in range(1, 41)]
    shown = drawn(sums([*many, MemoryRow("silent", None, 0, 0, 0, 0, {})], resident=360))
    assert shown["idle"] == 40
    assert [one["endpoint"] for one in shown["memory"]] == [f"e{number}" for number in range(40, 8, -1)]
    assert shown["memory"][0]["tenants"] == {f"t{at}": 400 - at for at in range(8)}


def test_names_of_tenants_are_short_and_printable() -> None:
    shown = drawn(sums([row(1, {"a\nb" + "c" * 100: 5})], resident=1))
    (name,) = shown["memory"][0]["tenants"]
    assert len(name) == 60
    assert name.startswith("a·b")
