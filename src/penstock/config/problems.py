"""Problems: how is a wrong setting told to the person who wrote it?

A `Problem` has the setting's path, a sentence, and, if we can guess, a suggestion. A `ConfigError` carries all problems
at once. A value gets into a sentence only through `show`, which never prints what came out of an environment variable
(a `Filled`), an API key, the credentials in a URL, or the inside of a mapping.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Location = tuple[str | int, ...]

SHOWN_CHARACTERS_MAX = 60  # enough to recognise a value, short enough for one line
_CREDENTIALS = re.compile(r":.*@", re.DOTALL)  # wider than a URL's, so that a mistyped one is covered too
_API_KEY = re.compile(r"\bpk-[\w-]{8,}", re.ASCII)  # one of our own, written where it does not belong
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,79}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and what to write instead (`suggestion`, if we have one)."""

    path: str
    message: str
    suggestion: str | None = None

    def line(self) -> str:
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.path}: {self.message}{hint}"


class ConfigError(Exception):
    """The settings can't be used. `unreadable` is True if the file itself could not be read."""

    def __init__(self, problems: Iterable[Problem], *, unreadable: bool = False) -> None:
        self.problems = tuple(problems)
        self.unreadable = unreadable
        assert self.problems, "an error names at least one problem"
        super().__init__("\n".join(problem.line() for problem in self.problems))


class Refused(ValueError):  # noqa: N818 (raised for the caller to explain; ConfigError is the error)
    """A single value is not acceptable. Raised by validators, turned into a `Problem` by `explain`."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class Filled(str):
    """Text in which `${VAR}` was replaced. It remembers what was written, and only that is ever shown."""

    __slots__ = ("template",)
    template: str

    def __new__(cls, text: str, template: str) -> Filled:
        filled = super().__new__(cls, text)
        filled.template = template
        return filled


def show(value: object) -> str:
    """Returns a value as a person may see it in a message: short, on one line, without secrets."""
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
    """Returns what was written at a path, before it was read as anything; None if nothing was."""
    for part in location:
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, list | tuple) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


def unreadable(document: object, location: Location, path: str) -> Problem | None:
    """Returns why the file that a value names can't be read; None if it can. The value is shown as written."""
    try:
        with Path(path).open("rb"):
            return None
    except OSError as error:
        shown, why = show(written_at(document, location)), (error.strerror or str(error)).lower()
        return Problem(write_path(location), f"cannot read {shown}: {why}")


def did_you_mean(wrong: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(wrong[:80], known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else None


def listing(words: Sequence[str]) -> str:
    """`a, b or c`"""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
