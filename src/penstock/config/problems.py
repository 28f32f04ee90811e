"""Problems: wrong settings, in words.

A `Problem` has the setting's path, a sentence and maybe a suggestion. A `ConfigError` carries all problems at once.
Values are printed only through `show`, which hides the content of environment variables (`Filled`), API keys,
credentials in URLs, and the inside of mappings.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Location = tuple[str | int, ...]

SHOWN_CHARACTERS_MAX = 60  # enough to recognise a value, short enough for one line
_CREDENTIALS = re.compile(r":.*@", re.DOTALL)  # wider than a URL's, so that a mistyped one is covered too
_API_KEY = re.compile(r"\bpk-[\w-]{8,}", re.ASCII)  # one of our own, in the wrong place
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,79}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong setting: its path, a message, and a suggestion if we have one."""

    path: str
    message: str
    suggestion: str | None = None

    def line(self) -> str:
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.path}: {self.message}{hint}"


Found = Iterator[tuple[Location, Problem]]
Document = Mapping[str, object]


class ConfigError(Exception):
    """The settings can't be used. `unreadable` is True if the file itself could not be read."""

    def __init__(self, problems: Iterable[Problem], *, unreadable: bool = False) -> None:
        self.problems = tuple(problems)
        self.unreadable = unreadable
        assert self.problems, "an error names at least one problem"
        super().__init__("\n".join(problem.line() for problem in self.problems))


class Refused(ValueError):  # noqa: N818 (raised for the caller to explain; ConfigError is the error)
    """A single value is not acceptable. Raised by validators, converted by `explain`."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class Filled(str):
    """Text in which `${VAR}` was replaced. Only its `template`, as written, is ever shown."""

    __slots__ = ("template",)
    template: str

    def __new__(cls, text: str, template: str) -> Filled:
        filled = super().__new__(cls, text)
        filled.template = template
        return filled


def show(value: object) -> str:
    """Returns a value for a message: short, on one line, without secrets."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"`{str(value).lower()}`"
        case Filled():
            return _quote(value.template)
        case str():
            return _quote(value) if value else "an empty text"
        case int() if abs(value) > 10**18:
            return "a very large number"
        case int() | float():
            return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
    return f"a value of type {type(value).__name__}"


def _quote(text: str) -> str:
    text = _API_KEY.sub("pk-…", _CREDENTIALS.sub(":…@", text))
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = text[:SHOWN_CHARACTERS_MAX] + "…"
    return f"`{text}`" if text.isprintable() else f"`{ascii(text)[1:-1]}`"


def write_path(location: Location) -> str:
    """Returns `endpoints[1].url` for `("endpoints", 1, "url")`, and `settings` for the empty path."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part) and not _API_KEY.search(part):
            path += f".{part}" if path else part
        else:
            path += f"[{_quote(part)}]"
    return path or "settings"


def written_at(document: object, location: Location) -> object:
    """Returns the value at a path as written; None if there is none."""
    for part in location:
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, list | tuple) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


def problem(location: Location, message: str, suggestion: str | None = None) -> tuple[Location, Problem]:
    return location, Problem(write_path(location), message, suggestion)


def missing_extra(location: Location, message: str, extra: str, *modules: str) -> Found:
    """Yields a problem if one of the modules that an extra installs is missing."""
    if not all(map(_is_installed, modules)):
        yield problem(location, message, f"pip install 'penstock-gateway[{extra}]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def unreadable(document: object, location: Location, path: str | None) -> Found:
    """Yields a problem if the file that a setting names, if any, can't be read. The value is shown as written."""
    try:
        if path is not None:
            Path(path).open("rb").close()
    except OSError as error:
        shown, why = show(written_at(document, location)), (error.strerror or str(error)).lower()
        yield problem(location, f"cannot read {shown}: {why}")


def items_of(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def mapping_of(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def one_of(kinds: Sequence[str], known: Iterable[str], at: Location) -> Found:
    """Yields a problem unless exactly one of the known kinds is given."""
    if len(kinds) != 1:
        found = f"has {listing(kinds).replace(' or ', ' and ')}" if kinds else "is empty"
        yield problem(at, f"{found}: expected one of {listing(list(known))}")


def did_you_mean(wrong: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(wrong[:80], known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else None


def listing(words: Sequence[str]) -> str:
    """`a, b or c`"""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
