"""Explain: pydantic's validation errors in the words of the settings file.

Each error becomes one `Problem`: the path as written in the file, the value found and expected, and a suggestion for an
unknown key.

Settings also arrive at runtime, from files and through /admin, so the work is bounded: beyond `TOLD_MAX` problems only
their number is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.config.model import Settings
from penstock.config.other_words import AT_TOP, ours_for
from penstock.config.problems import (
    Filled,
    Location,
    Problem,
    Refused,
    did_you_mean,
    listing,
    show,
    write_path,
    written_at,
)
from penstock.config.sections.section import Section

TOLD_MAX = 50  # more than anybody reads at once; a suggestion takes up to a tenth of a millisecond
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_CHOICE = re.compile(r"'([^']*)'")


def explain(error: ValidationError, document: object) -> Iterator[tuple[Location, Problem]]:
    for detail in islice(error.errors(include_url=False), TOLD_MAX):
        location = tuple(part for part in detail["loc"] if part != "[key]")
        written = written_at(document, location)
        message, suggestion = _sentence(detail, location, written)
        if isinstance(written, Filled):
            suggestion = None  # a suggestion may quote the variable's content
        yield location, Problem(write_path(location), message, suggestion)
    if error.error_count() > TOLD_MAX:
        yield (), Problem(write_path(()), f"{error.error_count() - TOLD_MAX} more problems, not shown")


def _sentence(detail: ErrorDetails, location: Location, written: object) -> tuple[str, str | None]:
    found, context = show(written), detail.get("ctx", {})
    kind = detail["type"]
    cause = context.get("error")
    if isinstance(cause, Refused):
        return str(cause), cause.suggestion
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{found}: expected {words} {context[bound]:g}", _as_share(written, kind, context[bound])
    if kind == "extra_forbidden":
        return _unknown_key(location)
    if kind == "literal_error":
        return _wrong_choice(written, _CHOICE.findall(context["expected"]))
    if kind == "missing":
        return "is required", None
    if kind in {"tuple_type", "list_type"}:
        return f"expected a list, found {found}", "begin each item with `- `"
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        return f"expected a mapping (`key: value`), found {found}", _as_mapping(written, location)
    return f"{found} is not accepted here", None


def _unknown_key(location: Location) -> tuple[str, str | None]:
    key, section = str(location[-1]), section_at(location[:-1])
    if (now := section.removed.get(key)) is not None:
        return "was removed", now
    if len(location) == 1 and (there := AT_TOP.get(key)) is not None:
        return "unknown setting", f"write {there}"
    if (ours := ours_for(key)) is not None:
        return "unknown setting", ours
    known = list(section.model_fields)
    near = did_you_mean(key, known)
    if near is None:
        found = [prefix for prefix, other in _all_sections() if key in other.model_fields]
        places = [f"`{prefix}{key}`" if prefix else f"`{key}` at the top level" for prefix in found]
        near = f"did you mean {listing(places)}?" if places else None
    return "unknown setting", near or f"known here: {', '.join(known)}"


def _wrong_choice(value: object, choices: list[str]) -> tuple[str, str | None]:
    near = did_you_mean(value, choices) if isinstance(value, str) else None
    return f"{show(value)}: expected {listing(choices)}", near


def _as_share(written: object, kind: str, bound: object) -> str | None:
    """Returns the share that a percentage means, if a share is expected."""
    if kind in ("less_than", "less_than_equal") and bound == 1 and isinstance(written, int | float) and written <= 100:
        return f"a share, not a percentage: `{written / 100:g}`" if written > 1 else None
    return None


def _as_mapping(written: object, location: Location) -> str | None:
    """Returns how the mapping is written that a text probably means."""
    if not isinstance(written, str):
        return None
    key, colon, rest = written.partition(":")
    known = section_at(location).model_fields
    if colon and key in known and rest:
        return f"a space belongs after the colon: `{key}: …`"
    if "url" in known and "://" in written:
        return "begin it with `url: `"
    return f"write `{location[-1]}: {{policy: {show(written)[1:-1]}}}`" if location and "policy" in known else None


def section_at(location: Location) -> type[Section]:
    """Returns the section that the path `location` leads into; indexes and free names in the path do not matter."""
    section: type[Section] = Settings
    for part in location:
        field = section.model_fields.get(str(part))
        section = (nested(field.annotation) if field else None) or section
    return section


def sections(prefix: str = "", section: type[Section] = Settings) -> Iterator[tuple[str, type[Section]]]:
    """Yields every section, each with the prefix of its keys' paths."""
    yield prefix, section
    for key, field in section.model_fields.items():
        if inner := nested(field.annotation):
            container = get_origin(field.annotation)
            inside = "[]" if container is tuple else ".<name>" if container is dict else ""
            yield from sections(f"{prefix}{key}{inside}.", inner)


@cache
def _all_sections() -> tuple[tuple[str, type[Section]], ...]:
    return tuple(sections())


def nested(annotation: object) -> type[Section] | None:
    """Returns the section inside an annotation such as `tuple[Band, ...]`; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := nested(part))), None)
