"""Suggestions for an unknown path: the intended one, and the right base URL.

Nearly all of these come of a base URL with a `/v1`, a slash or a prefix too many or too few. A few rules rewrite the
path; the first result that is served is suggested. Nothing is redirected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

PATH_CHARS_MAX = 200  # of a path that is shown; a longer one is not looked at
_SLASHES = re.compile("//+")
_BATCH = ("/v1/files", "/v1/batches")


def meant_instead(path: str, served: Callable[[str], bool]) -> str | None:
    """Returns a suggestion for an unknown `path`, or None."""
    if len(path) > PATH_CHARS_MAX:
        return None
    tidy = _SLASHES.sub("/", path).rstrip("/")
    if tidy.endswith("/v1"):
        return "`/v1` is the end of a base URL, not a path: `/v1/models` lists the models."
    for meant in _candidates(tidy):
        if served(meant):
            return f"There is no path `{path}`. `{meant}` is meant, it seems{_base_url(meant)}"
        if is_batch(meant):
            return _off(meant)
    return None


def without_v1(path: str) -> str:
    """Returns a suggestion for a `path` without the required `/v1`."""
    return f"No engine here serves `{path}`. `/v1{path}` is meant, it seems{_base_url('/v1' + path)}"


def is_batch(path: str) -> bool:
    """True for a path of files and batches."""
    return path in _BATCH or path.startswith(tuple(f"{its}/" for its in _BATCH))


def _candidates(path: str) -> Iterator[str]:
    yield path
    before, found, rest = path.rpartition("/v1/")
    if found and before:
        yield f"/v1/{rest}"
    yield f"/v1{path}"
    if not before:
        yield path.removeprefix("/v1")


def _off(path: str) -> str:
    return f"There is no path `{path}`: files and batches are switched off here (the setting is `batch.serve: true`)."


def _base_url(meant: str) -> str:
    if meant.startswith("/v1/messages"):
        return ": the base URL of Anthropic's clients ends without `/v1`."
    if meant.startswith("/v1/"):
        return ": the base URL of OpenAI's clients ends in `/v1`, once."
    return "."
