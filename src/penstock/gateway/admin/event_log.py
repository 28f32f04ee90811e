"""Recent events for operators: a short list in memory, and the same lines in the log.

Operators' actions are listed with the operator's address. Lines contain no prompts, only names and numbers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from penstock import clock
from penstock.config.sections.tenancy import OwnLimits
from penstock.gateway.admin.phrases import printable

logger = logging.getLogger(__name__)

EVENTS_MAX = 200
# Of an operator's request: the rest may hold secrets.
SHOWN_FIELDS = (
    *("model", "name", "tenant", "slots", "url", "weight"),
    *(*OwnLimits.model_fields, "until_reload", "running_too"),
)

Kind = Literal["start", "operator", "endpoint", "queue", "settings", "worker", "share", "failure"]


class LoggedEvent(msgspec.Struct, frozen=True):
    """One line."""

    serial: int
    at: float  #: Unix time
    kind: Kind
    text: str


class EventLog:
    """The last events."""

    def __init__(self, *, wall: Callable[[], float] = clock.wall) -> None:
        self._wall = wall
        self._events: deque[LoggedEvent] = deque(maxlen=EVENTS_MAX)
        self._serial = 0

    def note(self, kind: Kind, text: str, *, bad: bool = False) -> int:
        """Add a line, here and to the log, as a warning if it is `bad`. Returns its serial."""
        text = printable(text)
        self._serial += 1
        self._events.append(LoggedEvent(self._serial, self._wall(), kind, text))
        logger.log(logging.WARNING if bad else logging.INFO, "%s: %s", kind, text)
        return self._serial

    def amend(self, serial: int, kind: Kind, text: str) -> int:
        """Replace a line, or add one if it is gone; returns its serial. The log has its first and last text."""
        at = serial - self._serial - 1  # serials have no gaps, so that is its place from the end
        if serial < 1 or -at > len(self._events):
            return self.note(kind, text)
        self._events[at] = msgspec.structs.replace(self._events[at], text=printable(text))
        return serial

    def over(self, kind: Kind, text: str) -> None:
        """Log the final text of a line that was amended."""
        logger.info("%s, total: %s", kind, printable(text))

    def latest(self, count: int = EVENTS_MAX) -> list[LoggedEvent]:
        return list(self._events)[: -count - 1 : -1]

    def audit(self, peer: str, method: str, path: str, body: Mapping[str, object], refused: str | None) -> None:
        """An operator did something, or was refused."""
        said = " ".join(f"{key}={body[key]}" for key in SHOWN_FIELDS if isinstance(body.get(key), str | int | float))
        verb = "remove" if method == "DELETE" else ""
        words = " ".join(word for word in (verb, *path.split("/")[2:], said) if word)
        self.note("operator", f"{words} (by {peer or 'unknown'})" + (f": refused, {refused}" if refused else ""))
