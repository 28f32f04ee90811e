"""The beginning of a stream, up to its first token or its end: which of it may pass, and which is held back?

As long as there is no token the client has nothing of an answer, so a failure is retried at another endpoint. Comments
and pings pass at once, so that the client's read time-out begins again. Events of the answer without a token (a role,
`response.created`) are held back, because they carry the id of an answer that another engine may have to make.
"""

from __future__ import annotations

from typing import Final

from penstock.gateway.openai.answers.events import (
    SAID,
    Meaning,
    may_be_events,
    meaning,
    meaning_of_line,
    meaning_unsaid,
    says_at_once,
    split,
)
from penstock.gateway.openai.answers.stream_end import cut_off, line_tells_error, stillborn

HELD_BYTES_MAX: Final = 256 * 1024  # before the first token `/v1/responses` repeats its instructions and tools, twice


class Opening:
    """Takes a stream apart until its first token or its end."""

    __slots__ = ("_held", "_lines", "_partial", "ended", "stillborn")

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines  # of JSON; otherwise events
        self._held = b""
        self._partial = b""  # of an event that is not whole yet
        self.ended = False  #: the first that came is an end: maybe an error
        self.stillborn = False  #: the first that came is no token but a failure

    def take(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Look at the next bytes.

        Returns the bytes that may pass at once, and the beginning of the answer, None before its first token.
        """
        if not self._partial and says_at_once(data):
            return b"", self._held + data
        since = max(len(self._partial) - 3, 0)
        data = self._partial + data
        events, rest = _lines(data) if self._lines else split(data, since)
        asides, at = b"", 0
        for event in events:
            if not self._lines and SAID.search(event) is not None:
                return asides, self._held + data[at:]
            what = meaning_of_line(event) if self._lines else meaning_unsaid(event)
            if what is Meaning.TOKEN or what is Meaning.END:
                self.ended = what is Meaning.END
                self.stillborn = line_tells_error(event) if self._lines else stillborn(event, first=not self._held)
                return asides, self._held + data[at:]
            if what is Meaning.ASIDE:
                asides += event
            else:
                self._held += event
            at += len(event)
        self._partial = rest
        too_much = len(self._held) + len(rest) > HELD_BYTES_MAX
        if too_much or not (self._lines or may_be_events(rest)):
            return asides, self._held + rest
        return asides, None

    def end(self) -> bytes | None:
        """Returns the answer of an ended stream; None: there is none, or it stops inside its first event."""
        rest = self._partial
        if not rest or (not self._lines and cut_off(rest)):
            return None
        what = meaning_of_line(rest) if self._lines else meaning(rest)
        return self._held + rest if what is Meaning.TOKEN or what is Meaning.END else None


def _lines(data: bytes) -> tuple[list[bytes], bytes]:
    lines = data.splitlines(keepends=True)
    return (lines, b"") if data.endswith(b"\n") or not lines else (lines[:-1], lines[-1])
