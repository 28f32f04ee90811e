"""What is known of a request is one record, and each of its fields is written by the rooms that its subject belongs to.

Each assignment in the core to an attribute named like a field of `Entry`, of one of its two optional records or of
`Lease` has to be in a room that may write it, or in the record's own methods (docs/decisions/0120). What is not seen by
its name (`setattr`) is not to be done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.endpoints.lease import Lease
from penstock.core.queueing import entry
from penstock.gateway.proxy.relay import Relay
from tests.tidy.test_imports import SOURCE

CORE = SOURCE / "penstock/core"
QUEUED = {"queueing", "scheduling"}  # an event in `scheduling` moves a request, whose place is kept in `queueing`
JOURNEYS = (
    ("proxy/journey.py", "QueuedJourney"),
    ("proxy/direct.py", "DirectJourney"),
    ("proxy/stored_answers.py", "StoredJourney"),
    ("epp/picked_journey.py", "PickedJourney"),
)
SUBJECTS: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "its place in the queue, and how long it may keep it": (
        QUEUED,
        ("deadline_s", "held", "held_s", "key", "node", "pool_empty", "queued_since_s", "visit", "wait_s_max",
         "waited_s"),
    ),
    "its size class while it waits": ({"queueing"}, ("size_class",)),
    "what it is estimated to take": (QUEUED, ("output_tokens", "prompt_tokens", "whole", "work")),
    "what its flow was charged": (
        {"queueing"},
        ("charged", "charged_output", "cost", "counted_in", "output_seen"),
    ),
    "where its prompt is believed cached": (
        {"routing"},
        ("alike", "blocks", "cached_tokens", "keys_since", "located", "looked_up", "sought", "source", "twin_computing",
         "uncached_tokens"),
    ),
    "its lease": ({"scheduling"}, ("lease",)),
    "the record of its wait for an endpoint": ({"queueing", "routing"}, ("affinity",)),
    "what it is": (
        {"queueing"},
        ("account", "accounts", "backfilled", "band", "id", "model", "only", "pinned", "prefix",
         "prices", "request", "retry", "seq", "state", "streamed", "tenant"),
    ),
}  # fmt: skip
RECORDS: dict[str, tuple[str, type]] = {  # by the entry's slot: the room that writes it, and what it holds
    "affinity": ("routing", entry.AffinityRecord),
    "retry": ("scheduling", entry.RetryRecord),
}
# Other classes' attributes of the same name, as (file, what is assigned to). No entry and no lease is among them.
OTHERS = {
    ("queueing/estimate.py", "learned.output_tokens"),
    ("queueing/quotas.py", "account.queued_tokens"),
    ("queueing/quotas.py", "held.queued_tokens"),
    ("scheduler.py", "state.seq"),
    ("scheduling/taking_over.py", "state.seq"),
    ("explain/recorder.py", "trail.band"),
    ("explain/recorder.py", "trail.counted"),
    ("explain/recorder.py", "trail.model"),
    ("explain/recorder.py", "model.prompt_tokens"),
    ("explain/recorder.py", "model.output_tokens"),
    ("explain/shares.py", "meter.band"),
    ("sessions/gate.py", "session.model"),
}
OWNERS: dict[str, set[str]] = {}
for _rooms, _fields in SUBJECTS.values():
    for _field in _fields:
        OWNERS.setdefault(_field, set()).update(_rooms)
for _room, _kind in RECORDS.values():
    for _field in _kind.__slots__:  # type: ignore[attr-defined]
        OWNERS.setdefault(_field, set()).add(_room)
for _field in Lease.__slots__:
    OWNERS.setdefault(_field, set()).add("endpoints")


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is assigned to, changed or deleted, except an object's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and ast.unparse(node.value) != "self":
            yield node


def owners(target: ast.Attribute) -> set[str]:
    """The rooms that may write an attribute: its record's if that is named, otherwise all that have the name."""
    if isinstance(target.value, ast.Attribute) and target.value.attr in RECORDS:
        return {RECORDS[target.value.attr][0]}
    return OWNERS.get(target.attr, set())


def outside(path: Path, source: str) -> list[str]:
    """What a file of the core assigns to that another room writes."""
    here = str(path.relative_to(CORE))
    room = "scheduling" if here == "scheduler.py" else here.partition("/")[0]
    found = []
    for target in assigned(ast.parse(source)):
        may = owners(target)
        if may and room not in may and (here, ast.unparse(target)) not in OTHERS:
            found.append(f"{here}:{target.lineno} {ast.unparse(target)} is written by {sorted(may)}")
    return found


def test_a_field_is_written_by_its_rooms_alone() -> None:
    found = [each for path in sorted(CORE.rglob("*.py")) for each in outside(path, path.read_text())]
    assert found == []


def test_only_the_core_writes_to_requests_and_leases() -> None:
    for room in ("gateway", "sim", "conformance", "batch"):
        for path in (SOURCE / "penstock" / room).rglob("*.py"):
            for target in assigned(ast.parse(path.read_text())):
                base = target.value
                assert not (isinstance(base, ast.Attribute) and base.attr in RECORDS and target.attr in OWNERS), (
                    f"{path}:{target.lineno} {ast.unparse(target)}"
                )


def test_each_field_of_a_request_has_a_subject() -> None:
    assert set(entry.Entry.__slots__) == {field for _, fields in SUBJECTS.values() for field in fields}
    made = {name for name, kind in vars(entry).items() if isinstance(kind, type) and name.endswith("Record")}
    assert made == {kind.__name__ for _, kind in RECORDS.values()}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_walk_sees_what_it_should(subject: str) -> None:
    rooms, fields = SUBJECTS[subject]
    for field in fields:
        for place in ("queueing", "routing", "dispatch", "scheduling", "explain"):
            source = f"def f(other):\n    other.{field} += 1\n"
            assert bool(outside(CORE / place / "made_up.py", source)) == (place not in OWNERS[field])
        assert rooms <= OWNERS[field]


def class_of(path: str, name: str) -> ast.ClassDef:
    body = ast.parse((SOURCE / "penstock/gateway" / path).read_text()).body
    return next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)


@pytest.mark.parametrize(("path", "name"), JOURNEYS)
def test_a_journey_answers_its_relay_and_leaves_the_rest_of_it_alone(path: str, name: str) -> None:
    """One object with two keepers: each field has one writer, and calls go each way by one list."""
    relay = class_of("proxy/relay.py", "Relay")
    source = (SOURCE / "penstock/gateway/proxy/relay.py").read_text().splitlines()
    first, last = [
        at for at, line in enumerate(source) if "for its journey to answer ---" in line or "engine's side" in line
    ]
    its = {node.name: node.lineno for node in relay.body if isinstance(node, ast.FunctionDef)}
    answers = {method for method, line in its.items() if first < line <= last}
    journey = class_of(path, name)
    own = {node.name for node in journey.body if isinstance(node, ast.FunctionDef)}
    assert own & its.keys() <= answers | {"__init__"}
    written = {
        node.attr for node in ast.walk(journey) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert written & set(Relay.__slots__) <= {"progress_at"}
