"""Joins header lines to a head, so that no value can smuggle in a line."""

from __future__ import annotations

from typing import Final

_LF: Final = 0x0A
_CR: Final = 0x0D


def head_of(lines: list[bytes]) -> bytes:
    """Returns the head of a message, with its blank line. Raises ValueError if one of the `lines` holds a line break.

    `lines` is used up. The search runs over a separate join: searching twice for one byte costs a tenth of counting the
    line breaks of the finished head. The byte is an int because Python tries that first, and failing costs more than
    searching.
    """
    flat = b"".join(lines)
    if _LF in flat or _CR in flat:
        raise ValueError("a line break in a header")
    lines += (b"", b"")
    return b"\r\n".join(lines)
