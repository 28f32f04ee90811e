"""Turns bytes into single, bounded requests.

llhttp (through httptools) judges every byte; this reader bounds the parser's input. A head, and a chunked body, always
end in CRLF CRLF, and a body of known length ends by count. So the parser is fed only up to the next possible end of a
message, and never sees the next request before its turn. That gives in-order pipelining without a queue of half-read
requests, and our scan never decides what a request is.

Most requests of a connection have the head of the one before, except for the length of the body. The parser judges its
bytes again, but it is not taken apart again (`KnownHead`): its parts are the same, and so is what the handler found out
from them, which it keeps as the head's `note`. Bytes are compared, no meanings. The first head of a connection is not
kept, because many connections bring no other. Names of headers are shared by all requests.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

import httptools

from penstock.http.server.limits import Refusal, ServerLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.http.server.exchange import Header
    from penstock.http.server.socket_exchange import SocketExchange

_HASH: Final = 0x23  # a number, because `bytes in bytes` tries a number first, and fails slowly
_COPIED_BYTES_MAX: Final = 32 * 1024  # below this, a copy costs less than a view
_BLANK_LINE: Final = b"\r\n\r\n"
_VERSION_BYTES: Final = 16  # kept of a request line's end: more than ` HTTP/1.1` and its line break
_FRAMING_PER_BODY_BYTE: Final = 8  # a chunk of one byte costs 6 bytes on the wire
_KNOWN_BYTES_MAX: Final = 4096  # of a head that is known again: each idle connection keeps one
_NAMES_MAX: Final = 1024  # shared names of headers: all clients together send some hundred different ones
_NAME_BYTES_MAX: Final = 64  # of a shared one
_LENGTH: Final = b"content-length"
_LENGTH_LINE: Final = b"\r\ncontent-length:"
_PIECES_MAX: Final = 64  # pieces of a body, kept as they came: joining late copies less, but small pieces weigh more
_PIECES_BYTES_MAX: Final = 1024 * 1024  # in those pieces: joining more in one go would hold up other connections


class RefusedError(Exception):
    """The request breaks a bound or the protocol: `refusal` names which, `detail` is a sentence for people."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.refusal = refusal
        self.detail = detail


class KnownHead:
    """A head that its connection may bring again, and the handler's note about it."""

    __slots__ = (
        "_after", "_before", "_headers", "_http_version", "_length_at", "_lookup", "_method", "_path", "_query", "note",
    )  # fmt: skip

    def __init__(self, raw: bytes, exchange: SocketExchange) -> None:
        self._method = exchange.method
        self._path = exchange.target_path
        self._query = exchange.query
        self._http_version = exchange.http_version
        self._headers = headers = exchange.headers
        self._lookup = lookup = exchange.lookup
        self.note: object = None  #: the handler's, about all requests with this head
        # The bytes before and after the digits of the body's length, and the place of that header.
        self._before, self._after, self._length_at = raw, b"", -1
        at = raw.lower().find(_LENGTH_LINE)
        if at >= 0 and _LENGTH in lookup:
            value = lookup[_LENGTH]
            begin = raw.find(value, at + len(_LENGTH_LINE))
            self._before, self._after = raw[:begin], raw[begin + len(value) :]
            for place, (name, _) in enumerate(headers):
                if name.lower() == _LENGTH:
                    self._length_at = place

    def length_in(self, raw: bytes) -> bytes | None:
        """Returns the body's length in a head that is the same except for it, b"" if it has none; None: it differs."""
        if self._length_at < 0:
            return b"" if raw == self._before else None
        length = raw[len(self._before) : len(raw) - len(self._after)]
        if length.isdigit() and raw.startswith(self._before) and raw.endswith(self._after):
            return length
        return None

    def give(self, exchange: SocketExchange, length: bytes) -> None:
        """Fill in `exchange` with this head and the `length` of its body."""
        exchange.head = self
        exchange.method = self._method
        exchange.target_path = self._path
        exchange.query = self._query
        exchange.http_version = self._http_version
        exchange.headers = self._headers
        exchange.lookup = self._lookup
        if length and length != self._lookup[_LENGTH]:
            exchange.headers = headers = self._headers.copy()
            headers[self._length_at] = (headers[self._length_at][0], length)
            exchange.lookup = lookup = self._lookup.copy()
            lookup[_LENGTH] = length


