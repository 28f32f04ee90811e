"""Do docstrings tell a caller what the signature does not? The share that does, room by room.

Asked is each public function and method (no property, nothing in a private class) that takes an argument, returns
something, or raises. Its docstring tells something if it says what is returned or raised, what None, True, False or
"empty" mean, names an error, or names a parameter in backquotes. A word in it proves no good docstring; its absence
from most of a room showed rooms that had to be read from their code. `python -m tests.tidy.test_docstrings` prints all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.test_imports import MODULES, SOURCE

SHARES_MIN = {
    "core": 0.8,
    "http": 0.55,
    "gateway/endpoints": 0.7,
    "gateway/openai": 0.9,
    "gateway/proxy": 0.5,
    "batch": 0.5,
}
TELLS = re.compile(r"\b(returns?|raises?|None|True|False|empty|\w+Error|\w+Exception)\b", re.IGNORECASE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.AST) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            if not child.name.startswith("_"):
                yield from public_functions(child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield child


def parameters(function: Function) -> list[str]:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def has_something_to_tell(function: Function) -> bool:
    if any("property" in ast.unparse(each) for each in function.decorator_list):
        return False
    returns = function.returns is not None and ast.unparse(function.returns) != "None"
    return bool(parameters(function)) or returns or any(isinstance(node, ast.Raise) for node in ast.walk(function))


def tells(function: Function) -> bool:
    said = ast.get_docstring(function) or ""
    return bool(TELLS.search(said)) or any(re.search(rf"`{name}\b", said) for name in parameters(function))


def count(room: str) -> tuple[int, int]:
    """How many functions of a room tell, of how many that have something to tell."""
    told = [
        tells(function)
        for path in MODULES
        if path.is_relative_to(SOURCE / "penstock" / room)
        for function in public_functions(ast.parse(path.read_text()))
        if has_something_to_tell(function)
    ]
    return sum(told), len(told)


@pytest.mark.parametrize("room", SHARES_MIN)
def test_docstrings_add_to_the_signature(room: str) -> None:
    told, asked = count(room)
    assert told / asked >= SHARES_MIN[room], f"{told} of {asked} public functions of {room} tell a caller something"


if __name__ == "__main__":
    for folder in sorted(path.name for path in (SOURCE / "penstock").iterdir() if path.is_dir()):
        told, asked = count(folder)
        if asked:
            print(f"{folder:12} {told:4} of {asked:4}  {told / asked:.0%}")
