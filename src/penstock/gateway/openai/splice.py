"""How is one field of a body replaced without reading the rest of it again, or copying it?

A small body is bytes and becomes other bytes. A large one is `Spliced`: it stays unchanged, with insertions kept beside
it until everything is written to an engine in chunks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping
from typing import TypeVar

import msgspec

from penstock.gateway.openai import scan

T = TypeVar("T", bound=msgspec.Struct)

FIELDS_MAX = 2000  # of a small body, looked at to find some of them; APIs have some dozens
_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_EMPTY = re.compile(rb"\s*\}")
_KEY = re.compile(rb"[\s,]*(" + scan.STRING + rb")\s*:\s*", re.DOTALL)
_COMMA = re.compile(rb"\s*,")
_BORDER = re.compile(rb"[\s,}]")


class Spliced:
    """A body with other values in some places. The spans of its fields are known; of a form, only that of its model."""

    __slots__ = ("_edits", "_fields", "_model", "_size", "data")

    def __init__(
        self,
        data: bytes,
        fields: scan.FoundFields | None,
        model: scan.Span | None = None,
        edits: Mapping[scan.Span, bytes] | None = None,
    ) -> None:
        self.data = data  #: as it came
        self._fields = fields  # None: it is a form
        self._model = model
        self._edits: dict[scan.Span, bytes] = dict(edits or {})
        self._size = len(data) + sum(len(value) - (end - begin) for (begin, end), value in self._edits.items())

    def __len__(self) -> int:
        return self._size

    def with_model(self, model: str, field: str = "model") -> Spliced:
        """Returns the same body for another model, which JSON names in `field`; a form that names none as it is."""
        if self._fields is not None:
            return self.with_fields({field: msgspec.json.encode(model)})
        if self._model is None:
            return self
        return Spliced(self.data, None, self._model, {self._model: model.encode()})

    def with_fields(self, values: Mapping[str, bytes]) -> Spliced:
        """Returns the same body with some top-level fields set to JSON `values`, or added."""
        fields = self._fields
        assert fields is not None, "only JSON has fields"
        edits = dict(self._edits)
        first = (fields.begin, fields.begin)
        for name, value in values.items():
            spans = fields.spans.get(name)
            if spans is None:
                comma = b"," if fields.spans or first in edits else b""
                edits[first] = b'"%b":%b%b%b' % (name.encode(), value, comma, edits.get(first, b""))
            else:
                edits.update(dict.fromkeys(spans, value))
        return Spliced(self.data, fields, edits=edits)

    def without(self, name: str) -> Spliced:
        """Returns the same body without a top-level field; one that is given several times is set to 0 instead."""
        fields = self._fields
        assert fields is not None, "only JSON has fields"
        if len(fields.spans.get(name, ())) > 1:
            return self.with_fields({name: b"0"})
        return (
            Spliced(self.data, fields, edits={**self._edits, fields.cuts[name]: b""}) if name in fields.cuts else self
        )

    def raw(self, name: str, bytes_max: int) -> bytes:
        """Returns the value of a field; empty if it is absent or longer."""
        span = None if self._fields is None else self._fields.last(name)
        return b"" if span is None or span[1] - span[0] > bytes_max else self.data[span[0] : span[1]]

    def fields(self, of: type[T]) -> T:
        """Returns all the fields that a struct of raw values has."""
        assert self._fields is not None, "only JSON has fields"
        whole = memoryview(self.data)
        names = [(name, self._fields.last(name)) for name in of.__struct_fields__]
        return of(**{name: msgspec.Raw(whole[span[0] : span[1]]) for name, span in names if span is not None})

    def values(self, names: Container[str]) -> Iterator[tuple[str, bytes]]:
        """The values of some fields, as they came."""
        if self._fields is not None:
            for name, spans in self._fields.spans.items():
                if name in names:
                    for begin, end in spans:
                        yield name, self.data[begin:end]

    def names(self) -> Collection[str]:
        """Returns the names of all top-level fields; none of a form."""
        return () if self._fields is None else self._fields.spans.keys()

    def pieces(self) -> list[bytes | memoryview]:
        """Returns the chunks to write, in order."""
        whole, at = memoryview(self.data), 0
        pieces: list[bytes | memoryview] = []
        for (begin, end), value in sorted(self._edits.items()):
            pieces += (whole[at:begin], value)
            at = end
        pieces.append(whole[at:])
        return [piece for piece in pieces if piece]


Body = bytes | Spliced


def set_field(body: Body, name: str, value: bytes) -> Body:
    """Returns the same body with a top-level field set to a JSON value, or added. `peek` has accepted it."""
    return set_fields(body, {name: value})


def set_fields(body: Body, values: Mapping[str, bytes]) -> Body:
    """Returns the same body with several fields set, in one pass."""
    return body.with_fields(values) if isinstance(body, Spliced) else set_in_bytes(body, values)


def set_in_bytes(body: bytes, values: Mapping[str, bytes]) -> bytes:
    """Returns the same small body with several fields set."""
    pieces: list[bytes] = []
    missing = dict(values)
    copied = 0
    try:
        places = list(_fields_named(body, values))
    except _TooManyFieldsError:
        return b"".join((body[: body.rindex(b"}")], b",", _members(values), b"}"))  # the last one of a name counts
    for name, start, end in places:
        pieces += (body[copied:start], values[name])
        copied = end
        missing.pop(name, None)
    if copied:
        body = b"".join((*pieces, body[copied:]))
    return add_first(body, _members(missing)) if missing else body


def names(body: Body) -> Collection[str]:
    """Returns the names of a body's top-level fields; none of a form."""
    return body.names() if isinstance(body, Spliced) else _decode_values(body).keys()


