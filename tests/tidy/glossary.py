"""Keeps the tables of classes in docs/glossary.md: `python -m tests.tidy.glossary` adds, drops and moves rows.

A meaning that somebody wrote stays. A new class gets the first sentence of its docstring, to be read once.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/penstock"
CORE = SOURCE / "core"
PAGE = ROOT / "docs/glossary.md"
BEGIN = "## Classes of the core"
ROOMS = ("values", "util", "endpoints", "queueing", "routing", "dispatch", "explain", "scheduling", "")


def _trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(CORE)): ast.parse(path.read_text()) for path in sorted(CORE.rglob("*.py"))}


def _public(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def classes() -> dict[str, str]:
    """The file of each public class of the core; names are unique there."""
    return {node.name: file for file, tree in _trees().items() for node in _public(tree)}


def rows(text: str) -> list[list[str]]:
    """The cells of all tables of a page, without their heads."""
    found = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found]
    return [row for row in cells if row[0] not in ("word", "class")]


def class_rows(text: str) -> dict[str, tuple[str, str]]:
    """Meaning and file of each class that the page lists."""
    return {
        row[0].strip("`"): (row[1], row[2].strip("`").removeprefix("core/"))
        for row in rows(text)
        if row[0].startswith("`")
    }


def _first_sentence(node: ast.ClassDef) -> str:
    said = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).replace("|", "/")
    sentence = said.partition(". ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:] if sentence else "not said yet"


def page() -> str:
    """The page with its words as they are, and a table of classes for each room."""
    text = PAGE.read_text()
    known, trees = class_rows(text), _trees()
    told = text.partition(BEGIN)[0].rstrip() + f"\n\n{BEGIN}\n"
    for room in ROOMS:
        inside = {
            node.name: (file, node)
            for file, tree in trees.items()
            if (file.partition("/")[0] if "/" in file else "") == room
            for node in _public(tree)
        }
        if inside:
            told += f"\n### `core{'/' + room if room else ''}`\n\n| class | meaning | where |\n|---|---|---|\n"
        for name, (file, node) in sorted(inside.items(), key=lambda item: (item[1][0], item[1][1].lineno)):
            meaning = known[name][0] if name in known else _first_sentence(node)
            told += f"| `{name}` | {meaning} | `core/{file}` |\n"
    return told


if __name__ == "__main__":
    PAGE.write_text(page())
