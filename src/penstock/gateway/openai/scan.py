"""Locates the fields of a large JSON body. Scanning goes in steps, so that no body delays everybody else's tokens.

A C parser reads a gigabyte per second without interruption: 64 MiB block the loop for up to 0.2 s. So a body larger
than `ONE_STEP_BYTES` is scanned here in steps of about 64 KiB. The top level is parsed fully; of a value only its end,
brackets and strings: other errors are left to the engine. Flat parts of a value are skipped by one regular expression,
so Python takes one step per deeper bracket, and these are bounded: a value with more is refused.

A step ends anywhere: inside a number, a string, an escape. Two rules keep that cut from changing what is read. Each
expression is a run of tokens, and a token never looks behind its own end, so a run that was cut ends between two of
them. `run_end` alone decides whether a run has ended, or goes on in the next step. Repeated groups are atomic, not
possessive: Python before 3.11.5 ends a possessive group in the middle of an alternative that failed (gh-106052).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from typing import TypeVar

import msgspec

T = TypeVar("T")

ONE_STEP_BYTES = 256 * 1024  # a parser in C is done with the worst of these in a millisecond
FIELDS_MAX = 10_000  # at the top level; APIs have some dozens
DEPTH_MAX = 500  # engines' own parsers give up at a thousand or before
BRACKETS_MAX = 500_000  # of values nested deeper than `_FLAT_LEVELS`: half a second of steps
KEY_BYTES_MAX = 1024
_STEP_BYTES = 64 * 1024
_FIND_BYTES = 1024 * 1024  # for `bytes.find` and a copy in the same time
_STEP_BRACKETS = 500
_FLAT_LEVELS = 4  # a message with a tool call; a larger one costs more if a part does not end in its step

#: An expression for a whole string, its quotes included.
STRING: bytes = rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"'
_SCALARS = rb"[\s,:\-+.0-9eEtrufalsn]"  # all that stands between strings and brackets


def _flat(levels: int) -> bytes:
    """Returns an expression for values of at most this depth."""
    inside = rb"(?>(?:" + _SCALARS + rb"++|" + STRING
    if levels:
        deeper = _flat(levels - 1)
        inside += rb"|\[" + deeper + rb"\]|\{" + deeper + rb"\}"
    return inside + rb")*)"


_FLAT = re.compile(_flat(_FLAT_LEVELS), re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)', re.DOTALL)
_PAIRED = re.compile(  # text in which each escaped surrogate has its other half
    rb"(?>(?:[^\\]++|\\(?:[^u]|u(?:[^dD]|[dD][^89a-fA-F]|[dD][89abAB]..\\u[dD][c-fC-F])))*)", re.DOTALL
)
_ESCAPE_BYTES, _PAIR_BYTES = 2, 10  # the longest token of `_IN_STRING`, and of `_PAIRED`
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(STRING, re.DOTALL)
_SCALAR = re.compile(rb"[\-+.0-9eEtrufalsn]*+")
_OPENING = (0x5B, 0x7B)
_CLOSED_BY = {0x5B: 0x5D, 0x7B: 0x7D}

#: A value's span: from the first byte to the one after the last.
Span = tuple[int, int]


class Malformed(Exception):  # noqa: N818 - it says what it is
    """The bytes are not a JSON object, or one too deep or too wide."""


class FoundFields:
    """The spans of a body's top-level fields, in order; a name may be given several times."""

    __slots__ = ("begin", "cuts", "spans")

    def __init__(self) -> None:
        self.begin = 0  #: after the opening brace
        self.spans: dict[str, list[Span]] = {}
        self.cuts: dict[str, Span] = {}  # the span to cut for removing a field given once

    def last(self, name: str) -> Span | None:
        """Returns the span of the effective value, the last one of that name, or None."""
        spans = self.spans.get(name)
        return None if spans is None else spans[-1]


def scan(body: bytes) -> Generator[None, None, FoundFields]:
    """The fields of a body. Yields between steps. Raises `Malformed`."""
    yield from _check_utf8(body)
    yield from check_surrogates(body)
    fields = FoundFields()
    at = yield from run_end(_SPACE, body, 0)
    if body[at : at + 1] != b"{":
        raise Malformed("The body is not a JSON object.")
    fields.begin = at = at + 1
    at = yield from run_end(_SPACE, body, at)
    if body[at : at + 1] == b"}":
        yield from _end(body, at + 1)
        return fields
    before = at  # the end of the field before it
    for count in range(FIELDS_MAX):
        key = _KEY.match(body, at, at + KEY_BYTES_MAX)
        if key is None:
            most = f"or the name of a field is longer than {KEY_BYTES_MAX} bytes (byte {at})."
            raise _malformed(at) if body[at : at + 1] != b'"' else Malformed(f"The body is not valid JSON, {most}")
        colon = yield from run_end(_SPACE, body, key.end())
        if body[colon : colon + 1] != b":":
            raise _malformed(colon)
        begin = yield from run_end(_SPACE, body, colon + 1)
        end = yield from _value_end(body, begin)
        name, key_at = unquoted(key[0], at), at
        fields.spans.setdefault(name, []).append((begin, end))
        at = yield from run_end(_SPACE, body, end)
        mark = body[at : at + 1]
        if mark == b"}":
            fields.cuts[name] = before, end
            yield from _end(body, at + 1)
            return fields
        if mark != b",":
            raise _malformed(at)
        at = yield from run_end(_SPACE, body, at + 1)
        fields.cuts[name], before = (key_at, at), end
        if count % _STEP_BRACKETS == 0:
            yield
    raise Malformed(f"The body has more than {FIELDS_MAX} fields.")


