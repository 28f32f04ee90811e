"""State holds, transitions change it, facts call them, the facade lists them: the scheduler can be read downwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from penstock.core.scheduler import Scheduler
from penstock.core.scheduling.endpoints import EndpointFacts
from penstock.core.scheduling.expiry import TimeFacts
from penstock.core.scheduling.operators import OperatorFacts
from penstock.core.scheduling.questions import Questions
from penstock.core.scheduling.requests import RequestFacts
from penstock.core.scheduling.takeover import TakeoverFacts
from tests.tidy.test_imports import imports

CORE = Path(__file__).parents[2] / "src/penstock/core"
ROOM = CORE / "scheduling"
TRANSITIONS = ("ends", "sending", "waiting", "judging", "returning", "recalling")
FACTS = ("requests", "endpoints", "operators", "takeover", "expiry", "questions")
LAYERS = ("inspection", "state", *TRANSITIONS, "reconfigure", FACTS)  # from the lowest up; facts don't know each other
LINES_MAX = 350


def _layer(stem: str) -> int:
    return next(at for at, layer in enumerate(LAYERS) if stem == layer or (stem in layer and isinstance(layer, tuple)))


def _known(path: Path) -> set[str]:
    """The files of the room that a file imports."""
    stems = {path.stem for path in ROOM.glob("*.py")}
    found = {full.removeprefix("penstock.core.scheduling.").split(".")[0] for full in map(".".join, imports(path))}
    return found & stems


@pytest.mark.parametrize("path", sorted(ROOM.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_file_knows_only_those_below_it_and_is_short(path: Path) -> None:
    for known in _known(path):
        assert _layer(known) < _layer(path.stem), f"{path.stem} knows {known}"
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("stem", TRANSITIONS)
def test_transitions_are_functions_of_the_state(stem: str) -> None:
    for node in ast.parse((ROOM / f"{stem}.py").read_text()).body:
        assert not isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef):
            assert node.args.args[0].arg in ("state", "entry"), f"{stem}.{node.name}"


def test_the_facade_lists_every_fact_and_every_answer_and_decides_nothing() -> None:
    (facade,) = [node for node in ast.parse((CORE / "scheduler.py").read_text()).body if isinstance(node, ast.ClassDef)]
    assert not facade.bases
    branches = (ast.If, ast.For, ast.While, ast.IfExp, ast.comprehension, ast.Try, ast.Match)
    assert not [node for node in ast.walk(facade) if isinstance(node, branches)]
    listed = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.walk(facade)
        if isinstance(node, ast.Assign) and len(node.targets) == 1
    }
    kinds = {
        "requests": RequestFacts,
        "endpoints": EndpointFacts,
        "operators": OperatorFacts,
        "takeover": TakeoverFacts,
        "timing": TimeFacts,
        "questions": Questions,
    }
    for group, kind in kinds.items():
        for name in vars(kind):
            if not name.startswith("_"):
                assert listed.pop(f"self.{name}") == f"{group}.{name}"
    assert set(listed) == set(kinds), "nothing else"


def test_the_scheduler_inherits_nothing() -> None:
    assert Scheduler.__mro__ == (Scheduler, object)
