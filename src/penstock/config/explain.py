"""Explain: YAML's and pydantic's errors in the words of the settings file.

What is not YAML is one sentence, without text of the file, which may be secret. Each validation error becomes one
`Problem`: the path as written in the file, the value found and expected, and what to write, if it can be guessed.

Settings also arrive at runtime, from files and through /admin, so the work is bounded: beyond `TOLD_MAX` problems only
their number is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import get_args, get_origin

import yaml
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
_OTHER_NUMBER = re.compile(r"(?![\d.]+$)(\d{1,3}(?:[,_]\d{3}){1,4}|\d{1,12}(?:\.\d{1,12})?)\s?([kKmMgG%]?)", re.ASCII)
_SUFFIXES = {"": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "g": 1e9}
_IN_QUOTES = re.compile(r"'([^']*)'")
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
        return str(cause), cause.suggestion or _in_digits(written, str(cause))
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
        return f"expected a list, found {found}", _as_list(written, location)
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        return f"expected a mapping (`key: value`), found {found}", _as_mapping(written, location)
    return f"{found} is not accepted here", None


def _in_digits(written: object, refusal: str) -> str | None:
    """Returns the number that `50%`, `1,000`, `1_000` or `10k` means, if the setting may have such a number."""
    match = _OTHER_NUMBER.fullmatch(written.strip()) if isinstance(written, str) else None
    meant = 0.5 if match is None else float(re.sub("[,_]", "", match[1])) * _SUFFIXES[match[2].lower()]
    return f"write `{meant:.15g}`" if match and (meant.is_integer() or "whole" not in refusal) else None


def _unknown_key(location: Location) -> tuple[str, str | None]:
    key, section = str(location[-1]), section_at(location[:-1])
    if (now := section.removed.get(key)) is not None:
        return "was removed", now
    if len(location) == 1 and (there := AT_TOP.get(key)) is not None:
        return "unknown setting", f"write {there}"
    if (ours := ours_for(key)) is not None:
        return "unknown setting", ours
    known = list(section.model_fields)
    if key.partition(".")[0] in known:
        above, _, below = key.partition(".")
        return "unknown setting", f"write `{above}:` and, indented below it, `{below}:`"
    near = did_you_mean(key, known) or _longer_word(key, known)
    if near is None:
        found = [prefix for prefix, other in _all_sections() if key in other.model_fields]
        places = [f"`{prefix}{key}`" if prefix else f"`{key}` at the top level" for prefix in found]
        near = f"did you mean {listing(places)}?" if places else None
    return "unknown setting", near or f"known here: {', '.join(known)}"


def _longer_word(key: str, known: list[str]) -> str | None:
    """Returns the setting that a longer word means: `ca` for `ca_file`, `cert` for `certificate`."""
    meant = [name for name in known if len(name) > 1 and (name in key.split("_") or key.startswith(name))]
    return f"did you mean `{meant[0]}`?" if meant else None


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
    known = section_at(location).model_fields
    if isinstance(written, list):
        return "leave out the `- `"
    if isinstance(written, bool) or written in ("off", "on", "no", "yes"):
        switch = next((field for field in ("enabled", "serve", "memory") if field in known), None)
        return switch and f"write `{location[-1]}: {{{switch}: {show(written)[1:-1]}}}`"
    if not isinstance(written, str):
        return None
    key, separator, rest = re.split(r"\s*([:=]|$)", written, maxsplit=1)
    if separator and key in known and rest:
        return f"a space belongs after the colon: `{key}: …`" if separator == ":" else f"write `{key}: …`"
    if "url" in known and "://" in written:
        return "begin it with `url: `"
    if not location:
        return None
    if isinstance(location[-1], int):
        first = next((field for field in ("name", "path") if field in known), None)
        return first and f"begin it with `{first}: `"
    main = next((field for field in ("policy", "to", "level") if field in known), None)
    return main and f"write `{location[-1]}: {{{main}: {show(written)[1:-1]}}}`"


def _as_list(written: object, location: Location) -> str:
    """Returns how the list is written that a mapping of names probably means."""
    if isinstance(written, dict) and all(isinstance(value, dict) for value in written.values()):
        for name in written if "name" in section_at(location).model_fields else ():
            return f"begin each item with `- `, as `- name: {show(name)[1:-1]}`"
    return "begin each item with `- `"


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


def yaml_problem(error: yaml.YAMLError) -> str:
    """Returns the parser's message without text of the file, which may be secret."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"is not YAML: it has a control character at position {error.position}"
    assert isinstance(error, yaml.MarkedYAMLError), "PyYAML has no third kind"
    place = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
    problem = error.problem or "it cannot be parsed"
    words = f"{error.context} {problem}".split()
    if {"alias", "anchor", "anchor;"} & set(words):
        problem = "`*` or `&` at the start of a value means an alias; put the value in quotes"
    elif error.problem_mark is not None and (known := _in_words(words, error.problem_mark, error.context_mark)):
        problem = known
    elif "tag" in words:
        problem = "`!` at the start of a value means a tag; put the value in quotes"
    else:
        problem = _IN_QUOTES.sub(
            lambda quoted: quoted[0] if len(quoted[1]) < 2 or quoted[1][0] == "<" else "…", problem
        )
    return f"is not YAML{place}: {problem}"


def _in_words(words: list[str], mark: yaml.Mark, begun: yaml.Mark | None) -> str | None:
    """Returns the usual mistakes in words: tabs, indentation, colons, brackets and quotes."""
    said, since = " ".join(words), f", begun in line {begun.line + 1}," if begun is not None else ""
    if "cannot start any token" in said and mark.buffer is not None and mark.buffer[mark.pointer] == "\t":
        return "a tab indents it; YAML takes spaces only"
    if "expected <block end>" in said or "could not find expected ':'" in said:
        return "its indentation matches no line above; keys of one mapping begin in the same column"
    if "mapping values are not allowed here" in said:
        return "a second `: ` in a line, or an indentation too deep; put a value with `: ` in quotes"
    if "another document" in said:
        return "a second document begins (`---`); the settings are one"
    if "unknown escape character" in said:
        return "in double quotes a `\\` begins an escape; put the value in single quotes"
    if "quoted scalar" in said and "end of stream" in said:
        return f"a quote{since} is not closed"
    if "flow" in said and ("<stream end>" in said or "end of stream" in said or "expected ','" in said):
        return f"a `[` or `{{`{since} is not closed, or a comma is missing"
    return None
