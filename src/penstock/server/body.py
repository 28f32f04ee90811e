"""What must be known of a request's body before it can be scheduled, and how one field of it is replaced.

The body is read once, only for the fields that matter here; everything else passes as the bytes it came in. What
is not a JSON object that names its model is refused, so that an engine never sees it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Container, Iterator, Mapping

import msgspec

from penstock.server.fields import Fields, Peek, Text


class BadBody(Exception):  # noqa: N818 - it says what it is
    """The body can't be scheduled; the text says why, to the caller."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class _TooManyFieldsError(Exception):
    """So many that to look at each would hold up everybody else."""


FIELDS_MAX = 10_000  # looked at to find some of them
COLONS_MAX = 100_000  # of no prompt: fewer fields are told apart in a tenth of a second, millions take seconds
_decode = msgspec.json.Decoder(Fields).decode
_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_scan = json.JSONDecoder(parse_int=str, parse_float=str, strict=False).raw_decode  # numbers of any length
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+")
_EMPTY = re.compile(rb"\s*\}")
_NUMBER_TOO_LARGE = re.compile(r"out of range - at `\$\.(\w+)")  # all other fields are of any type
_KEY = re.compile(rb"[\s,]*(" + _STRING.pattern + rb")\s*:\s*", re.DOTALL)
_COMMA = re.compile(rb"\s*,")
_BORDER = re.compile(rb"[\s,}]")
_ASKING = b'{"include_usage":true}'
_NOT_ASKING: tuple[object, ...] = (None, {}, {"include_usage": None}, {"include_usage": False})
_PART_HEADERS_BYTES_MAX = 4096
_PARTS_MAX = 1000
_INFLATE_STEP_BYTES = 256 * 1024


def peek(body: bytes) -> Peek:
    """Read the fields that scheduling needs. Raises `BadBody`."""
    if not body:
        raise BadBody("The request has no body; a JSON object is expected.")
    try:
        fields = _decode(body)
        if not body.isascii():
            str(body, "utf-8")
    except RecursionError:
        raise BadBody("The body is nested too deeply.") from None
    except UnicodeDecodeError as error:
        raise BadBody(f"The body is not valid UTF-8 (byte {error.start}).") from None
    except msgspec.ValidationError as error:
        if (place := _NUMBER_TOO_LARGE.search(str(error))) is not None:
            raise BadBody(f"A number in `{place[1]}` is out of range.", place[1]) from None
        raise BadBody("The body is not a JSON object.") from None
    except msgspec.DecodeError as error:
        raise BadBody(f"The body is not valid JSON: {error}.") from None
    model = fields.model
    if model is not None and not (isinstance(model, str) and model):
        raise BadBody("`model` must be a non-empty string.", "model")
    limit = fields.max_completion_tokens
    if limit is None:
        limit = fields.max_tokens if fields.max_tokens is not None else fields.max_output_tokens
    for own in (fields.parameters, fields.sampling_params):
        if limit is None and isinstance(own, dict):
            limit = own.get("max_new_tokens")
    if limit is None:
        limit = fields.options.get("num_predict") if isinstance(fields.options, dict) else fields.n_predict
    return Peek(
        model=model,
        stream=fields.stream is True,
        whole=fields.stream is False,
        output_tokens_max=limit if type(limit) is int and limit > 0 else None,
        stream_options=fields.stream_options,
        user=fields.user,
        service_tier=fields.service_tier,
        priority=fields.priority,
        previous_response=fields.previous_response_id,
        text=fields,
    )


def replace_model(body: bytes, model: str) -> bytes:
    """The same bytes with another name in the top-level field `model`."""
    return set_field(body, "model", msgspec.json.encode(model))


def set_field(body: bytes, name: str, value: bytes) -> bytes:
    """The same bytes with a top-level field set to a JSON value, added where missing. `peek` has accepted them."""
    return set_fields(body, {name: value})


def set_fields(body: bytes, values: Mapping[str, bytes]) -> bytes:
    """The same with several fields, in one pass."""
    pieces: list[bytes] = []
    missing = dict(values)
    copied = 0
    try:
        places = list(_fields_named(body, values))
    except (_TooManyFieldsError, RecursionError):
        return b"".join((body[: body.rindex(b"}")], b",", _members(values), b"}"))  # the last one of a name counts
    for name, start, end in places:
        pieces += (body[copied:start], values[name])
        copied = end
        missing.pop(name, None)
    if copied:
        body = b"".join((*pieces, body[copied:]))
    return _with_fields(body, missing) if missing else body


def remove_field(body: bytes, name: str) -> bytes:
    """The same bytes without a top-level field, however often it is given. `peek` has accepted them."""
    try:
        places = [(start, end) for _, start, end in _fields_named(body, (name,))]
    except (_TooManyFieldsError, RecursionError):
        return set_field(body, name, b"0")  # which is to say nothing of it, wherever it means something
    for start, end in reversed(places):
        begin = body.rindex(b'"', 0, body.rindex(b'"', 0, start))  # of its name, in which there is no quote
        comma = _COMMA.match(body, end)
        if comma is not None:
            end = comma.end()  # noqa: PLW2901
        elif (before := body[:begin].rstrip()).endswith(b","):
            begin = len(before) - 1
        body = body[:begin] + body[end:]
    return body


def add_field(body: bytes, name: str, value: bytes) -> bytes:
    """The same bytes with a top-level field more, before all others."""
    return _with_fields(body, {name: value})


def _with_fields(body: bytes, values: Mapping[str, bytes]) -> bytes:
    brace = body.index(b"{") + 1
    comma = b"" if _EMPTY.match(body, brace) else b","
    return b"".join((body[:brace], _members(values), comma, body[brace:]))