class RequestReader:
    """Reads the requests of one connection, one after another.

    After each `feed`, either `head_done` is True (call `read_head` next), or `body_done` is (call `take_body`), or more
    bytes are needed.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_chunked",
        "_head",
        "_head_bytes",
        "_headers",
        "_in_line",
        "_is_http",
        "_is_kept",
        "_length",
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
        "_whole",
        "_wire_bytes",
        "body_bytes_max",
        "body_done",
        "body_left_bytes",
        "head_done",
        "in_head",
        "keep_alive",
    )

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._refused: RefusedError | None = None
        self._tail = b""  # the end of the last read, which may begin a blank line
        self.in_head = True  #: of a request; after `read_head`: no body follows
        self._in_line = True  # the request line is not whole yet
        self._line = b""  # the last bytes of it that were read
        self._is_http = False  # the request line names HTTP
        self._head_bytes = 0
        self._whole = b""  # the head, if it came in one piece
        self._head: KnownHead | None = None  # of the request before
        self._is_kept = False  # the connection has brought a request before
        self._length: bytes | None = None  # of the body, if the head is that one again
        self._url = b""
        self._headers: list[Header] = []
        self._upgrade = False
        self._chunked = False
        self._body: BytesIO | None = None  # data before `_pieces`, once they were too many: it grows in place
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._body_bytes = 0
        self._sink: Callable[[bytes], None] | None = None  # takes this request's body as it comes
        self._wire_bytes = 0  # of a chunked body, framing included
        self.body_left_bytes = 0  # still to come of a body of known length
        self.body_bytes_max = limits.body_bytes_max
        self.head_done = False
        self.body_done = False
        self.keep_alive = True

    def close(self) -> None:
        """Release the parser (a reference cycle through our bound methods) and the body read so far."""
        self._parser = None
        self._head = None
        self._body = None
        self._pieces.clear()
        self._sink = None

    def feed(self, data: bytes, at: int) -> int:
        """Read on from `data[at:]`. Returns the offset of the first byte that was not read.

        Raises RefusedError if the request breaks a bound, or is not HTTP/1.1.
        """
        in_head = self.in_head
        counted = not in_head and not self._chunked
        end = min(len(data), at + self.body_left_bytes) if counted else self._feed_end(data, at)
        size = end - at
        whole = size == len(data)
        piece = data if whole else data[at:end] if size < _COPIED_BYTES_MAX else memoryview(data)[at:end]
        if in_head:
            if self._head_bytes or size > _KNOWN_BYTES_MAX or not isinstance(piece, bytes):
                self._whole = b""
            else:
                self._whole = piece
                self._length = None if self._head is None else self._head.length_in(piece)
            if self._in_line and self._length is None:
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
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._upgrade = True
        except httptools.HttpParserError as error:
            detail = f"not valid HTTP/1.1: {error}"
            raise self._refused or RefusedError(Refusal.BAD_REQUEST, detail) from None
        if self._chunked and not in_head:
            framing_bytes = self._wire_bytes - _FRAMING_PER_BODY_BYTE * self._body_bytes
            if framing_bytes > self._limits.header_bytes_max:
                raise RefusedError(Refusal.BAD_REQUEST, "too much chunk framing for the body it carries")
        return end

    def _read_line(self, data: bytes, at: int, end: int) -> None:
        """Find out whether the request line names HTTP: the parser accepts RTSP and others without telling."""
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
        """Remember the end of `data`, a read that ended in the middle of a request: a blank line may have begun."""
        self._tail = (self._tail + data[-3:])[-3:]

    def _feed_end(self, data: bytes, at: int) -> int:
        """Returns the next offset at which a head or a chunked body can end, or the end of `data`.

        Stopping too early does no harm.
        """
        tail = self._tail
        if tail:
            split = (tail + data[at : at + 3]).find(_BLANK_LINE)
            if split >= 0:
                self._tail = b""
                return at + split + 4 - len(tail)
        found = data.find(_BLANK_LINE, at)
        if found < 0:
            return len(data)  # the old tail stays: these bytes may be too few to make a new one
        self._tail = b""
        return found + 4

    def read_head(self, exchange: SocketExchange) -> None:
        """Fill in `exchange` from the head, and make ready for the body, if there is one.

        Raises RefusedError if the head is not acceptable, though llhttp let it pass.
        """
        parser = self._parser
        assert parser is not None
        url, self._url = self._url, b""
        self.head_done = self.body_done = False
        self._head_bytes = self._body_bytes = self._wire_bytes = 0
        self.body_bytes_max = self._limits.body_bytes_max
        if self._length is not None:
            assert self._head is not None
            self._head.give(exchange, self._length)
            self._length = None
            self._expect_body(exchange.lookup)
            return
        headers, self._headers = self._headers, []
        if len(headers) > self._limits.header_count_max:
            raise RefusedError(Refusal.HEADER_TOO_LARGE, "too many headers")
        version = parser.get_http_version() if self._is_http else ""
        self._in_line, self._is_http, self._line = True, False, b""
        lookup: dict[bytes, bytes] = {}
        for name, value in reversed(headers):  # the first of a name counts
            lower = name.lower()
            lookup[_NAMES.get(lower) or _shared(lower)] = value
        coding = lookup.get(b"transfer-encoding")
        wrong = _fault(version, headers, lookup, coding)
        if wrong is not None:
            raise RefusedError(Refusal.BAD_REQUEST, wrong)
        path, _, query = url.decode("ascii").partition("?")
        method = parser.get_method()
        if path == "*" and method == b"OPTIONS":  # asks for the whole server (RFC 9112, 3.2.4), as health checks do
            path = "/"
        elif not path.startswith("/"):
            path = _path_of_absolute(path)
        if not path or _HASH in url or method == b"CONNECT":
            raise RefusedError(Refusal.BAD_REQUEST, "the request target is not a path")
        exchange.method = method.decode()
        exchange.target_path = path
        exchange.query = query
        exchange.http_version = version
        exchange.headers = headers
        exchange.lookup = lookup
        known = self._is_kept and self._whole and not self._upgrade
        self._head = exchange.head = KnownHead(self._whole, exchange) if known else None
        self._is_kept, self._whole = True, b""
        self._expect_body(lookup)
        if self._upgrade:
            self._parse_on_after_upgrade()

    def _expect_body(self, lookup: dict[bytes, bytes]) -> None:
        self._chunked = b"transfer-encoding" in lookup
        self.body_left_bytes = 0 if self._chunked else int(lookup.get(b"content-length", 0))
        self.in_head = not self._chunked and self.body_left_bytes == 0

    @property
    def body_bytes(self) -> int:
        """How many bytes of the body are kept here; 0 if a sink takes them."""
        return 0 if self._sink is not None else self._body_bytes

    def pour(self, sink: Callable[[bytes], None]) -> None:
        """Hand the pieces of this request's body to `sink` as they come, instead of keeping them."""
        self._sink = sink

    def take_body(self) -> bytes:
        """Returns the whole body, empty if there was none or a sink took it. The next `feed` reads the next head."""
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
        self.in_head = True
        self.body_done = False
        return body

    def _parse_on_after_upgrade(self) -> None:
        """Start a new parser after an upgrade that we ignore (h2c): a body may follow, and the old one stops there."""
        self._upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        if not self.in_head:
            framing = b"Transfer-Encoding: chunked" if self._chunked else b"Content-Length: %d" % self.body_left_bytes
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    # ---- from the parser

    def on_url(self, url: bytes) -> None:
        assert not self.head_done, "fed past the end of a head"
        assert not self.body_done, "fed past the end of a request"
        if self.in_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head and self._length is None:  # otherwise it is a trailer, or known
            self._headers.append((_NAMES.get(name) or _shared(name), value.rstrip()))

    def on_headers_complete(self) -> None:
        if self.in_head:
            self.head_done = True
            assert self._parser is not None
            self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self.body_bytes_max:
            # The parser wraps what a callback raises, so we keep the error itself as well.
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


def _shared(name: bytes) -> bytes:
    """Returns the `name` of a header, which is shared from now on."""
    if len(name) <= _NAME_BYTES_MAX:
        if len(_NAMES) >= _NAMES_MAX:
            _NAMES.clear()  # somebody invents names: the usual ones come back at once
        _NAMES[name] = name
    return name


_NAMES: Final[dict[bytes, bytes]] = {}  # by themselves


def _fault(version: str, headers: list[Header], lookup: dict[bytes, bytes], coding: bytes | None) -> str | None:
    """Returns the problem of a head that llhttp accepted, or None."""
    if version not in {"1.1", "1.0"}:
        return "only HTTP/1.1 and HTTP/1.0 are supported"
    if version == "1.1" and b"host" not in lookup:
        return "the Host header is missing"
    if len(lookup) != len(headers) and sum(name.lower() == b"host" for name, _ in headers) > 1:
        return "more than one Host header"
    if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
        return "the only transfer coding is chunked, and only in HTTP/1.1"
    return None


def _path_of_absolute(target: str) -> str:
    """Returns the path of a target like `http://host/path`; empty for any other `target`."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in {"http", "https"}:
        return ""
    authority, _, path = rest.partition("/")
    return "/" + path if authority else ""
