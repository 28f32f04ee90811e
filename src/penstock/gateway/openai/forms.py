"""A form that passes through: its model and the amount of contents.

A sound to be transcribed or a picture to be edited comes as multipart/form-data (RFC 7578). The form is scanned part by
part, reading only heads and ends; in steps, because finding a boundary may take long. A field that is given by a file
is no field, and a model that is named twice is refused: engines differ in which counts.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.core.values.request import Contents
from penstock.gateway.openai.body import BadBody, Peek, Read
from penstock.gateway.openai.multipart import BadForm, boundary_of, parameters_of
from penstock.gateway.openai.scan import Span
from penstock.gateway.openai.splice import Spliced

PARTS_MAX = 1000
PART_HEADERS_BYTES_MAX = 4096
FIELD_BYTES_MAX = 4096  # of a field's value: a name, a number
_STEP_BYTES = 256 * 1024
_SOUNDS = "/v1/audio/"


def read_form(
    body: bytes, content_type: bytes, path: str, *, pooled: bool, field: str = "model"
) -> Generator[None, None, Read]:
    """Read a form, in steps. `pooled`: its answer is no text. `field`: names the model. Raises `BadBody`."""
    try:
        boundary = boundary_of(content_type)
    except BadForm as problem:
        raise BadBody(str(problem)) from None
    delimiter = b"--" + boundary
    at = yield from _find(body, delimiter, 0)
    if at < 0:
        raise BadBody("The multipart body does not hold its boundary.")
    model: str | None = None
    where: Span | None = None
    text_bytes = files = 0
    for _ in range(PARTS_MAX):
        head_from = at + len(delimiter)
        head_to = body.find(b"\r\n\r\n", head_from, head_from + PART_HEADERS_BYTES_MAX)
        if head_to < 0:
            break
        end = yield from _find(body, b"\r\n" + delimiter, head_to)
        if end < 0:
            raise BadBody("The multipart body breaks off.")
        value = head_to + 4, max(end, head_to + 4)
        parameters = parameters_of(body[head_from : head_to + 2])
        if b"filename" in parameters or b"filename*" in parameters:
            files += 1
        else:
            text_bytes += value[1] - value[0]
            if parameters.get(b"name") == field:
                if where is not None:
                    raise BadBody(f"The form names its `{field[:40]}` more than once.", field)
                model, where = _text(body, value, field), value
        at = end + 2
    else:
        raise BadBody(f"The multipart body has more than {PARTS_MAX} parts.")
    sounds = files if path.startswith(_SOUNDS) else 0
    held = Contents(text_bytes, sounds=sounds, pictures=files - sounds, answers=0 if pooled else 1)
    return Read(Peek(model=model, stream=False), Spliced(body, None, where), held)


def _text(body: bytes, where: Span, field: str) -> str:
    name = f"The form field `{field[:40]}`"
    if where[0] >= where[1]:
        raise BadBody(f"{name} is empty.", field)
    if where[1] - where[0] > FIELD_BYTES_MAX:
        raise BadBody(f"{name} is too long.", field)
    try:
        return str(body[where[0] : where[1]], "utf-8")
    except UnicodeDecodeError:
        raise BadBody(f"{name} is not valid UTF-8.", field) from None


def _find(body: bytes, wanted: bytes, at: int) -> Generator[None, None, int]:
    """Returns the position of some bytes, or -1."""
    while at < len(body):
        found = body.find(wanted, at, at + _STEP_BYTES + len(wanted))
        if found >= 0:
            return found
        at += _STEP_BYTES
        yield
    return -1
