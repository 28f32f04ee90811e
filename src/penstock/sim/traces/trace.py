"""Reading a recorded workload: arrivals, lengths, and shared prefixes.

Three formats, recognised by their first line: *mooncake* (one JSON object a line, with an id per 512-token block of the
prompt; equal ids are equal prompts so far), *azure* (CSV, lengths only) and *vtc* (CSV with tenants). A file is read
line by line, gzipped or not, so memory stays flat; errors name the line.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated, BinaryIO

import msgspec

BLOCK_TOKENS = 512  # per hash id of a Mooncake trace
TICK_S = 3.0  # Mooncake's stamps come in ticks of that length
TICK_ROWS_MAX = 100_000  # held in memory, to be spread over their tick
LINE_BYTES_MAX = 4 << 20  # a prompt of a million tokens is 2,000 ids
TOKENS_MAX = 10_000_000
GZIP_MAGIC = b"\x1f\x8b"


class TraceError(ValueError):
    """The file can't be read as a trace; the message names it, and the line."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One recorded request. Times count from the first one's."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  #: of the prompt's full blocks
    tenant: str = "all"


Count = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class _MooncakeLine(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Count
    output_length: Count
    hash_ids: list[int]


@dataclass(frozen=True)
class _Columns:
    """The columns of a CSV format."""

    at: str
    prompt: str
    output: str
    tenant: str | None = None


_CSV = {
    "azure": _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "vtc": _Columns("arrival_s", "prompt_tokens", "output_tokens", "tenant"),
}
FORMATS = ("mooncake", *_CSV)
_mooncake_line = msgspec.json.Decoder(_MooncakeLine).decode


class Trace:
    """A trace file. Its first line is read at once, so that a wrong file is refused before a run starts."""

    def __init__(self, path: Path, format_name: str | None = None) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        lines = self._lines()
        first = next(lines, None)
        lines.close()
        if first is None:
            raise TraceError(f"{path} is empty")
        self.format = format_name or _guess(first[1])
        if not self.format:
            raise TraceError(f"{path}, line 1: neither of the formats {', '.join(FORMATS)}")
        if self.format in _CSV:
            self._header(first[1])

    @property
    def has_blocks(self) -> bool:
        """True if the trace has shared prefixes."""
        return self.format == "mooncake"

    @property
    def stamped_in_ticks(self) -> bool:
        """True if the requests of a few seconds share one stamp."""
        return self.format == "mooncake"

    @property
    def share(self) -> float:
        """How much of the file the present run has read, from 0 to 1."""
        file = self._file
        return 1.0 if file is None or file.closed else file.tell() / max(1, self.path.stat().st_size)

    def rows(self) -> Iterator[Row]:
        """Yields all requests, in order."""
        made = self._mooncake() if self.format == "mooncake" else self._csv(_CSV[self.format])
        start_s, before_s = math.nan, 0.0
        for number, row in made:
            if math.isnan(start_s):
                start_s = row.at_s
            at_s = row.at_s - start_s
            if at_s < before_s:
                raise self._wrong(number, "is older than the line before it; a trace has to be sorted by time")
            before_s = at_s
            yield msgspec.structs.replace(row, at_s=at_s)

    def _mooncake(self) -> Iterator[tuple[int, Row]]:
        for number, line in self._lines():
            try:
                told = _mooncake_line(line)
            except msgspec.DecodeError as error:  # validation errors are of this kind too
                raise self._wrong(number, str(error)) from None
            blocks = tuple(told.hash_ids[: told.input_length // BLOCK_TOKENS])
            yield number, Row(told.timestamp / 1000.0, max(1, told.input_length), max(1, told.output_length), blocks)

    def _csv(self, columns: _Columns) -> Iterator[tuple[int, Row]]:
        lines = self._lines()
        places = self._header(next(lines)[1])
        for number, line in lines:
            cells = dict(zip(places, _cells(line), strict=False))
            try:
                prompt, output = _count(cells[columns.prompt]), _count(cells[columns.output])
                tenant = cells[columns.tenant] if columns.tenant else "all"
                yield number, Row(_time(cells[columns.at]), prompt, output, tenant=tenant)
            except KeyError as error:
                raise self._wrong(number, f"has nothing for {error}") from None
            except ValueError as error:
                raise self._wrong(number, str(error)) from None

    def _header(self, line: bytes) -> list[str]:
        columns, names = _CSV[self.format], _cells(line)
        for needed in (columns.at, columns.prompt, columns.output, columns.tenant):
            if needed is not None and needed not in names:
                raise self._wrong(1, f"names no column {needed!r}, which the format {self.format} has")
        return names

    def _lines(self) -> Generator[tuple[int, bytes], None, None]:
        """Yields the lines that are not blank, with their numbers."""
        number = 0
        try:
            with self.path.open("rb") as file:
                self._file = file
                zipped = file.read(2) == GZIP_MAGIC
                file.seek(0)
                text = gzip.GzipFile(fileobj=file) if zipped else file
                while line := text.readline(LINE_BYTES_MAX + 1):
                    number += 1
                    if len(line) > LINE_BYTES_MAX:
                        raise self._wrong(number, f"is longer than {LINE_BYTES_MAX} bytes")
                    if not line.isspace():
                        yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._wrong(number + 1, f"can't be unpacked: {error}") from None
        except OSError as error:
            raise TraceError(f"{self.path} can't be read: {error.strerror or error}") from None

    def _wrong(self, number: int, what: str) -> TraceError:
        return TraceError(f"{self.path}, line {number}: {what}")


def spread(rows: Iterator[Row], random: Random) -> Iterator[Row]:
    """Spread requests with one time stamp over their tick."""
    group: list[Row] = []
    for row in rows:
        if group and row.at_s > group[0].at_s:
            yield from _apart(group, row.at_s - group[0].at_s, random)
            group = []
        if len(group) == TICK_ROWS_MAX:
            raise TraceError(f"more than {TICK_ROWS_MAX} requests have one and the same time stamp")
        group.append(row)
    yield from _apart(group, TICK_S, random)


def _apart(group: list[Row], gap_s: float, random: Random) -> Iterator[Row]:
    width_s = min(gap_s, TICK_S)
    times = sorted(row.at_s + width_s * random.random() for row in group)
    for row, at_s in zip(group, times, strict=True):
        yield msgspec.structs.replace(row, at_s=at_s)


def _guess(line: bytes) -> str:
    if line.lstrip().startswith(b"{"):
        return "mooncake"
    names = _cells(line)
    return next((name for name, columns in _CSV.items() if columns.at in names), "")


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8-sig", "replace").strip()]), [])


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count <= TOKENS_MAX:
        raise ValueError(f"{count} is not a number of tokens")
    return max(1, count)


def _time(text: str) -> float:
    """Returns seconds from a number, or from a date with a time."""
    try:
        at_s = float(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(at_s):
        raise ValueError(f"{text!r} is not a time")
    return at_s
