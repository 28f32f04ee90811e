"""The log: one line per event, as text or as JSON, on standard error.

Whoever reaches a port, a store or an engine can cause lines, so all lines are limited: of each statement that logs, a
burst and then a few a minute, the next of which says how many were left out (`Limit`). It is one place for all of them,
those of libraries and tracebacks included; a statement needs no limit of its own.

Names from clients are made printable when logged; a line break in a message is escaped. Prompts, answers, keys and
tokens are never logged.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
from typing import Literal, TextIO

import msgspec

Format = Literal["text", "json"]
LINE_S = 10.0  # for one more line of a statement beyond its burst: 8,640 a day
TROUBLES_BURST = 20  # warnings and errors
NOTES_BURST = 1_000  # what reloads, endpoints and operators do: as many endpoints may come at once
STATEMENTS_MAX = 1_000  # ours are some 120
_encode = msgspec.json.Encoder().encode


class Limit(logging.Filter):
    """A token bucket for each statement that logs. Errors and warnings are few, until a stranger causes them."""

    def __init__(self) -> None:
        super().__init__()
        self._buckets: dict[object, _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes to the log."""
        # Messages without arguments may hold names: there the place of the statement tells them apart.
        statement = record.msg if record.args else (record.pathname, record.lineno)
        key = record.name, record.levelno, statement
        bucket = self._buckets.get(key)
        if bucket is None:
            while len(self._buckets) >= STATEMENTS_MAX:
                del self._buckets[next(iter(self._buckets))]
            burst = NOTES_BURST if record.levelno < logging.WARNING else TROUBLES_BURST
            bucket = self._buckets[key] = _Bucket(burst, record.created)
        left_out = bucket.take(record.created)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines like this were left out)", None
        return left_out is not None


class _Bucket:
    """At most `burst` lines at once, and one more for each `LINE_S`."""

    __slots__ = ("_burst", "_left_out", "_lines", "_seen_s")

    def __init__(self, burst: int, now: float) -> None:
        self._burst = self._lines = float(burst)
        self._seen_s = now
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """Returns how many lines were left out before this one; None: it is left out, too."""
        since_s, self._seen_s = now - self._seen_s, now
        self._lines = min(self._burst, self._lines + max(0.0, since_s) / LINE_S)
        if self._lines < 1:
            self._left_out += 1
            return None
        self._lines -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class TextFormatter(logging.Formatter):
    """`2026-01-02 03:04:05,678 INFO penstock.x message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return line(record.created, record.levelname, record.name, record.getMessage(), fields).decode()


def line(at_s: float, level: str, name: str, message: str, fields: dict[str, object] | None) -> bytes:
    """Returns a line of the log: an object with these `fields`, or text if they are None. All is printable."""
    second = int(at_s)
    milliseconds = int((at_s - second) * 1000)
    if fields is None:
        return f"{_local(second)},{milliseconds:03d} {level} {name} {message}".encode(errors="backslashreplace")
    at = f"{_utc(second)}.{milliseconds:03d}Z"
    whole = {"at": at, "level": level.lower(), "logger": name, "message": message, **fields}
    try:
        encoded = _encode(whole)
    except UnicodeEncodeError:  # half of a surrogate pair
        encoded = b"\xff"
    return encoded if encoded.isascii() else json.dumps(whole, default=str).encode()


@functools.lru_cache(1)
def _local(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


@functools.lru_cache(1)
def _utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def configure(level: str, stream: TextIO | None = None) -> None:
    """Log to standard error, as text until `use` is called."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(TextFormatter())
    handler.set_name("penstock")
    handler.addFilter(Limit())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def use(form: Format) -> None:
    """Set the format of the log from now on."""
    handler = _handler()
    if handler is not None:
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())


def stream() -> TextIO:
    """Returns where the log goes."""
    handler = _handler()
    return sys.stderr if handler is None else handler.stream


def form() -> Format:
    """Returns the format of the log."""
    handler = _handler()
    return "json" if handler is not None and isinstance(handler.formatter, JsonFormatter) else "text"


def _handler() -> logging.StreamHandler[TextIO] | None:
    for handler in logging.getLogger().handlers:
        if handler.get_name() == "penstock" and isinstance(handler, logging.StreamHandler):
            return handler
    return None