def _members(values: Mapping[str, bytes]) -> bytes:
    return b",".join([b'"%b":%b' % (name.encode(), value) for name, value in values.items()])


def ask_usage(body: bytes, stream_options: object) -> bytes | None:
    """The same bytes, asking for the usage of a stream; None where the caller does so, or has other wishes."""
    if stream_options is msgspec.UNSET:
        return add_field(body, "stream_options", _ASKING)
    if stream_options in _NOT_ASKING:
        return set_field(body, "stream_options", _ASKING)
    return None


def is_multipart(content_type: bytes | None) -> bool:
    """Whether a body is a form and no JSON."""
    return (content_type or b"")[:19].lower() == b"multipart/form-data"


def _fields_named(body: bytes, names: Container[str]) -> Iterator[tuple[str, int, int]]:
    """Where the values of some top-level fields stand, in their order; a field may be given twice.

    msgspec has found each value's end, so that nobody looks through a long prompt a second time.
    """
    if _may_have_too_many(body):
        raise _TooManyFieldsError
    values = _decode_values(body)
    at = body.index(b"{") + 1
    for _ in range(FIELDS_MAX):
        key = _KEY.match(body, at)
        if key is None:
            return
        name, start = _unquoted(key[1]), key.end()
        value = bytes(values[name])
        at = start + len(value)
        if not body.startswith(value, start) or not _BORDER.match(body, at):  # given again, with another value
            at = _value_end(body, start)
        if name in names:
            yield name, start, at
    raise _TooManyFieldsError


def _may_have_too_many(body: bytes) -> bool:
    """Whether there are more colons beside the prompt than fields could be told apart without holding up others."""
    colons = body.count(b":")
    if colons > COLONS_MAX:
        text = _decode(body)
        colons -= sum(bytes(getattr(text, name)).count(b":") for name in Text.__struct_fields__)
    return colons > COLONS_MAX


def _value_end(body: bytes, start: int) -> int:
    """Where a JSON value that begins at `start` ends."""
    if body[start : start + 1] not in (b"{", b"["):
        scalar = _STRING.match(body, start) or _SCALAR.match(body, start)
        assert scalar is not None
        return scalar.end()
    return _scan(str(body, "latin-1"), start)[1]  # a character per byte; quotes and brackets are none of UTF-8's rest


def _unquoted(text: bytes) -> str:
    return str(msgspec.json.decode(text)) if b"\\" in text else str(text[1:-1], "utf-8")


def multipart_model(body: bytes, content_type: bytes) -> str | None:
    """The form field `model` of a multipart body. Raises `BadBody` when the body is not what its type says."""
    span = _multipart_field(body, content_type, b"model")
    if span is None:
        return None
    try:
        return str(body[span[0] : span[1]], "utf-8") or None
    except UnicodeDecodeError:
        raise BadBody("The form field `model` is not valid UTF-8.", "model") from None


def replace_multipart_model(body: bytes, content_type: bytes, model: str) -> bytes:
    """The same bytes with another name in the form field `model`, which `multipart_model` has found."""
    span = _multipart_field(body, content_type, b"model")
    assert span is not None
    return b"".join((body[: span[0]], model.encode(), body[span[1] :]))


def _multipart_field(body: bytes, content_type: bytes, name: bytes) -> tuple[int, int] | None:
    """Where the value of a form field stands (RFC 7578)."""
    found = re.search(rb'boundary="?([^";,\s]{1,200})', content_type, re.IGNORECASE)
    if found is None:
        raise BadBody("The multipart body has no boundary.")
    delimiter = b"--" + found[1]
    at = body.find(delimiter)
    if at < 0:
        raise BadBody("The multipart body does not hold its boundary.")
    wanted = re.compile(rb'[;\s]name="?' + name + rb'"?[;\s]', re.IGNORECASE)
    for _ in range(_PARTS_MAX):
        head_from = at + len(delimiter)
        head_to = body.find(b"\r\n\r\n", head_from, head_from + _PART_HEADERS_BYTES_MAX)
        if head_to < 0:
            return None
        end = body.find(b"\r\n" + delimiter, head_to)
        if end < 0:
            raise BadBody("The multipart body breaks off.")
        if wanted.search(body[head_from:head_to] + b"\r\n"):
            return head_to + 4, end
        at = end + 2
    raise BadBody(f"The multipart body has more than {_PARTS_MAX} parts.")


class Inflater:
    """Unpacks a gzip body in steps of a millisecond, so that a large one does not hold up everybody else's tokens."""

    def __init__(self, body: bytes, bytes_max: int) -> None:
        self._body = memoryview(body)
        self._at = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pieces: list[bytes] = []
        self._inflater = zlib.decompressobj(wbits=31)

    def step(self) -> bool:
        """Go on; returns whether it is done. Raises `BadBody`."""
        inflater = self._inflater
        data: bytes | memoryview = inflater.unconsumed_tail
        if not data:
            data = self._body[self._at : self._at + _INFLATE_STEP_BYTES]
            self._at += len(data)
        try:
            piece = inflater.decompress(data, _INFLATE_STEP_BYTES)
        except zlib.error:
            raise BadBody("The body is not valid gzip.") from None
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self.too_large:
            return True
        if inflater.eof:
            if inflater.unused_data or self._at < len(self._body):
                raise BadBody("The body is not one whole gzip member.")
            return True
        if not piece and not data:
            raise BadBody("The body is not one whole gzip member.")
        return False

    @property
    def too_large(self) -> bool:
        return self._bytes > self._bytes_max

    def body(self) -> bytes:
        """What came out of it, when it is done."""
        return b"".join(self._pieces)
