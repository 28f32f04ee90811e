"""Locates the fields of a large JSON body. Scanning goes in steps, so that no body delays everybody else's tokens.

A C parser reads a gigabyte per second without interruption: 64 MiB block the loop for up to 0.2 s. So a body larger
than `ONE_STEP_BYTES` is scanned here in steps of about 64 KiB. The top level is parsed fully; of a value only its end,
brackets and strings: other errors are left to the engine. Flat parts of a value are skipped by one regular expression,
so Python takes one step per deeper bracket, and these are bounded: a value with more is refused.
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

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALARS = rb"[\s,:\-+.0-9eEtrufalsn]"  # all that stands between strings and brackets


def _flat(levels: int) -> bytes:
    """Returns an expression for values of at most this depth."""
    inside = rb"(?:" + _SCALARS + rb"++|" + _STRING
    if levels:
        deeper = _flat(levels - 1)
        inside += rb"|\[" + deeper + rb"\]|\{" + deeper + rb"\}"
    return inside + rb")*+"


_FLAT = re.compile(_flat(_FLAT_LEVELS), re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_PAIRED = re.compile(  # text in which each escaped surrogate has its other half
    rb"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]))*+", re.DOTALL
)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(rb"(" + _STRING + rb")\s{0,99}+:", re.DOTALL)
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
    """The fields of a body. Yields between steps. Raises `Malformed`, and UnicodeDecodeError."""
    yield from _check_utf8(body)
    yield from check_surrogates(body)
    fields = FoundFields()
    at = yield from _skip(_SPACE, body, 0)
    if body[at : at + 1] != b"{":
        raise Malformed("The body is not a JSON object.")
    fields.begin = at = at + 1
    at = yield from _skip(_SPACE, body, at)
    if body[at : at + 1] == b"}":
        yield from _end(body, at + 1)
        return fields
    before = at  # the end of the field before it
    for count in range(FIELDS_MAX):
        key = _KEY.match(body, at, at + KEY_BYTES_MAX)
        if key is None:
            raise _malformed(at)
        begin = yield from _skip(_SPACE, body, key.end())
        end = yield from _value_end(body, begin)
        name, key_at = unquoted(key[1], at), at
        fields.spans.setdefault(name, []).append((begin, end))
        at = yield from _skip(_SPACE, body, end)
        mark = body[at : at + 1]
        if mark == b"}":
            fields.cuts[name] = before, end
            yield from _end(body, at + 1)
            return fields
        if mark != b",":
            raise _malformed(at)
        at = yield from _skip(_SPACE, body, at + 1)
        fields.cuts[name], before = (key_at, at), end
        if count % _STEP_BRACKETS == 0:
            yield
    raise Malformed(f"The body has more than {FIELDS_MAX} fields.")


def _check_utf8(body: bytes) -> Generator[None, None, None]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), _FIND_BYTES // 4):
        piece = body[at : at + _FIND_BYTES // 4]
        if decoder.getstate()[0] or not piece.isascii():
            decoder.decode(piece)
        yield
    decoder.decode(b"", True)  # noqa: FBT003 - its own word for the end


def check_surrogates(body: bytes) -> Generator[None, None, None]:
    """Refuse half of a surrogate pair: it is no character, so that an engine's tokenizer fails on it. In steps."""
    at = 0
    while True:
        found = _PAIRED.match(body, at, at + _STEP_BYTES)
        assert found is not None, "it matches nothing, too"
        if found.end() >= len(body):
            return
        if found.end() == at:
            raise Malformed(f"The body holds half of a surrogate pair, which is not a character (byte {at}).")
        at = found.end()
        yield


def _skip(what: re.Pattern[bytes], body: bytes, at: int) -> Generator[None, None, int]:
    """Returns its end, for any length."""
    while True:
        found = what.match(body, at, at + _STEP_BYTES)
        assert found is not None, "it matches nothing, too"
        if found.end() < at + _STEP_BYTES:
            return found.end()
        at = found.end()
        yield


def _end(body: bytes, at: int) -> Generator[None, None, None]:
    at = yield from _skip(_SPACE, body, at)
    if at < len(body):
        raise Malformed(f"The body is not valid JSON: something follows its end (byte {at}).")


def _value_end(body: bytes, at: int) -> Generator[None, None, int]:
    """Returns the end of the value that begins here."""
    first = body[at : at + 1]
    if first == b'"':
        return (yield from _string_end(body, at + 1))
    if first not in (b"[", b"{"):
        end = yield from _skip(_SCALAR, body, at)
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
            at = (yield from _string_end(body, at + 1)) - 1
        elif mark < 0:
            raise Malformed("The body is not valid JSON: it is cut short.")
        else:
            raise _malformed(at)
        at += 1
        flat = _FLAT.match(body, at, at + _STEP_BYTES)
        assert flat is not None, "it matches nothing, too"
        if flat.end() - at > _STEP_BYTES // 4 or brackets % _STEP_BRACKETS == 0:
            yield
        while flat.end() == at + _STEP_BYTES:  # it may go on
            at = flat.end()
            flat = _FLAT.match(body, at, at + _STEP_BYTES)
            assert flat is not None, "it matches nothing, too"
            yield
        at = flat.end()


def _string_end(body: bytes, at: int) -> Generator[None, None, int]:
    """After the closing quote of a string, of which some was read."""
    while True:
        quote = body.find(b'"', at, at + _FIND_BYTES)
        escape = body.find(b"\\", at, at + _FIND_BYTES if quote < 0 else quote)
        if escape < 0:
            if quote >= 0:
                return quote + 1
            at += _FIND_BYTES
        else:
            inside = _IN_STRING.match(body, escape, escape + _STEP_BYTES)
            assert inside is not None, "it matches nothing, too"
            if body[inside.end() : inside.end() + 1] == b'"':
                return inside.end() + 1
            if inside.end() == escape:
                raise Malformed("The body is not valid JSON: it is cut short.")
            at = inside.end()
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
