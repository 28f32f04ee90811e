"""One answer as it passes: its tokens, usage and end.

Nothing is parsed per chunk, as long as bytes show what its events mean (`events.py`). An engine begins all events of a
stream alike up to the text, so most are only compared with the last one that was looked at. Events with a token are
counted as they pass (each is about one token), the last ones are kept, and at the end the usage is read from them.
These are two kilobytes as long as events are alike and all have a token, otherwise a few more.
Usage that Penstock itself asked for (`accounting.usage: auto`) comes as one extra event, which is taken out again: its
client did not ask.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.core.values.request import Usage
from penstock.gateway.openai.answers.events import (
    DONE,
    DONE_FIRST,
    ENDED,
    LINE_SAID,
    SAID,
    SAID_BY_NAME,
    SILENT,
    Meaning,
    fields,
    in_one_line,
    last_end,
    meaning_of,
    meaning_of_line,
    only_usage,
    says,
    split,
)
from penstock.gateway.openai.answers.stream_end import (
    TAIL_BYTES,
    cut_off,
    ended_well,
    ends_open,
    line_tells_error,
    lines_ended_well,
    tells_abort,
    tells_error,
)
from penstock.gateway.openai.answers.usage import estimated_tokens, read_usage

#: Kept from before the first token: an answer's id, and Anthropic's message_start, which alone has the prompt's tokens.
HEAD_BYTES: Final = 1024
HELD_BYTES_MAX: Final = 65536  # of an event that is not whole yet; a longer one passes as it comes
GROWING_BYTES_MIN: Final = 4096  # a longer event (a picture, a sound) makes progress before it is whole
TAIL_BYTES_MAX: Final = TAIL_BYTES + 2048  # then it is cut, so it is copied once for many chunks
ALIKE_BYTES_MAX: Final = 2048  # the same of events that are alike, as long as no other but one with a token is near
BEGIN_BYTES_MAX: Final = 1024  # of an event, before its text: an id, a time and a model are some 200
_DONES: Final = (
    b"data: [DONE]\n\n",
    b"data:[DONE]\n\n",
    b"data: [DONE]\r\n\r\n",
    b"data:[DONE]\r\n\r\n",
    b"data: [DONE]\r\r",
    b"data:[DONE]\r\r",
)
_USAGE_NAME: Final = b'"usage"'
_NO_USAGE: Final = (b'"usage":null', b'"usage": null')
_BARE_USAGE: Final = b'"choices":[],"usage":{'  # of an event that only reports usage, as engines write it
_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_LF: Final = 0x0A
_QUOTE: Final = 0x22
_CR: Final = 0x0D  # an int: `in` tries that first, and for bytes it builds an exception before it searches


class AnswerReader:
    """Reads one answer as it passes."""

    __slots__ = (
        "_alike",
        "_begin",
        "_done",
        "_events",
        "_held",
        "_hides_usage",
        "_lines",
        "_odd_to",
        "_size",
        "_streamed",
        "_tail",
        "_tail_bytes_max",
        "_usage",
        "head",
        "idle",
        "tokens",
    )

    def __init__(self, streamed: bool, hides_usage: bool, lines: bool = False) -> None:  # noqa: FBT001, FBT002
        self._streamed = streamed
        self._lines = streamed and lines  # a stream of JSON lines
        self._events = streamed and not lines
        self._hides_usage = hides_usage and self._events
        self.head = b""  #: how it began
        self._held = b""  # of an event that is not whole yet
        self._done = b""  # the last event, held until the answer is known to be good
        # Events normalised to one line each.
        self._tail = bytearray(b"\n\n" if streamed else b"")
        self._tail_bytes_max = ALIKE_BYTES_MAX  # then it is cut
        self._odd_to = -TAIL_BYTES  # where, in it, the last event without a token ends, or one in an unknown shape
        self._begin = b""  # how an event with a token began, up to the text; empty: none is known
        self._alike = True  # another one began like that, so it is worth while to know how the next one begins
        self._usage: Usage | None = None  # read before the rest of the tail
        self._size = 0  # of an answer that is no stream
        self.tokens = 0  #: events with a token that passed
        self.idle = False  #: the last bytes had no token and no end

    def take(self, data: bytes) -> bytes:  # noqa: C901, PLR0912 - calls cost more than branches
        """Look at the next bytes of the answer. Returns those to pass on."""
        if not self._events:
            return self._take_other(data)
        if self._held or _CR in data or not data.endswith(b"\n\n"):
            data = self._whole_events(data)
            if not data:
                return data
            if _CR in data:
                return self._each(data, whole=last_end(data) == len(data))
        begin, said, at, size = self._begin, 0, 0, len(data)
        text = len(begin)  # where it begins
        if text and data.startswith(begin) and data[text] != _QUOTE:
            if _LF not in data[text:-2]:  # one event, as in most reads
                said, at = 1, size
            while at < size and data.startswith(begin, at) and data[at + text] != _QUOTE:
                end = data.find(b"\n", at + text) + 1  # of the first line; there are two LF at the end
                if data[end] != _LF:
                    break
                said, at = said + 1, end + 1
        if said and at == size:
            ended, self._alike = said, True
        else:
            said, ended = _seen(data)
            if ended < 0:
                return self._each(data, whole=last_end(data) == size)
            if said != ended:
                self._ends_odd(size)
            elif said and self._alike:
                self._learn(data)
        self.idle = not ended
        if not self.tokens and len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        self.tokens += said
        seen = self._tail
        seen += data
        if len(seen) > self._tail_bytes_max:  # to cut it at each piece would copy it at each piece
            self._trim(size if at == size else 0)
        if at == size and not self._done:
            return data
        if self._hides_usage and data.find(_USAGE_NAME) >= 0:
            data = _without_usage(data)
        return self._before_done(data) if self._done or data.endswith(b"]\n\n") else data

    def _learn(self, data: bytes) -> None:
        """Note how the first event of `data` with a token begins, until it turns out that no other begins so."""
        self._alike, found = False, SAID.search(data)
        if found is not None:
            before = data.rfind(b"\n\n", 0, found.start())
            begin = data[before + 2 if before >= 0 else 0 : found.end() - 1]
            self._begin = begin if len(begin) <= BEGIN_BYTES_MAX and _LF not in begin else b""

    def _take_other(self, data: bytes) -> bytes:
        if len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        self._tail += data
        if self._lines:
            self._count_lines(data)
        else:
            self._size += len(data)
        if len(self._tail) > TAIL_BYTES_MAX:
            self._trim(0)
        return data

    def _count_lines(self, data: bytes) -> None:
        """Count the tokens of the lines that are whole by now. They pass as they come."""
        data = self._held + data
        end = data.rfind(b"\n") + 1
        self._held = data[end:]
        self.idle = len(self._held) < GROWING_BYTES_MIN
        if len(self._held) > HELD_BYTES_MAX:
            self._held = b""
        lines, said = data.count(b"\n", 0, end), len(LINE_SAID.findall(data, 0, end))
        if said < lines:
            meanings = [meaning_of_line(line) for line in data[:end].splitlines()]
            said = meanings.count(Meaning.TOKEN)
            self.idle = self.idle and Meaning.END not in meanings
        self.tokens += said
        self.idle = self.idle and not said

    def rest(self) -> bytes:
        """Returns the bytes still held at the end of the stream."""
        held, self._held = self._held, b""
        done, self._done = self._done, b""
        return done + (self._each(held, whole=False) if held and self._events else b"")

    @property
    def tail(self) -> bytes:
        """The last bytes of the answer."""
        return bytes(self._tail[-TAIL_BYTES:])

    def ended_well(self, path: str) -> bool:
        """True if the answer, now that it is whole, is one and not a failure."""
        if self._lines:
            return lines_ended_well(self.tail)
        return not self._streamed or ended_well(path, self.tail)

    def tells_abort(self) -> bool:
        """True if the engine reported that it cut the answer short."""
        return not lines_ended_well(self.tail) if self._lines else tells_abort(self.tail)

    def cut_off(self) -> bool:
        """True if the answer is a stream that stops inside an event, or a JSON text that stops before its end."""
        if not self._events:
            return not self._lines and ends_open(self.head, self.tail)
        within = self.mid_event()  # one that is too long to be held
        return (within or self._held != b"") and cut_off(self._held or self.tail, within=within)

    def tells_error(self) -> bool:
        """True if the engine reported that the answer failed."""
        return line_tells_error(self.tail) if self._lines else tells_error(self.tail)

    def mid_event(self) -> bool:
        """True if the stream broke off inside an event, so that an event of our own can't follow."""
        return not self._tail.endswith(b"\n\n" if self._events else b"\n")

    def usage(self) -> Usage | None:
        """Returns the usage reported by the engine, or None."""
        usage = read_usage(self._tail) or self._usage
        if usage is not None and not usage.prompt_tokens and (first := read_usage(self.head, first=True)) is not None:
            return Usage(
                first.prompt_tokens,
                usage.completion_tokens,
                first.cached_tokens,
                cached_told=first.cached_told,
                reasoning_tokens=usage.reasoning_tokens,
            )
        return usage

    def estimated_tokens(self) -> int:
        """Returns about how many tokens an answer has that is no stream, by its text."""
        return estimated_tokens(self._tail, self._size) if self.head.lstrip()[:1] in (b"{", b"[") else 0

    def _ends_odd(self, size: int) -> None:
        """Note that the next `size` bytes hold an event without a token: it may tell how the stream ends."""
        self._odd_to = len(self._tail) + size
        self._tail_bytes_max = TAIL_BYTES_MAX

    def _trim(self, alike_bytes: int) -> None:
        """Keep only the last part, and the usage of the rest. The last `alike_bytes` are events that are alike."""
        seen = self._tail
        left = len(seen) - TAIL_BYTES
        alone = 0 < alike_bytes < TAIL_BYTES and self._odd_to <= left
        if alone:
            left = len(seen) - alike_bytes
        self._tail_bytes_max = ALIKE_BYTES_MAX if alone else TAIL_BYTES_MAX
        if left <= 0:
            return
        at = seen.rfind(_USAGE_NAME, 0, left + len(_USAGE_NAME))
        if at >= 0 and not seen.startswith(_NO_USAGE, at):
            self._usage = read_usage(seen) or self._usage
        del seen[:left]
        self._odd_to -= left

    def _whole_events(self, data: bytes) -> bytes:
        """Returns the events that are whole by now, and keeps the rest until it is."""
        data = self._held + data
        end = last_end(data)
        if not end and len(data) > HELD_BYTES_MAX:
            self._held = b""
            return data
        data, self._held = data[:end], data[end:]
        self.idle = len(self._held) < GROWING_BYTES_MIN
        return data

    def _each(self, data: bytes, *, whole: bool) -> bytes:
        """Look at each event by itself. Returns those to pass. `whole`: the last one has its end."""
        events, rest = split(data)
        if rest:
            events.append(rest)
        self.idle = True
        kept, seen = [], b""
        for event in events:
            name, text = fields(event)
            if text is not None:
                what = meaning_of(name, text)
                if what is Meaning.TOKEN:
                    self.tokens += 1
                if what is Meaning.TOKEN or what is Meaning.END:
                    self.idle = False
                seen += in_one_line(name, text)
            hides = self._hides_usage and text is not None and only_usage(text)
            kept.append(_blank_lines(event) if hides else event)
        if len(self.head) < HEAD_BYTES:
            self.head += seen[: HEAD_BYTES - len(self.head)]
        self._tail += seen if whole else seen[:-2]
        self._ends_odd(0)
        if len(self._tail) > TAIL_BYTES_MAX:
            self._trim(0)
        return self._before_done(b"".join(kept)) if whole else b"".join(kept)

    def _before_done(self, data: bytes) -> bytes:
        """Keep a `[DONE]` at the end until the engine has ended its answer."""
        if self._done:
            data, self._done = self._done + data, b""
        if data.endswith(_DONES):
            at = data.rfind(b"data:")
            data, self._done = data[:at], data[at:]
        return data


