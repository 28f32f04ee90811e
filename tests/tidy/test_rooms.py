"""The rooms of the house: who may know whom in the core, how many files a room holds, and what each says of itself."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.tidy.test_imports import BENCH, MODULES, SOURCE, imports, inside, name_of

ROOMS = (
    "util", "values", "endpoints", "queueing", "sessions", "routing", "dispatch", "explain", "scheduling", "scheduler"
)  # fmt: skip
FILES_MAX = 16  # what one looks over at a glance; the fullest rooms of well-kept houses hold a dozen or two
OWN_KIND = {  # rooms whose files are all of one kind: what they hold is said once, not file by file
    "penstock.config.sections",
    "penstock.core.routing.policies",
    "penstock.engines",
    "bench.scenarios",
    "penstock.cli",
    "penstock.conformance",
    "bench.lab",
    "penstock",
    "penstock.core",
}
ALIKE = {
    "__init__",
    "base",
    "listener",
    "pool",
    "registry",
    "routes",
    "server",
}  # what they are is in their folder's name
EVERYTHING = (*MODULES, *BENCH)
PACKAGES = [path for path in EVERYTHING if path.name == "__init__.py"]


def _room(module: str) -> int:
    return ROOMS.index(module.split(".")[2])


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path).startswith("penstock.core.")], ids=name_of)
def test_rooms_of_the_core_know_only_those_below_them(path: Path) -> None:
    """What is imported for its type alone counts too: a reader has to know it all the same."""
    for module, _ in imports(path):
        if module.startswith("penstock.core."):
            assert _room(module) <= _room(name_of(path)), f"{name_of(path)} knows {module}"


def test_no_room_is_a_hall() -> None:
    folders = Counter(path.parent for path in EVERYTHING if path.name != "__init__.py")
    for folder, files in folders.items():
        assert files <= FILES_MAX, f"{folder.relative_to(SOURCE.parent)} holds {files} files"


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_a_room_opens_with_its_question_and_names_its_files(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, name_of(path)
    if name_of(path) in OWN_KIND:
        return
    here = {file.name for file in path.parent.glob("*.py")} - {"__init__.py"}
    named = set(re.findall(r"`([a-z0-9_]+\.py)`", said))
    assert here == named, f"not named: {here - named}; not there: {named - here}"


def test_no_two_classes_have_one_name() -> None:
    """Private ones included: a name that is found twice has to be read twice. Errors tell which other file has it."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in EVERYTHING:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name_of(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_two_files_on_the_way_of_a_request_have_one_name() -> None:
    """A `table.py` that is found twice says no question."""
    way = [path for room in ("core", "gateway", "http", "share") for path in inside(room)]
    assert {name for name, times in Counter(path.stem for path in way).items() if times > 1} <= ALIKE
