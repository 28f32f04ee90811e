"""The log: one line per event, as text or as JSON, on standard error.

Names from clients are made printable when logged; a line break in a message is escaped. Prompts, answers, keys and
tokens are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

Format = Literal["text", "json"]
FIELDS = "fields"  # a record's other fields, by `extra={FIELDS: {…}}`


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
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str, stream: TextIO | None = None) -> None:
    """Log to standard error, as text until `use` is called."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(TextFormatter())
    handler.set_name("penstock")
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def use(form: Format) -> None:
    """Set the format of the log from now on."""
    for handler in logging.getLogger().handlers:
        if handler.get_name() == "penstock":
            handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
