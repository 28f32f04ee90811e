"""What must be known of a request's body before it can be scheduled, and how one field of it is replaced.

The body is read once, only for the fields that matter here; everything else passes as the bytes it came in. What
is not a JSON object that names its model is refused, so that an engine never sees it.
"""

from __future__ import annotations

import re
import zlib

import msgspec


class BadBody(Exception):  # noqa: N818 - it says what it is
    """The body can't be scheduled; the text says why, to the caller."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class _Fields(msgspec.Struct, gc=False):
    model: object = None
    stream: object = None
    max_tokens: object = None
    max_completion_tokens: object = None


class Peek(msgspec.Struct, frozen=True, gc=False):
    """What scheduling needs of a body."""

    model: str | None
    stream: bool
    output_tokens_max: int | None = None


_decode = msgspec.json.Decoder(_Fields).decode
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN = re.compile(rb"[\[\]{}]|" + _STRING.pattern, re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_PART_HEADERS_BYTES_MAX = 4096
_PARTS_MAX = 1000


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
    except msgspec.ValidationError:
        raise BadBody("The body is not a JSON object.") from None
    except msgspec.DecodeError as error:
        raise BadBody(f"The body is not valid JSON: {error}.") from None
    model = fields.model
    if model is not None and not (isinstance(model, str) and model):
        raise BadBody("`model` must be a non-empty string.", "model")
    limit = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    return Peek(
        model=model,
        stream=fields.stream is True,
        output_tokens_max=limit if isinstance(limit, int) and limit > 0 else None,
    )


def replace_model(body: bytes, model: str) -> bytes:
    """The same bytes with another name in the top-level field `model`. `peek` has accepted the body."""
    name = msgspec.json.encode(model)
    pieces: list[bytes] = []
    copied = 0
    depth = 0
    tokens = _TOKEN.finditer(body)
    for token in tokens:
        text = token[0]
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and (colon := _COLON.match(body, token.end())) and _unquoted(text) == "model":
            value = _STRING.match(body, colon.end())
            if value is None:
                continue  # given twice, and this is not the one that counts
            next(tokens)
            pieces += (body[copied : colon.end()], name)
            copied = value.end()
    return b"".join((*pieces, body[copied:]))


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


def inflate(body: bytes, bytes_max: int) -> bytes | None:
    """A gzip body unpacked, None when it would be larger than `bytes_max`. Raises `BadBody`."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        data = inflater.decompress(body, bytes_max + 1)
    except zlib.error:
        raise BadBody("The body is not valid gzip.") from None
    if len(data) > bytes_max:
        return None
    if not inflater.eof or inflater.unused_data:
        raise BadBody("The body is not one whole gzip member.")
    return data
