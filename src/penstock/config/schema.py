"""The settings as a JSON Schema, for editors; `penstock schema` prints it.

It is as strict as possible without refusing what `penstock check` accepts: units, `${VAR}` and short forms are allowed,
and contradictions are not checked. docs/penstock.schema.json is a copy, held by a test.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from penstock.config.explain import nested
from penstock.config.model import DEFAULT_BANDS, Settings
from penstock.config.sections.section import Section
from penstock.config.values import ValueKind

DIALECT = "http://json-schema.org/draft-07/schema#"  # the best supported by editors
Schema = dict[str, Any]

_FILLED: Schema = {"type": "string", "pattern": r"\$\{"}  # the value comes out of the environment
_TEXT: Schema = {"type": ["string", "number"]}  # a name may be all digits
_AUTO: Schema = {"const": "auto"}
_NUMBERS = {
    "duration": ("number", r"^\s*[0-9.]+\s?(ms|s|m|h|d)?\s*$"),
    "size": ("integer", r"^\s*[0-9.]+\s?([kKmMgGtT]?[iI]?[bB])?\s*$"),
    "whole number": ("integer", r"^\s*[0-9]+\s*$"),
    "number": ("number", r"^\s*[0-9.eE+-]+\s*$"),
    "number, more than 0": ("number", r"^\s*[0-9.eE+-]+\s*$"),
}
_SPECIAL: dict[str, list[Schema]] = {
    "true or false": [{"type": "boolean"}, {"enum": ["true", "false", "yes", "no", "on", "off"]}],
    "name, or a list of names": [_TEXT, {"type": "array", "items": _TEXT}],
    "`auto`, a list of names, or `{ours: theirs}`": [
        _AUTO,
        {"type": "array", "items": _TEXT},
        {"type": "object", "additionalProperties": _TEXT},
    ],
    "`auto` or a whole number ≥ 1": [_AUTO, {"type": "integer", "minimum": 1}],
    "`auto` or a number, at least 0, less than 1": [_AUTO, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}],
    "`inf` or a number, more than 0": [{"const": "inf"}, {"type": "number", "exclusiveMinimum": 0}],
    "`inf` or a duration": [
        {"const": "inf"},
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": _NUMBERS["duration"][1]},
    ],
    "`auto` or a duration, at least 0": [
        _AUTO,
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": _NUMBERS["duration"][1]},
    ],
    "`off`, `auto` or `tcp://host:port`": [{"const": False}, {"type": "string"}],
}
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_SHORT = frozenset({"dns", "file", "fairness", "keys", "store"})  # may be given as a text


def schema() -> Schema:
    return {"$schema": DIALECT, "title": "Penstock's settings", **_section(Settings)}


def text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def add_arguments(_: argparse.ArgumentParser) -> None:
    """`penstock schema` has no arguments."""


def run(_: argparse.Namespace) -> int:
    sys.stdout.write(text())
    return 0


def _section(section: type[Section]) -> Schema:
    required = [key for key, field in section.model_fields.items() if field.is_required()]
    found: Schema = {
        "description": inspect.getdoc(section),
        "type": "object",
        "properties": {key: _field(key, field) for key, field in section.model_fields.items()},
        "additionalProperties": False,
    }
    return found | ({"required": required} if required else {})


def _field(key: str, field: FieldInfo) -> Schema:
    inner = nested(field.annotation)
    found: Schema = {"description": field.description} if field.description else {}
    if inner is not None:
        return found | _around(key, field, _section(inner))
    options = _options(field)
    if type(None) in get_args(field.annotation):
        options = [*options, {"type": "null"}]
    found |= options[0] if len(options) == 1 else {"anyOf": options}
    default = to_jsonable_python(field.default) if _is_plain(field.default) else None
    return found if default in (None, "", math.inf) else found | {"default": default}


def _around(key: str, field: FieldInfo, inner: Schema) -> Schema:
    """The schema of a section, or of a list or mapping of sections. `null` is allowed: it means the defaults."""
    container = get_origin(field.annotation)
    if key == "bands":
        names = "|".join([band.name for band in DEFAULT_BANDS])
        changes = {f"^({names})$": {**inner, "required": [], "type": ["object", "null"]}}
        by_name = {"patternProperties": changes, "additionalProperties": False}
        return {"type": ["array", "object", "null"], "items": inner, **by_name}
    if container is tuple:
        return {"type": ["array", "null"], "items": {"anyOf": [{"type": "string"}, inner]} if key in _SHORT else inner}
    if container is dict:
        return {"type": ["object", "null"], "additionalProperties": inner}
    if key in _SHORT:
        return {"anyOf": [{"type": "string"}, inner, {"type": "null"}]}
    return {**inner, "type": ["object", "null"]}


def _options(field: FieldInfo) -> list[Schema]:
    kind, container = kind_of(field), get_origin(field.annotation)
    if container is dict:
        return [{"type": "object", "additionalProperties": _TEXT}]
    choices = list(choices_of(field.annotation))
    if kind is None:
        one: Schema = {"enum": choices} if choices else _TEXT
        if container is tuple:
            return [{"type": "array", "items": one if choices or item_of(field) is None else _TEXT}]
        return [one, _FILLED] if choices else [one]
    if kind.choices is not None:
        return [{"enum": list(kind.choices())}, _FILLED]
    if kind.name in _SPECIAL:
        return [*_SPECIAL[kind.name], *([] if kind.name.startswith("`off`") else [_FILLED])]
    if kind.name in _NUMBERS:
        number, pattern = _NUMBERS[kind.name]
        limits = {BOUNDS[name]: value for name, value in bounds_of(field)}
        return [{"type": number, **limits}, {"type": "string", "pattern": pattern}, _FILLED]
    return [_TEXT]


def bounds_of(field: FieldInfo) -> Iterator[tuple[str, float]]:
    """Yields the bounds of a number: `gt`, `ge`, `lt` or `le`, and the limit."""
    for name in BOUNDS:
        for constraint in field.metadata:
            if (value := getattr(constraint, name, None)) is not None:
                yield name, value


def kind_of(field: FieldInfo) -> ValueKind | None:
    return next((item for item in field.metadata if isinstance(item, ValueKind)), None)


def item_of(field: FieldInfo) -> str | None:
    """Returns the kind of a list's items; None if the setting is not a list."""
    if get_origin(field.annotation) is not tuple:
        return None
    return next((part.name for part in get_args(get_args(field.annotation)[0]) if isinstance(part, ValueKind)), None)


def choices_of(annotation: object) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from choices_of(part)


def _is_plain(default: object) -> bool:
    return default is not PydanticUndefined and isinstance(default, bool | int | float | str | tuple) and default != ()
