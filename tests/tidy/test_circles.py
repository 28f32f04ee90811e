"""Circles of imports between the files of `gateway`: whoever reads one file of a circle has to know all of it.

What is imported for its type alone counts too. A circle that stays is listed here with its files; it may shrink, and a
new one fails. Where a part needs little of a later one, a `Protocol` beside it says so.
"""

from __future__ import annotations

from tests.tidy.test_imports import imports, inside, name_of

ROOM = "penstock.gateway."
STAY = (
    {"bootstrap", "cluster.cluster"},
    {"proxy.journey", "proxy.mending"},
)


def circles(knows: dict[str, set[str]]) -> list[set[str]]:
    """Returns the largest sets of files that all reach each other, the sets of one file left out."""
    reached = {file: _reached(file, knows) for file in knows}
    found = {frozenset(other for other in reached[file] if file in reached[other]) for file in knows}
    return [set(circle) for circle in found if len(circle) > 1]


def _reached(file: str, knows: dict[str, set[str]]) -> set[str]:
    seen, rest = set[str](), [file]
    while rest:
        new = knows[rest.pop()] - seen
        seen |= new
        rest += new
    return seen


def of_the_gateway() -> dict[str, set[str]]:
    """Returns which files of the room each of its files imports."""
    files = {name_of(path).removeprefix(ROOM): path for path in inside("gateway")}
    return {
        file: {
            name
            for module, what in imports(path)
            for name in (module.removeprefix(ROOM), f"{module}.{what}".removeprefix(ROOM))
            if name in files
        }
        for file, path in files.items()
    }


def test_circles_are_found() -> None:
    knows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set[str]()}
    assert circles(knows) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": set[str]()}) == []


def test_the_gateway_has_no_circles_but_those_that_stay() -> None:
    found = circles(of_the_gateway())
    assert [sorted(circle) for circle in found if not any(circle <= known for known in STAY)] == []
