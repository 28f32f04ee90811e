"""What does an answer say of itself as it passes: how many tokens, what usage, and whether it ended well?

Nothing is parsed per chunk. Events are counted as they pass (an event is about a token), the last few kilobytes are
kept, and at the end the usage is read from them. Usage that Penstock itself asked for (`accounting.usage: auto`) comes
as one extra event, which is taken out again: its client did not ask.
"""

from __future__ import annotations

import re

from penstock.core.values.request import Usage
from penstock.gateway.openai.stream_end import (
    TAIL_BYTES,
    cut_off,
    ended_well,
    gives_finish_reason,
    line_tells_error,
    lines_ended_well,
    tells_abort,
    tells_error,
)
from penstock.gateway.openai.usage import USAGE, read_usage

HEAD_BYTES = 1024  # kept: an answer's id, and Anthropic's message_start, which alone tells the prompt's tokens
HELD_BYTES_MAX = 65536  # of an event that is not whole yet; a longer one passes as it comes
_DATA = b"\ndata:"  # a space may follow
_DATA_BEFORE = len(_DATA) - 1  # of it may have come with the piece before
TAIL_BYTES_MAX = 2 * TAIL_BYTES
_DONES = (b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data:[DONE]\r\n\r\n")
_NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_SPLIT = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")  # an event ends with an empty line, of either kind


class AnswerReader:
    """Reads one answer as it passes."""

    __slots__ = ("_done", "_held", "_hides_usage", "_lines", "_streamed", "_tail", "head", "tokens")

    def __init__(self, *, streamed: bool, hides_usage: bool, lines: bool = False) -> None:
        self._streamed = streamed
        self._lines = lines  # a stream of JSON lines, where each ends one; else of events
        self._hides_usage = hides_usage and streamed
        self.head = b""  #: how it began
        self._held = b""
        self._done = b""  # the last event, until it is known whether the answer is as good as it says
        self._tail = bytearray(b"\n" if streamed else b"")  # an event stands at the beginning of a line
        self.tokens = 0  #: events passed, about as many as tokens

    def take(self, data: bytes) -> bytes:
        """Look at the next bytes of the answer. Returns those to pass on."""
        if self._streamed:
            if len(self.head) < HEAD_BYTES:
                self.head += data[: HEAD_BYTES - len(self.head)]
            seen = self._tail
            since = len(seen)
            seen += data
            if self._lines:
                self.tokens += data.count(b"\n")
                if since > TAIL_BYTES_MAX:
                    del seen[:-TAIL_BYTES]
                return data
            self.tokens += seen.count(_DATA, since - _DATA_BEFORE if since > _DATA_BEFORE else 0)
            if since > TAIL_BYTES_MAX:  # to cut it at each piece would copy it at each piece
                del seen[:-TAIL_BYTES]
            if self._hides_usage:
                data = self._without_usage(data)
            if self._done:
                data, self._done = self._done + data, b""
            if data.endswith(_DONES):
                at = data.rfind(b"data:")
                data, self._done = data[:at], data[at:]
            return data
        if not self.head:
            self.head = data[:HEAD_BYTES]
        self._tail += data[-TAIL_BYTES:]
        if len(self._tail) > TAIL_BYTES_MAX:
            del self._tail[:-TAIL_BYTES]
        return data

    def rest(self) -> bytes:
        """Returns what is still held when the stream is over."""
        rest, self._held, self._done = self._done + self._held, b"", b""
        return rest

    @property
    def tail(self) -> bytes:
        """The last bytes of the answer."""
        return bytes(self._tail[-TAIL_BYTES:])

    def ended_well(self, path: str, *, finishes: bool = True) -> bool:
        """True if the answer, now that it is whole, is one and not a failure. `finishes`: its engine gives reasons."""
        if self._lines:
            return lines_ended_well(self.tail)
        return not self._streamed or ended_well(path, self.tail, finishes=finishes)

    def gives_finish_reason(self, path: str) -> bool:
        """True if the answer is a stream that says why it ended."""
        return self._streamed and gives_finish_reason(path, self.tail)

    def tells_abort(self) -> bool:
        """True if the engine itself said that it cut the answer short."""
        return not lines_ended_well(self.tail) if self._lines else tells_abort(self.tail)

    def cut_off(self) -> bool:
        """True if the answer is a stream that stops inside an event."""
        return self._streamed and cut_off(self.tail)

    def tells_error(self) -> bool:
        """True if the engine itself said that the answer failed."""
        return line_tells_error(self.tail) if self._lines else tells_error(self.tail)

    def mid_event(self) -> bool:
        """True if the stream broke off inside an event, so that an event of our own can't follow."""
        if self._lines:
            return not self._tail.endswith(b"\n")
        return not self._held and not self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    def usage(self) -> Usage | None:
        """Returns what the engine says the answer cost; None if it does not say."""
        usage = read_usage(self.tail)
        if usage is not None and not usage.prompt_tokens and (first := read_usage(self.head, first=True)) is not None:
            return Usage(first.prompt_tokens, usage.completion_tokens, first.cached_tokens, first.cached_told)
        return usage

    def _without_usage(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        if not data.endswith(b"\n\n"):  # as a rule engines send whole events
            whole = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
            if whole < 4:
                if len(data) > HELD_BYTES_MAX:
                    return data
                whole = 0
            data, self._held = data[:whole], data[whole:]
        if data.find(b'"choices":[]') < 0 and data.find(b'"choices": []') < 0:  # not `in`, which tries a number first
            return data
        kept = [event for event in _SPLIT.split(data) if not (_NO_CHOICES.search(event) and USAGE.search(event))]
        return b"".join(kept)
