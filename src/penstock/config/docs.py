"""The settings' reference: how is docs/configuration.md made from the models, so that it can't be out of date?

`python -m penstock.config.docs > docs/configuration.md` writes it; a test holds the file to it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.config.explain import nested, sections
from penstock.config.model import DEFAULT_BANDS, BandSection
from penstock.config.sections.section import Section
from penstock.config.values import ValueKind

INTRODUCTION = """\
# Configuration

<!-- Generated: python -m penstock.config.docs > docs/configuration.md -->

Later wins:

1. the defaults below,
2. the file: `penstock serve -c penstock.yaml`,
3. the environment: `PENSTOCK__QUEUE__MAX_WAIT=20s` is `queue.max_wait`. Names are matched in lower case; a list
   or a mapping is given as YAML (`PENSTOCK__ENDPOINTS='[{url: http://gpu-0:8000}]'`), one item of a list by its
   number (`PENSTOCK__ENDPOINTS__0__SLOTS=32`),
4. flags: `--endpoint URL` (repeatable), `--listen HOST:PORT`, `--slots N` (for every endpoint whose `slots` is
   `auto`), `--routing NAME`, `--imbalance-threshold N`, `--no-queue`.

Mappings merge key by key; a list replaces the list before it as a whole. Unknown keys, keys given twice and
values that contradict each other are refused at start, all at once, each with its path. What was written and can
do nothing beside the rest is a warning. `penstock check FILE` says the same without starting. It says also what only
shows on the machine where it runs: whether certificates, the address, the data folder and discovery can be used. It
does not look whether another program has the port, or another gateway the folder.

How values are written:

- **duration**: seconds, or a number with `ms`, `s`, `m` or `h`: `500ms`, `20s`, `2m`, `1h`;
- **size**: bytes, or a number with `KB`, `MB`, `GB`, `TB` (powers of 1000) or `KiB`, `MiB`, `GiB`, `TiB`
  (of 1024);
- **true or false**: also `yes`, `no`, `on`, `off`;
- `${VAR}` in a value of the file is replaced by that environment variable, which has to be set;
  `${VAR:-default}` has a default for when it is unset or empty; `$$` is a dollar sign. What a variable holds is
  never shown in a message;
- only `true`, `false`, `null` and decimal numbers have a meaning of their own in the file. Everything else is
  text.
"""

_COLUMNS = "| setting | default | value | meaning |\n|---|---|---|---|\n"
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def reference_markdown() -> str:
    return INTRODUCTION + "".join(_section(prefix, section) for prefix, section in sections())


def _section(prefix: str, section: type[Section]) -> str:
    """Returns a heading, what the section is for, and a table with a row per setting."""
    heading = f"`{prefix.removesuffix('.')}`" if prefix else "At the top"
    rows = "".join(_rows(prefix, section))
    table = f"\n{_COLUMNS}{rows}" if rows else ""
    return f"\n## {heading}\n\n{inspect.getdoc(section)}\n{table}{_default_bands(section)}"


def _rows(prefix: str, section: type[Section]) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if nested(field.annotation) is None:
            meaning = (field.description or "").replace("|", "\\|")
            yield f"| `{prefix}{key}` | {_default(field)} | {_value(field)} | {meaning} |\n"


def _default(field: FieldInfo) -> str:
    kind, default = kind_of(field), field.default
    if default is PydanticUndefined:
        return "required"
    if default is None or default == "":
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float) and kind is not None:
        return f"`{kind.write(default)}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(default)}]`"
    if isinstance(default, dict):
        return "`{}`"
    return f"`{default}`"


def _value(field: FieldInfo) -> str:
    choices = list(choices_of(field.annotation))
    kind = kind_of(field)
    if kind is None:
        is_list = get_origin(field.annotation) is tuple
        words = " \\| ".join(f"`{choice}`" for choice in choices) or item_of(field) or "mapping of text"
        return f"list of {words}" if is_list else words
    if kind.choices is not None:
        return " \\| ".join([*(f"`{choice}`" for choice in kind.choices()), "another package's"])
    bounds = [f"{_BOUNDS[name]} {kind.write(value) if value else 0}" for name, value in bounds_of(field)]
    return ", ".join([kind.name, *bounds])


def bounds_of(field: FieldInfo) -> Iterator[tuple[str, float]]:
    """Yields the bounds of a number: `gt`, `ge`, `lt` or `le`, and the limit."""
    for name in _BOUNDS:
        for constraint in field.metadata:
            if (value := getattr(constraint, name, None)) is not None:
                yield name, value


def kind_of(field: FieldInfo) -> ValueKind | None:
    return next((item for item in field.metadata if isinstance(item, ValueKind)), None)


def item_of(field: FieldInfo) -> str | None:
    """Returns the word for one item of a list; None if the setting is no list."""
    if get_origin(field.annotation) is not tuple:
        return None
    return next((part.name for part in get_args(get_args(field.annotation)[0]) if isinstance(part, ValueKind)), None)


def choices_of(annotation: object) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from choices_of(part)


def _default_bands(section: type[Section]) -> str:
    """Returns the default list of bands in full, because a list in the file replaces it as a whole."""
    if section is not BandSection:
        return ""
    lines = "".join(f"  - {{{', '.join(_written(band))}}}\n" for band in DEFAULT_BANDS)
    return f"\nThe default:\n\n```yaml\nbands:\n{lines}```\n"


def _written(band: BandSection) -> Iterator[str]:
    for key, value in band.model_dump(include=band.model_fields_set).items():
        yield f"{key}: {str(value).lower() if isinstance(value, bool) else value}"


if __name__ == "__main__":
    sys.stdout.write(reference_markdown())
