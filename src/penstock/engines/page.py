"""How are a few series read from a Prometheus page, without parsing the rest?

An engine's page is 50 KB and may be read twice a second per endpoint; admission needs a dozen of its numbers. Each
wanted name is searched at the beginning of lines; other lines are never parsed. A series is unknown (`None`, never 0)
if it is missing, negative, not a finite number, or there twice with the same labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

SAMPLES_MAX = 512  # of one name: ranks times reasons of a very large engine; with more, the series is unknown
LINE_BYTES_MAX = 16_384  # after the name: a label may list adapters; with a longer line, the series is unknown
_LABELS = rb'\{([^"}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"}\n]*)*)\}'
_SAMPLE = re.compile(rb"[ \t]*(?:" + _LABELS + rb"[ \t]*|(?<=[ \t]))([^\s{][^\s]*)")
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"')
_AFTER_NAME = (b"{", b" ", b"\t", b"\r", b"\n", b"")  # otherwise it is a longer name with the same beginning
_NUMBER_BYTES = frozenset(b"0123456789+-.eE")


_INDENTED = re.compile(rb"(?<=\n)[ \t]+")
_BLANK_FIRST = re.compile(rb"\n[ \t]")  # four times as fast as to search for each of both
_BOM = b"\xef\xbb\xbf"
THIN_FROM_BYTES = 1 << 20  # most pages have some 50 KB; a name is looked for in a megabyte in a tenth of a millisecond


def plain(page: bytes) -> bytes:
    """Returns a page with lines that begin with their names, without a byte order mark."""
    page = page.removeprefix(_BOM)
    if page[:1] in (b" ", b"\t", b"\n"):
        page = page.lstrip()
    return _INDENTED.sub(b"", page) if is_indented(page) else page


def is_indented(lines: bytes) -> bool:
    """Returns True if any line but the first begins with a blank."""
    return _BLANK_FIRST.search(lines) is not None


def thinned(lines: bytes) -> bytes:
    """Returns whole lines of a page without its comments and the buckets of its histograms, which are most of it."""
    kept = [line for line in lines.split(b"\n") if b"_bucket{" not in line and line[:1] != b"#"]
    return b"\n".join(kept)


class Sample(NamedTuple):
    """One line of a page."""

    labels: Mapping[str, str]
    value: float  #: NaN if it is no number


class Selector(msgspec.Struct, frozen=True):
    """A series, written as Prometheus does: `name`, or `name{label="value"}`."""

    name: bytes
    line: bytes  #: how its lines begin, including the line break before them
    where: Mapping[str, str]

    @staticmethod
    def of(text: str) -> Selector:
        name, brace, labels = text.partition("{")
        where = labels_of(labels.encode()) if brace else {}
        assert bool(where) == bool(brace), f"not a selector: {text}"
        return Selector(name.encode(), b"\n" + name.encode(), where)

    def samples(self, page: bytes) -> list[Sample] | None:
        """Returns the samples of this series on a `page`: empty if it is not there, None if it makes no sense."""
        found: list[Sample] = []
        seen: set[bytes] = set()
        length = len(self.name)
        at = 0 if page.startswith(self.name) else page.find(self.line) + 1 or -1
        while at >= 0:
            limit = at + length + LINE_BYTES_MAX
            match = _SAMPLE.match(page, at + length, limit)
            if match is None or match.end() == limit:
                if page[at + length : at + length + 1] in _AFTER_NAME:
                    return None  # a line of this series, but broken
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
    """Returns the labels of a sample from their bytes; empty if there are none."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(raw)}


def number(text: bytes) -> float:
    """Returns a sample's value; NaN if it is no finite number of at least 0."""
    if not text or not _NUMBER_BYTES.issuperset(text):  # `float` would accept 1_0, nan and inf, too
        return math.nan
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0.0 <= value < math.inf else math.nan


def total(samples: list[Sample] | None) -> float | None:
    """Returns the sum over an engine's parts (data-parallel ranks); None if a part is unknown, or all are missing."""
    if not samples:
        return None
    value = math.fsum(sample.value for sample in samples)
    return None if math.isnan(value) or math.isinf(value) else value


def mean(samples: list[Sample] | None) -> float | None:
    """Returns the mean over an engine's parts; None if a part is unknown, or all are missing."""
    value = total(samples)
    return None if value is None or not samples else value / len(samples)
