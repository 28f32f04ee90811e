"""The record holds, functions change it, the scheduler's facts call them: the scheduler can be read downwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler
from penstock.core.scheduling.questions import Questions
from tests.tidy.test_imports import imports

ROOM = Path(__file__).parents[2] / "src/penstock/core/scheduling"
TRANSITIONS = ("waiting", "gating", "sending", "returning", "preempting", "pumping")
LAYERS = ("state", "places", "questions", *TRANSITIONS, "taking_over", "reconfigure")  # from the lowest up
LINES_MAX = 350
SENDS_NOTHING = {
    *("passed_on", "moved", "kv_stored", "kv_lost"),
    *("credited", "remembered", "drained", "budgets_left"),
}


@pytest.mark.parametrize("path", sorted(ROOM.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_file_knows_only_those_below_it_and_is_short(path: Path) -> None:
    found = {full.removeprefix("penstock.core.scheduling.").split(".")[0] for full in map(".".join, imports(path))}
    for known in found & set(LAYERS):
        assert LAYERS.index(known) < LAYERS.index(path.stem), f"{path.stem} knows {known}"
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("stem", TRANSITIONS)
def test_transitions_are_functions_of_the_state(stem: str) -> None:
    for node in ast.parse((ROOM / f"{stem}.py").read_text()).body:
        assert not isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef):
            assert node.args.args[0].arg in ("state", "entry"), f"{stem}.{node.name}"


def test_every_public_method_of_the_scheduler_is_a_fact_and_is_checked() -> None:
    facts = {name: method for name, method in vars(Scheduler).items() if not name.startswith("_")}
    assert len(facts) > 40
    for name, fact in facts.items():
        assert fact.__annotations__["return"] == "list[Action]", name
        assert (name in vars(CheckedScheduler)) != (name in SENDS_NOTHING), f"nothing is checked after {name}"
    assert Scheduler.__mro__ == (Scheduler, Questions, object)


def test_a_fact_calls_no_other_fact() -> None:
    """Its checks would run in the middle of another."""
    facts = {name for name in vars(Scheduler) if not name.startswith("_")}
    tree = ast.parse((ROOM.parent / "scheduler.py").read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {f"self.{name}" for name in facts}
