"""How do bytes become one request at a time, and no more of it than we allow?

llhttp (through httptools) judges every byte; this reader bounds what it gets. A head, and a chunked body, always
end in CRLF CRLF, and a body of known length ends by count: so the parser is fed only up to the next place where a
message can end, and never sees the next request before its turn. That gives in-order pipelining without a queue
of half-read requests, and no scan of our own decides what a request is.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

import httptools

from penstock.http.server.limits import Refusal, ServerLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.http.server.exchange import Exchange, Header

_HASH: Final = 0x23  # as a number: `bytes in bytes` tries that first, and fails slowly
_COPIED_BYTES_MAX: Final = 32 * 1024  # below, a copy costs less than a view
_BLANK_LINE: Final = b"\r\n\r\n"
_VERSION_BYTES: Final = 16  # of a request line's end, more than ` HTTP/1.1` and its line break
_FRAMING_PER_BODY_BYTE: Final = 8  # chunks of one byte cost 6 on the wire
_PIECES_MAX: Final = 64  # of a body, kept as they came: a join copies less, but a body that drips weighs more
_PIECES_BYTES_MAX: Final = 1024 * 1024  # kept so: to join more at a time would hold up others


class RefusedError(Exception):
    """The request breaks a bound or the protocol."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.refusal = refusal
        self.detail = detail


