"""Which added paths have another meaning already? Two patterns overlap if one request may be meant by both."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.paths import ANSWERS, BELOW, BUILT_IN, OWN, PathSection
from penstock.config.problems import Document, Found, items_of, problem, show


def paths_checks(document: Document) -> Found:
    """Yields paths that have another meaning already."""
    given: dict[tuple[str, str], int] = {}
    for index, raw in enumerate(items_of(document.get("paths"))):
        entry, at = PathSection.valid(raw), ("paths", index, "path")
        if entry is None:
            continue
        key = entry.method, entry.path
        if (own := _overlapped(entry.path, OWN)) is not None:
            yield problem(at, f"{show(entry.path)} {_is(own, entry.path)} a path of the gateway itself")
        elif (own := _overlapped(entry.path, BUILT_IN)) is not None:
            message = f"{show(entry.path)} {_is(own, entry.path)} a path that passes without a setting"
            yield problem(at, message, "leave it out")
        elif _overlapped(entry.path, (ANSWERS,)) is not None:
            yield problem(at, f"{show(entry.path)} covers answers that engines keep, which go where they were made")
        elif key in given:
            yield problem(at, f"{entry.method} {show(entry.path)} is the same as paths[{given[key]}]", "leave one out")
        given.setdefault(key, index)


def _is(other: str, path: str) -> str:
    return "is" if other == path else f"has a common path with `{other}`,"


def _overlapped(path: str, others: Iterable[str]) -> str | None:
    """Returns the first of the other paths that has a request in common with this one."""
    return next((other for other in others if _covers(path, other) or _covers(other, path)), None)


def _covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith(BELOW) else pattern == path