def _seen(data: bytes) -> tuple[int, int]:
    """Returns how many tokens, and tokens and ends, are in events whose lines end with LF; the latter -1 in doubt.

    There is no doubt if each event has one line beside its name, and there are as many shapes as events.
    """
    if data.find(b"\n") == len(data) - 2 and says(data, len(data)):
        return 1, 1
    named, events = data.startswith(b"event:"), data.count(b"\n\n")
    if not events or data.count(b"\n") != (3 if named else 2) * events:
        return 0, -1
    said = ended = len((SAID_BY_NAME if named else SAID).findall(data))
    if said != events:
        ended += len(ENDED.findall(data)) + len(DONE.findall(data)) + data.startswith(DONE_FIRST)
        if named or (ended != events and ended + len(SILENT.findall(data)) != events):
            return 0, -1
    return said, ended


def _without_usage(data: bytes) -> bytes:
    """Returns events whose lines end with LF without those that only report usage."""
    at = data.rfind(_USAGE_NAME)
    while at >= 0:
        start, end = data.rfind(b"\n\n", 0, at), data.find(b"\n\n", at)
        start, end = (start + 2 if start >= 0 else 0), (end + 2 if end >= 0 else len(data))
        if not (data.startswith(_NO_USAGE, at) or _CHOICES.search(data, start, end)):
            event = data[start:end]
            if (_BARE_USAGE in event and b'"error"' not in event) or only_usage(fields(event)[1] or b""):
                data = data[:start] + _blank_lines(event) + data[end:]
        at = data.rfind(_USAGE_NAME, 0, start)
    return data


def _blank_lines(event: bytes) -> bytes:
    """Returns the empty lines that an event begins with: some are the end of the event before it, as it was cut."""
    return event[: len(event) - len(event.lstrip(b"\r\n"))]
