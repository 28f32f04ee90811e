"""What is compiled (pyproject.toml) and what is left: msgspec structs and dataclasses would not stay what they are."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
HOOK = BUILD["targets"]["wheel"]["hooks"]["custom"]


def _matching(patterns: list[str]) -> set[Path]:
    return {path for pattern in patterns for path in (ROOT / "src").glob(pattern)}


def _defines_values(path: Path) -> bool:
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    told = [ast.unparse(part) for node in classes for part in (*node.bases, *node.keywords, *node.decorator_list)]
    return any(word in part for part in told for word in ("Struct", "frozen", "dataclass"))


def test_a_file_is_left_if_and_only_if_it_defines_values() -> None:
    chosen = _matching(HOOK["compile"])
    assert {path for path in chosen if _defines_values(path)} == _matching(HOOK["leave"])
    assert len(chosen) > 50


def test_the_list_stands_on_files_that_are_there() -> None:
    for pattern in (*HOOK["compile"], *HOOK["leave"]):
        assert _matching([pattern]), pattern
