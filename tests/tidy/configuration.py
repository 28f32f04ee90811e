"""Generates the settings' reference: `python -m tests.tidy.configuration > docs/configuration.md`; a test compares."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.config.explain import nested, sections
from penstock.config.model import DEFAULT_BANDS, BandSection
from penstock.config.schema import bounds_of, choices_of, item_of, kind_of
from penstock.config.sections.section import Section

INTRODUCTION = """\
# Configuration

<!-- Generated: python -m tests.tidy.configuration > docs/configuration.md -->

Later wins:

1. the defaults below,
2. the file: `penstock serve -c penstock.yaml`,
3. the environment: `PENSTOCK__QUEUE__MAX_WAIT=20s` is `queue.max_wait`. Names are matched in lower case. A list or
   mapping is given as YAML (`PENSTOCK__ENDPOINTS='[{url: http://gpu-0:8000}]'`), an item of a list by its number
   (`PENSTOCK__ENDPOINTS__0__SLOTS=32`),
4. flags: `--endpoint URL` (repeatable), `--listen HOST:PORT`, `--slots N` (for endpoints with `slots: auto`),
   `--routing NAME`, `--imbalance-threshold N`, `--no-queue`.

Mappings merge key by key; a list replaces the earlier one. Unknown keys, duplicate keys and contradictions are refused
at start, all at once, each with its path; settings without effect are warnings. `penstock check FILE` reports the same
without starting, and whether certificates, the address, the data folder and discovery can be used on this machine. It
does not check whether another program has the port, or another gateway the folder.

Values:

- **duration**: seconds, or a number with `ms`, `s`, `m` or `h`: `500ms`, `20s`, `2m`, `1h`;
- **size**: bytes, or a number with `KB`, `MB`, `GB`, `TB` (powers of 1000) or `KiB`, `MiB`, `GiB`, `TiB` (of 1024);
- **file**: a path. A relative one begins at the directory in which the command is started (`/` under systemd), not at
  the settings file's; `penstock check` and the log print the store's absolute path;
- **true or false**: also `yes`, `no`, `on`, `off`;
- `${VAR}` in the file is replaced by that environment variable, which must be set, and may not be empty where it is the
  whole value; `${VAR:-default}` has a default for when it is unset or empty, and `${VAR:-}` none; `$$` is a dollar
  sign. Messages never show the content of a variable;
- only `true`, `false`, `null` and decimal numbers are not text.
"""

_COLUMNS = "| setting | default | value | meaning |\n|---|---|---|---|\n"
_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def reference_markdown() -> str:
    """Returns the page. A section, or a base of several sections, that occurs again refers to its first place."""
    first: dict[type[Section], str] = {}
    parts = [INTRODUCTION]
    for prefix, section in sections():
        if (known := first.setdefault(section, prefix)) == prefix:
            base = next((base for base in section.__mro__[1:] if base is not Section and len(_own(base)) > 2), section)
            shared = prefix if base is section else first.setdefault(base, prefix)
            siblings = shared != prefix and shared.count(".") == prefix.count(".")
            parts.append(_section(prefix, section, _unchanged(section, base) if siblings else [], shared))
        else:
            parts.append(f"\n## `{prefix.removesuffix('.')}`\n\nThe settings of `{known.removesuffix('.')}`.\n")
    return "".join(parts)


def _own(section: type) -> list[str]:
    """Returns the names of a section's settings, without sections inside it."""
    fields = getattr(section, "model_fields", {})
    return [key for key, field in fields.items() if nested(field.annotation) is None]


def _unchanged(section: type[Section], base: type) -> list[str]:
    """Returns the names of the settings that have the same meaning in `section` as in its `base`."""
    fields, bases = section.model_fields, getattr(base, "model_fields", {})
    return [key for key in _own(base) if fields[key].description == bases[key].description]


def _section(prefix: str, section: type[Section], elsewhere: list[str], shared: str) -> str:
    """Returns a heading, the section's purpose, and a table with a row per setting that is not described elsewhere."""
    heading = f"`{prefix.removesuffix('.')}`" if prefix else "At the top"
    names = ", ".join(f"`{key}`" for key in elsewhere)
    more = f"\n{names}: as in `{shared.removesuffix('.')}`.\n" if elsewhere else ""
    rows = "".join(_rows(prefix, section, elsewhere))
    table = f"\n{_COLUMNS}{rows}" if rows else ""
    return f"\n## {heading}\n\n{inspect.getdoc(section)}\n{more}{table}{_default_bands(section)}"


def _rows(prefix: str, section: type[Section], elsewhere: list[str]) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if key not in elsewhere and nested(field.annotation) is None:
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
    bounds = {name: kind.write(value) if value else "0" for name, value in bounds_of(field)}
    if bounds.keys() == {"ge", "le"}:
        return f"{kind.name}, {bounds['ge']} to {bounds['le']}"
    return ", ".join([kind.name, *(f"{_BOUNDS[name]} {value}" for name, value in bounds.items())])


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
