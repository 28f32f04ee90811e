"""Reading a few series out of a Prometheus page, without parsing the rest.

An engine's page is 50 KB and may be read twice a second per endpoint; admission needs a dozen numbers of it. Each
wanted name is looked for where lines begin; all other lines are never looked at. A series that is missing, not a finite
number, negative, or there twice with the same labels is unknown: `None`, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

SAMPLES_MAX = 512  # of one name: ranks times reasons of a very large engine; a page with more is not read
LINE_BYTES_MAX = 16_384  # after the name: adapters may be listed in a label; a longer line is not read
_SAMPLE = re.compile(rb'(?:\{([^"}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"}\n]*)*)\})?[ \t]+([^\s]+)')
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"')
_AFTER_NAME = (b"{", b" ", b"\t", b"\r", b"\n", b"")  # anything else: a longer name that begins alike
_NUMBER_BYTES = frozenset(b"0123456789+-.eE")


class Sample(NamedTuple):
    """One line of a page."""

    labels: Mapping[str, str]
    value: float  #: NaN when it is no number


class Selector(msgspec.Struct, frozen=True):
    """A series, written as Prometheus does: `name`, or `name{label="value"}`."""

    name: bytes
    line: bytes  #: how its lines begin, the line break before it included
    where: Mapping[str, str]

    @staticmethod
    def of(text: str) -> Selector:
        name, brace, labels = text.partition("{")
        where = labels_of(labels.encode()) if brace else {}
        assert bool(where) == bool(brace), f"not a selector: {text}"
        return Selector(name.encode(), b"\n" + name.encode(), where)

    def samples(self, page: bytes) -> list[Sample] | None:
        """What the page holds of it: empty when it is not there, None when it makes no sense."""
        found: list[Sample] = []
        seen: set[bytes] = set()
        length = len(self.name)
        at = 0 if page.startswith(self.name) else page.find(self.line) + 1 or -1
        while at >= 0:
            limit = at + length + LINE_BYTES_MAX
            match = _SAMPLE.match(page, at + length, limit)
            if match is None or match.end() == limit:
                if page[at + length : at + length + 1] in _AFTER_NAME:
                    return None  # its own line, but broken
            else:
                raw = match[1] or b""
                if raw in seen or len(seen) >= SAMPLES_MAX:
                    return None
                seen.add(raw)
                labels = labels_of(raw)
                if all(labels.get(name) == value for name, value in self.where.items()):
                    found.append(Sample(labels, number(match[2])))
            at = page.find(self.line, at + length) + 1 or -1
        return found


def labels_of(raw: bytes) -> dict[str, str]:
    """The labels of a sample."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(raw)}


def number(text: bytes) -> float:
    """A sample's value, NaN when it is no finite number that may be counted on."""
    if not text or not _NUMBER_BYTES.issuperset(text):  # `float` would take 1_0, 0x1p3, nan and inf
        return math.nan
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0.0 <= value < math.inf else math.nan


def total(samples: list[Sample] | None) -> float | None:
    """The sum over an engine's parts (data-parallel ranks), None when one of them is unknown, or all are missing."""
    if not samples:
        return None
    value = math.fsum(sample.value for sample in samples)
    return None if math.isnan(value) or math.isinf(value) else value


def mean(samples: list[Sample] | None) -> float | None:
    """The mean over an engine's parts."""
    value = total(samples)
    return None if value is None or not samples else value / len(samples)