def _check_utf8(body: bytes) -> Generator[None, None, None]:
    """In steps; a character that a cut parts is read in the next one."""
    at = 0
    while at < len(body):
        piece = body[at : at + _FIND_BYTES // 4]
        last = at + len(piece) == len(body)
        try:
            at += len(piece) if piece.isascii() else codecs.utf_8_decode(piece, "strict", last)[1]
        except UnicodeDecodeError as error:
            raise Malformed(f"The body is not valid UTF-8 (byte {at + error.start}).") from None
        yield


def check_surrogates(body: bytes) -> Generator[None, None, None]:
    """Refuse half of a surrogate pair: it is no character, so that an engine's tokenizer fails on it. In steps."""
    end = yield from run_end(_PAIRED, body, 0, token_bytes=_PAIR_BYTES)
    if end < len(body):
        raise Malformed(f"The body holds half of a surrogate pair, which is not a character (byte {end}).")


def run_end(what: re.Pattern[bytes], body: bytes, at: int, *, token_bytes: int = 1) -> Generator[None, None, int]:
    """Returns the end of the run of tokens that begins here, however long it is. In steps.

    A match that a cut inside a token ends is less than `token_bytes`, the longest token's size, from the cut. So it is
    taken up again there, with a whole step's room. (Where tokens have any size, the caller looks at what follows.)
    """
    while True:
        cut = at + _STEP_BYTES
        run = what.match(body, at, cut)
        assert run is not None, "it matches nothing, too"
        if run.end() <= cut - token_bytes or run.end() == at:
            return run.end()
        at = run.end()
        yield


def _end(body: bytes, at: int) -> Generator[None, None, None]:
    at = yield from run_end(_SPACE, body, at)
    if at < len(body):
        raise Malformed(f"The body is not valid JSON: something follows its end (byte {at}).")


def _value_end(body: bytes, at: int) -> Generator[None, None, int]:
    """Returns the end of the value that begins here."""
    first = body[at : at + 1]
    if first == b'"':
        return (yield from string_end(body, at + 1))
    if first not in (b"[", b"{"):
        end = yield from run_end(_SCALAR, body, at)
        if end == at:
            raise _malformed(at)
        return end
    return (yield from _nested_end(body, at))


def _nested_end(body: bytes, at: int) -> Generator[None, None, int]:
    """Returns the end of the array or object that begins here."""
    open_: list[int] = []  # closing brackets of the open values
    brackets = 0
    while True:
        mark = body[at] if at < len(body) else -1
        if mark in _OPENING:
            open_.append(_CLOSED_BY[mark])
            if len(open_) > DEPTH_MAX:
                raise Malformed("The body is nested too deeply.")
            brackets += 1
            if brackets > BRACKETS_MAX:
                raise Malformed(f"A field of the body holds more than {BRACKETS_MAX} nested values.")
        elif mark == open_[-1]:
            open_.pop()
            if not open_:
                return at + 1
        elif mark == 0x22:
            at = (yield from string_end(body, at + 1)) - 1
        elif mark < 0:
            raise Malformed("The body is not valid JSON: it is cut short.")
        else:
            raise _malformed(at)
        begin = at + 1
        at = yield from run_end(_FLAT, body, begin)
        if at - begin > _STEP_BYTES // 4 or brackets % _STEP_BRACKETS == 0:
            yield


def string_end(body: bytes, at: int) -> Generator[None, None, int]:
    """After the closing quote of a string, of which some was read."""
    while True:
        quote = body.find(b'"', at, at + _FIND_BYTES)
        escape = body.find(b"\\", at, at + _FIND_BYTES if quote < 0 else quote)
        if escape >= 0:
            end = yield from run_end(_IN_STRING, body, escape, token_bytes=_ESCAPE_BYTES)
            if body[end : end + 1] == b'"':
                return end + 1
            at = len(body)  # or only half an escape is left
        elif quote >= 0:
            return quote + 1
        else:
            at += _FIND_BYTES
        if at >= len(body):
            raise Malformed("The body is not valid JSON: it is cut short.")
        yield


def value_end(body: bytes, at: int) -> int:
    """Returns the end of the value at `at`, in a small body."""
    return at_once(_value_end(body, at))


def at_once(steps: Generator[None, None, T]) -> T:
    """Take all steps through a small body, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def unquoted(text: bytes, at: int) -> str:
    """Returns the key at `at` as it is meant: without quotes and escapes."""
    try:
        return str(msgspec.json.decode(text)) if b"\\" in text else str(text[1:-1], "utf-8")
    except msgspec.DecodeError:
        raise _malformed(at) from None


def _malformed(at: int) -> Malformed:
    return Malformed(f"The body is not valid JSON: unexpected character (byte {at}).")
