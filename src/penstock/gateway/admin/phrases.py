"""How numbers, durations and names read in sentences."""

from __future__ import annotations

TEXT_CHARS_MAX = 300  # names may be as long as callers like
NAME_CHARS_MAX = 60

#: By what the size of an engine that reports none is found: judges of the core's `endpoints/judges.py`.
SIZED_BY = {"page": "the engine's page", "streams": "our own streams", "answers": "the time of whole answers"}


def printable(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """A text that stays on its line, whatever a caller called itself."""
    short = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    if short.isprintable():
        return short
    return "".join(char if char.isprintable() else "·" for char in short)


def short_name(name: str) -> str:
    return printable(name, NAME_CHARS_MAX)


def count(number: int, one: str, many: str = "") -> str:
    """`1 request`, `2 requests`; `many`: if that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def tokens(number: int) -> str:
    """As exact as an estimate is."""
    return f"{round(number, -1) if number >= 100 else number:,}"
