"""What is the same in the next request of a connection?

Clients that ask again send the head of the request before, except for the length of the body. Then its parts are the
same, and so is what the handler found out from them: it keeps that as the head's `note`. Bytes are compared, no
meanings; whether they are HTTP is the parser's to judge, every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.http.server.exchange import Header
    from penstock.http.server.socket_exchange import SocketExchange

_LENGTH: Final = b"content-length"
_LENGTH_LINE: Final = b"\r\ncontent-length:"


class KnownHead:
    """A head that its connection may bring again, and the handler's note about it."""

    __slots__ = (
        "_after", "_before", "_headers", "_http_version", "_length_at", "_lookup", "_method", "_path", "_query", "note",
    )  # fmt: skip

    def __init__(
        self,
        raw: bytes,
        method: str,
        path: str,
        query: str,
        *,
        http_version: str,
        headers: list[Header],
        lookup: dict[bytes, bytes],
    ) -> None:
        self._method = method
        self._path = path
        self._query = query
        self._http_version = http_version
        self._headers = headers
        self._lookup = lookup
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
