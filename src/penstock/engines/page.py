"""Reading a few series out of a Prometheus page, without parsing the rest.

An engine's page is 50 KB and is read twice a second per endpoint; admission needs five numbers of it. One compiled
pattern finds the wanted lines. What is not a finite number is no number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Series:
    """A pattern for the named series."""

    def __init__(self, names: Iterable[str]) -> None:
        alternatives = b"|".join(re.escape(name.encode()) for name in sorted(names, key=len, reverse=True))
        self._line = re.compile(rb"^(" + alternatives + rb")(\{[^\n]*\})?[ \t]+([^\s]+)", re.MULTILINE)

    def read(self, page: bytes) -> dict[str, list[tuple[bytes, float]]]:
        """By name: labels (raw) and value of each sample. A value that is not a number reads as NaN."""
        found: dict[str, list[tuple[bytes, float]]] = {}
        for name, labels, value in self._line.findall(page):
            found.setdefault(name.decode(), []).append((labels, _number(value)))
        return found


def labels_of(raw: bytes) -> dict[str, str]:
    """The labels of a sample."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(raw)}


def total(samples: list[tuple[bytes, float]] | None) -> float | None:
    """The sum over an engine's parts (data-parallel ranks), None when it is not a non-negative finite number."""
    if not samples:
        return None
    value = sum(number for _, number in samples)
    return value if math.isfinite(value) and value >= 0 else None


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
