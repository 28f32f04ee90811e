"""What is known of a request stands in records, and each is written by one room (docs/decisions/0033).

Asked is each assignment in the core to an attribute that is named like a slot of a record, of `Entry` or of `Lease`:
it stands in the room that writes the record, or in the record's own methods. Others call these, so who changes what is
found by their names. What is not seen by its name (`setattr`) is not to be done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.endpoints.lease import Lease
from penstock.core.queueing import entry
from tests.tidy.test_imports import SOURCE

CORE = SOURCE / "penstock/core"
ROOMS: dict[str, tuple[str, type]] = {  # by the entry's slot: the room that writes it, and what it holds
    "queue": ("queueing", entry.QueueRecord),
    "charge": ("queueing", entry.ChargeRecord),
    "route": ("routing", entry.RouteRecord),
    "affinity": ("routing", entry.AffinityRecord),
    "retry": ("scheduling", entry.RetryRecord),
}
OWN = {"entry": ("queueing", entry.Entry), "lease": ("endpoints", Lease)}  # what these hold beside records
# Other classes' attributes of the same name, as (file, what is assigned to). No entry and no lease is among them.
OTHERS = {
    ("queueing/quotas.py", "account.queued_tokens"),
    ("queueing/quotas.py", "held.queued_tokens"),
    ("scheduler.py", "state.seq"),
    ("explain/recorder.py", "trail.counted"),
    ("explain/recorder.py", "trail.model"),
    ("explain/recorder.py", "model.prompt_tokens"),
    ("explain/recorder.py", "model.output_tokens"),
}
OWNERS: dict[str, set[str]] = {}
for _room, _kind in (*ROOMS.values(), *OWN.values()):
    for _slot in _kind.__slots__:  # type: ignore[attr-defined]
        OWNERS.setdefault(_slot, set()).add(_room)


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is assigned to, changed or deleted, but for an object's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and ast.unparse(node.value) != "self":
            yield node


def owners(target: ast.Attribute) -> set[str]:
    """The rooms that may write an attribute: its record's where that is named, else those of all that have the name."""
    if isinstance(target.value, ast.Attribute) and target.value.attr in ROOMS:
        return {ROOMS[target.value.attr][0]}
    return OWNERS.get(target.attr, set())


def outside(path: Path, source: str) -> list[str]:
    """What a file of the core assigns to that another room writes."""
    here = str(path.relative_to(CORE))
    room = here.partition("/")[0]
    found = []
    for target in assigned(ast.parse(source)):
        may = owners(target)
        if may and room not in may and (here, ast.unparse(target)) not in OTHERS:
            found.append(f"{here}:{target.lineno} {ast.unparse(target)} is written by {sorted(may)}")
    return found


def test_a_record_is_written_by_its_room_alone() -> None:
    found = [each for path in sorted(CORE.rglob("*.py")) for each in outside(path, path.read_text())]
    assert found == []


def test_only_the_core_writes_to_requests_and_leases() -> None:
    for room in ("gateway", "sim", "conformance", "batch"):
        for path in (SOURCE / "penstock" / room).rglob("*.py"):
            for target in assigned(ast.parse(path.read_text())):
                base = target.value
                assert not (isinstance(base, ast.Attribute) and base.attr in ROOMS and target.attr in OWNERS), (
                    f"{path}:{target.lineno} {ast.unparse(target)}"
                )


def test_records_are_all_that_an_entry_holds_of_them() -> None:
    slots = set(entry.Entry.__slots__)
    assert set(ROOMS) <= slots
    made = {name for name, kind in vars(entry).items() if isinstance(kind, type) and name.endswith("Record")}
    assert made == {kind.__name__ for _, kind in ROOMS.values()}


@pytest.mark.parametrize("slot", ROOMS)
def test_the_walk_sees_what_it_should(slot: str) -> None:
    room, kind = ROOMS[slot]
    name = sorted(kind.__slots__)[0]  # type: ignore[attr-defined]
    for place in ("queueing", "routing", "dispatch", "scheduling", "explain"):
        source = f"def f(entry):\n    entry.{slot}.{name} += 1\n"
        assert bool(outside(CORE / place / "made_up.py", source)) == (place != room)
    assert outside(CORE / "explain/made_up.py", f"record.{name} = 1"), "whatever the record is called there"