class RequestReader:
    """The request being read on one connection.

    After each `feed`, either `head_done` is set (call `read_head`), or `body_done`, or more bytes are needed.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_chunked",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_in_line",
        "_is_http",
        "_limits",
        "_line",
        "_parser",
        "_pieces",
        "_pieces_bytes",
        "_refused",
        "_sink",
        "_tail",
        "_upgrade",
        "_url",
        "_wire_bytes",
        "body_bytes_max",
        "body_done",
        "body_left_bytes",
        "head_done",
        "keep_alive",
    )

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._refused: RefusedError | None = None
        self._tail = b""  # the end of the last read, where a blank line may have begun
        self._in_head = True
        self._in_line = True  # the request line is not whole yet
        self._line = b""  # what is known of its end
        self._is_http = False
        self._head_bytes = 0
        self._url = b""
        self._headers: list[Header] = []
        self._upgrade = False
        self._chunked = False
        self._body: BytesIO | None = None  # what came before the pieces, where they were too many: it grows in place
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._body_bytes = 0
        self._sink: Callable[[bytes], None] | None = None  # takes this request's body as it comes
        self._wire_bytes = 0  # of a chunked body with its framing
        self.body_left_bytes = 0  # of a body of known length
        self.body_bytes_max = limits.body_bytes_max
        self.head_done = False
        self.body_done = False
        self.keep_alive = True

    def close(self) -> None:
        """Let go of the parser, which holds our bound methods: a cycle."""
        self._parser = None
        self._body = None
        self._pieces.clear()
        self._sink = None

    def feed(self, data: bytes, at: int) -> int:
        """Read on from `at`; returns where it stopped. Raises RefusedError."""
        end = self._feed_end(data, at)
        size = end - at
        if self._in_head:
            if self._in_line:
                self._read_line(data, at, end)
            self._head_bytes += size
            if self._head_bytes > self._limits.header_bytes_max:
                raise RefusedError(Refusal.HEADER_TOO_LARGE, "the headers are too large")
        elif self._chunked:
            self._wire_bytes += size
        else:
            self.body_left_bytes -= size
        try:
            assert self._parser is not None
            if size == len(data):
                self._parser.feed_data(data)
            else:
                self._parser.feed_data(data[at:end] if size < _COPIED_BYTES_MAX else memoryview(data)[at:end])
        except httptools.HttpParserUpgrade:
            self._upgrade = True
        except httptools.HttpParserError as error:
            detail = f"not valid HTTP/1.1: {error}"
            raise self._refused or RefusedError(Refusal.BAD_REQUEST, detail) from None
        if self._chunked and not self._in_head:
            framing_bytes = self._wire_bytes - _FRAMING_PER_BODY_BYTE * self._body_bytes
            if framing_bytes > self._limits.header_bytes_max:
                raise RefusedError(Refusal.BAD_REQUEST, "too much chunk framing for the body it carries")
        return end

    def _read_line(self, data: bytes, at: int, end: int) -> None:
        """Whether the request line names HTTP. The parser takes RTSP and others for it, and does not tell."""
        stop = data.find(b"\n", at, end)
        while stop >= 0:
            line = (self._line + data[max(at, stop - _VERSION_BYTES) : stop]).rstrip()
            at, self._line = stop + 1, b""
            if line:
                self._in_line = False
                self._is_http = line[-9:].startswith(b" HTTP/")
                return
            stop = data.find(b"\n", at, end)
        self._line = (self._line + data[max(at, end - _VERSION_BYTES) : end])[-_VERSION_BYTES:]

    def remember_tail(self, data: bytes) -> None:
        """A read ended in the middle of a request."""
        self._tail = (self._tail + data[-3:])[-3:]

    def _feed_end(self, data: bytes, at: int) -> int:
        """The next place where a head or a body can end, else the end of the data. One too early does no harm."""
        if not self._in_head and not self._chunked:
            return min(len(data), at + self.body_left_bytes)
        tail = self._tail
        if tail:
            split = (tail + data[at : at + 3]).find(_BLANK_LINE)
            if split >= 0:
                self._tail = b""
                return at + split + 4 - len(tail)
        found = data.find(_BLANK_LINE, at)
        if found < 0:
            return len(data)  # the tail stays: these bytes may be too few to hold the next one
        self._tail = b""
        return found + 4

    def read_head(self, exchange: Exchange) -> None:
        """Fill in what the head says, and make ready for the body, if there is one. Raises RefusedError."""
        parser = self._parser
        assert parser is not None
        headers, self._headers = self._headers, []
        url, self._url = self._url, b""
        self.head_done = self.body_done = False
        self._head_bytes = self._body_bytes = self._wire_bytes = 0
        self.body_bytes_max = self._limits.body_bytes_max
        if len(headers) > self._limits.header_count_max:
            raise RefusedError(Refusal.HEADER_TOO_LARGE, "too many headers")
        version = parser.get_http_version() if self._is_http else ""
        self._in_line, self._is_http, self._line = True, False, b""
        lookup = {name.lower(): value for name, value in reversed(headers)}  # the first of a name counts
        coding = lookup.get(b"transfer-encoding")
        wrong = _fault(version, headers, lookup, coding)
        if wrong is not None:
            raise RefusedError(Refusal.BAD_REQUEST, wrong)
        path, _, query = url.decode("ascii").partition("?")
        if not path.startswith("/"):
            path = _path_of_absolute(path)
        method = parser.get_method()
        if not path or _HASH in url or method == b"CONNECT":
            raise RefusedError(Refusal.BAD_REQUEST, "the request target is not a path")
        exchange.method = method.decode()
        exchange.target_path = path
        exchange.query = query
        exchange.headers = headers
        exchange.lookup = lookup
        exchange.http_version = version
        self._chunked = coding is not None
        self.body_left_bytes = 0 if coding is not None else int(lookup.get(b"content-length", 0))
        self._in_head = not self._chunked and self.body_left_bytes == 0
        if self._upgrade:
            self._parse_on_after_upgrade()

    @property
    def body_bytes(self) -> int:
        """So much of the body is kept here."""
        return 0 if self._sink is not None else self._body_bytes

    def pour(self, sink: Callable[[bytes], None]) -> None:
        """Hand this request's body over piece by piece instead of keeping it."""
        self._sink = sink

    @property
    def expects_body(self) -> bool:
        """After `read_head`: a body follows."""
        return not self._in_head

    def take_body(self) -> bytes:
        """The whole body; the next request's head is read from here on."""
        pieces = self._pieces
        whole, self._body = self._body, None
        if whole is None:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        else:
            whole.write(b"".join(pieces))
            body = whole.getvalue()  # no copy
        pieces.clear()
        self._pieces_bytes = 0
        self._sink = None
        self._in_head = True
        self.body_done = False
        return body

    def _parse_on_after_upgrade(self) -> None:
        """An upgrade that is ignored (h2c) may leave a body, which llhttp no longer reads: give it a new start."""
        self._upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        if not self._in_head:
            framing = b"Transfer-Encoding: chunked" if self._chunked else b"Content-Length: %d" % self.body_left_bytes
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    # ---- what the parser tells us

    def on_url(self, url: bytes) -> None:
        assert not self.head_done, "fed past the end of a head"
        assert not self.body_done, "fed past the end of a request"
        if self._in_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer
            self._headers.append((name, value.rstrip()))

    def on_headers_complete(self) -> None:
        if self._in_head:
            self.head_done = True
            assert self._parser is not None
            self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self.body_bytes_max:
            # The parser wraps what a callback raises, so it is kept as well.
            self._refused = RefusedError(Refusal.REQUEST_TOO_LARGE, "the body is too large")
            raise self._refused
        if self._sink is not None:
            self._sink(data)
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if len(self._pieces) == _PIECES_MAX or self._pieces_bytes > _PIECES_BYTES_MAX:
            if self._body is None:
                self._body = BytesIO()
            self._body.write(b"".join(self._pieces))
            self._pieces.clear()
            self._pieces_bytes = 0

    def on_message_complete(self) -> None:
        self.body_done = True


def _fault(version: str, headers: list[Header], lookup: dict[bytes, bytes], coding: bytes | None) -> str | None:
    """What is wrong with a head that llhttp lets pass."""
    if version not in {"1.1", "1.0"}:
        return "only HTTP/1.1 and HTTP/1.0 are spoken here"
    if version == "1.1" and b"host" not in lookup:
        return "the Host header is missing"
    if len(lookup) != len(headers) and sum(name.lower() == b"host" for name, _ in headers) > 1:
        return "more than one Host header"
    if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
        return "the only transfer coding is chunked, and only in HTTP/1.1"
    return None


def _path_of_absolute(target: str) -> str:
    """The path of `http://host/path`; empty for any other form that is not a path."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in {"http", "https"}:
        return ""
    authority, _, path = rest.partition("/")
    return "/" + path if authority else ""
