"""Reads a form that is too large to keep. A multipart/form-data body, read as its bytes come.

Small fields are kept, one file is passed on. Between two calls it keeps at most a boundary's length of the file, or the
part headers under way. Anything that is not such a form is a `BadForm`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

BOUNDARY_BYTES_MAX = 200  # RFC 2046 allows 70
HEADERS_BYTES_MAX = 8192  # of one part
FIELD_BYTES_MAX = 4096
FIELDS_MAX = 32
_BOUNDARY = re.compile(rb'boundary=(?:"([^"]+)"|([^;,\s]+))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:\s*form-data\s*;(.*)$", re.IGNORECASE | re.MULTILINE)
_PARAMETER = re.compile(rb';\s*(name|filename\*?)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)', re.IGNORECASE)


class BadForm(Exception):  # noqa: N818 - it says what it is
    """The body is a malformed form; the text is for the client."""


def boundary_of(content_type: bytes) -> bytes:
    """Returns the boundary between the parts of a form. Raises `BadForm`."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith(b"multipart/form-data") or found is None:
        raise BadForm("A form is expected: `Content-Type: multipart/form-data; boundary=…`.")
    boundary: bytes = found[1] or found[2]
    if len(boundary) > BOUNDARY_BYTES_MAX:
        raise BadForm("The form's boundary is too long.")
    return boundary


def parameters_of(headers: bytes) -> dict[bytes, str]:
    """Returns a part's attributes from its head: `name`, and `filename` if it is a file.

    Empty if it is no part of a form.
    """
    found = _DISPOSITION.search(headers.replace(b"\r\n", b"\n"))
    if found is None:
        return {}
    return {name.lower(): _unquoted(value) for name, value in _PARAMETER.findall(b";" + found[1])}


class Form:
    """One form on its way in."""

    def __init__(self, content_type: bytes, file_field: str, on_file: Callable[[bytes], None]) -> None:
        self._mark = b"\r\n--" + boundary_of(content_type)
        self._file_field = file_field
        self._on_file = on_file
        self._data = bytearray(b"\r\n")  # the first boundary may have no line before it
        self._step = Form._preamble  # not bound: a form in a cycle would stay until somebody looks for garbage
        self._part: str | None = None  # the field under way; None: one to be left out
        self.fields: dict[str, str] = {}
        self.filename: str | None = None  #: of the file, once it has begun
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the form. Raises `BadForm`."""
        self._data += data
        while self._step(self):
            pass

    # Each step goes as far as it can, and returns whether another one may continue.

    def _preamble(self) -> bool:
        found = self._data.find(self._mark)
        if found < 0:
            del self._data[: max(0, len(self._data) - len(self._mark))]
            return False
        del self._data[: found + len(self._mark)]
        self._step = Form._after_mark
        return True

    def _after_mark(self) -> bool:
        if len(self._data) < 2:
            return False
        if self._data.startswith(b"--"):
            self._step = Form._epilogue
        elif self._data.startswith(b"\r\n"):
            self._step = Form._headers
        else:
            raise BadForm("The form's boundary is followed by unexpected bytes.")
        return True

    def _headers(self) -> bool:
        """They begin with the line break of the boundary, which stays, because a part may have none."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or end > HEADERS_BYTES_MAX:
            if len(self._data) > HEADERS_BYTES_MAX:
                raise BadForm("A part of the form has too long headers.")
            return False
        self._open(bytes(self._data[2:end]))
        del self._data[: end + 4]
        self._step = Form._content
        return True

    def _open(self, headers: bytes) -> None:
        values = parameters_of(headers)
        if not values:
            raise BadForm("A part of the form has no `Content-Disposition: form-data`.")
        name = values.get(b"name", "")
        if name == self._file_field and self.filename is None:
            self._part, self.filename = name, values.get(b"filename") or ""
        elif name == self._file_field or name in self.fields:
            raise BadForm(f"The form's field `{name[:100]}` is given more than once.")
        elif len(self.fields) >= FIELDS_MAX:
            raise BadForm("The form has too many fields.")
        else:
            self._part = name
            self.fields[name] = ""
            self._kept = b""

    def _content(self) -> bool:
        found = self._data.find(self._mark)
        sure = found if found >= 0 else max(0, len(self._data) - len(self._mark) + 1)
        if sure:
            data = bytes(self._data[:sure])
            del self._data[:sure]
            self._take(data)
        if found < 0:
            return False
        del self._data[: len(self._mark)]
        self._step = Form._after_mark
        return True

    def _take(self, data: bytes) -> None:
        if self._part == self._file_field:
            self._on_file(data)
            return
        assert self._part is not None
        self._kept += data
        if len(self._kept) > FIELD_BYTES_MAX:
            raise BadForm(f"The form's field `{self._part[:100]}` is too long.")
        self.fields[self._part] = self._kept.decode("utf-8", "replace")

    def _epilogue(self) -> bool:
        self.ended = True
        self._data.clear()
        return False


def _unquoted(value: bytes) -> str:
    if value.startswith(b'"'):
        value = re.sub(rb"\\(.)", rb"\1", value[1:-1])
    return value.strip().decode("utf-8", "replace")
