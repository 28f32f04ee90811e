"""The scheduler's layers use themselves and those below, so that it can be read from any fact downwards."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

CORE = Path(__file__).parents[2] / "src/penstock/core"
LAYERS = ("state", "ends", "sending", "waiting", "requests", "endpoints", "operators")  # from the lowest up
FILES = [*(CORE / "scheduling" / f"{layer}.py" for layer in LAYERS), CORE / "scheduler.py"]
LINES_MAX = 350


def _layer(path: Path) -> ast.ClassDef:
    (found,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    return found


def _methods(layer: ast.ClassDef) -> set[str]:
    return {node.name for node in layer.body if isinstance(node, ast.FunctionDef)} - {"__init__"}


def test_no_layer_uses_one_above_it() -> None:
    above: set[str] = set()
    for path in reversed(FILES):
        layer = _layer(path)
        own = {
            node.attr
            for node in ast.walk(layer)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        }
        assert not own & above, f"{path.name} uses {own & above}"
        assert not _methods(layer) & above, f"{path.name} is overridden above"
        above |= _methods(layer)


def test_each_layer_stands_on_the_one_before_it_and_is_short() -> None:
    for below, layer in pairwise(map(_layer, FILES)):
        assert [ast.unparse(base) for base in layer.bases] == [below.name]
    assert {path.stem for path in (CORE / "scheduling").glob("*.py")} == {*LAYERS, "reconfigure", "__init__"}
    for path in FILES:
        assert len(path.read_text().splitlines()) <= LINES_MAX, path
