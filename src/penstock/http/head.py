"""Joins header lines to a head, so that no value can smuggle in a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

_LF: Final = 0x0A
_CR: Final = 0x0D
_NAME_OF: Final = itemgetter(0)
_VALUE_OF: Final = itemgetter(1)


def lower_names(headers: Sequence[tuple[bytes, bytes]]) -> Iterable[bytes]:
    """Yields the names of `headers` in lower case, without a Python frame for each."""
    return map(bytes.lower, map(_NAME_OF, headers))


def by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Returns the values of `headers` by their names in lower case; of several with one name the last one's."""
    return dict(zip(lower_names(headers), map(_VALUE_OF, headers), strict=True))


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