def values_of(body: Body, names: Container[str]) -> Iterator[tuple[str, bytes]]:
    """The values of some top-level fields, raw, in their order; a field may be given twice. `peek` has accepted it."""
    if isinstance(body, Spliced):
        yield from body.values(names)
        return
    try:
        for name, start, end in _fields_named(body, names):
            yield name, body[start:end]
    except _TooManyFieldsError:
        yield from [(name, bytes(value)) for name, value in _decode_values(body).items() if name in names]


def remove_field(body: Body, name: str) -> Body:
    """Returns the same body without a top-level field, however often it is given. `peek` has accepted it."""
    return body.without(name) if isinstance(body, Spliced) else remove_in_bytes(body, name)


def remove_in_bytes(body: bytes, name: str) -> bytes:
    """Returns the same small body without a top-level field."""
    try:
        places = [(start, end) for _, start, end in _fields_named(body, (name,))]
    except _TooManyFieldsError:
        return set_in_bytes(body, {name: b"0"})  # which means the same as leaving it out
    for start, end in reversed(places):
        begin = body.rindex(b'"', 0, body.rindex(b'"', 0, start))  # of its name, in which there is no quote
        comma = _COMMA.match(body, end)
        if comma is not None:
            end = comma.end()  # noqa: PLW2901
        elif (before := body[:begin].rstrip()).endswith(b","):
            begin = len(before) - 1
        body = body[:begin] + body[end:]
    return body


def add_first(body: bytes, members: bytes) -> bytes:
    """Returns the same bytes with more top-level fields, `"name":value`, before all others."""
    brace = body.index(b"{") + 1
    return b"".join((body[:brace], members, b"" if _EMPTY.match(body, brace) else b",", body[brace:]))


class _TooManyFieldsError(Exception):
    """Too many to check each without delaying others."""


def _members(values: Mapping[str, bytes]) -> bytes:
    return b",".join([b'"%b":%b' % (name.encode(), value) for name, value in values.items()])


def _fields_named(body: bytes, names: Container[str]) -> Iterator[tuple[str, int, int]]:
    """Returns the spans of some top-level fields, in order; a field may be given twice.

    msgspec has found each value's end, so a long prompt is not scanned twice.
    """
    values = _decode_values(body)
    at = body.index(b"{") + 1
    for _ in range(FIELDS_MAX):
        key = _KEY.match(body, at)
        if key is None:
            return
        name, start = scan.unquoted(key[1], at), key.end()
        value = bytes(values[name])
        at = start + len(value)
        if not body.startswith(value, start) or not _BORDER.match(body, at):  # given again, with another value
            at = scan.value_end(body, start)
        if name in names:
            yield name, start, at
    raise _TooManyFieldsError
