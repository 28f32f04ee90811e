"""How is a packed body unpacked without being flooded by it? In steps, and each piece is counted before it is kept.

A kilobyte may unpack to a megabyte, so there are four bounds: the size of one body, its size as a multiple of the
packed one, the size of all bodies in memory together, and of those being unpacked (`Unpacking`): a body that turns out
to be nothing is gone before the next bomb is as large. gzip and deflate are unpacked, which the standard library
can do; any other coding is refused with the names of these (RFC 9110, 15.5.16).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from io import BytesIO

TAKEN = b"gzip, deflate"  # as in `accept-encoding`
RATIO_MAX = 100  # text packs to a tenth, the same sentence again and again to a fiftieth
RATIO_FREE_BYTES = 1024 * 1024  # up to this size the ratio does not count
MEMBERS_MAX = 1000  # of one gzip body: a 64 MiB body in bgzip's blocks of 64 KiB
_STEP_BYTES = 256 * 1024  # takes half a millisecond
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's `wbits`


class BadPacking(Exception):  # noqa: N818 - it says what it is
    """The body does not match its `content-encoding`. The text is shown to the client."""


class UnknownPacking(Exception):  # noqa: N818
    """The body is in a coding that is not unpacked here. The text is shown to the client."""


class InflatesTooFar(Exception):  # noqa: N818
    """The body unpacks to more than is allowed. The text names the limit."""


class TooMuchAtOnce(Exception):  # noqa: N818
    """This body and all others in memory together would be too many bytes."""


def coding_of(header: bytes) -> str:
    """Returns the `content-encoding`, `gzip` or `deflate`; empty if the body is not packed.

    Raises `UnknownPacking`.
    """
    codings = [coding for part in header.split(b",") if (coding := part.strip().lower()) not in (b"", b"identity")]
    if not codings:
        return ""
    if len(codings) > 1:
        raise UnknownPacking(f"The body is packed several times; once is taken ({TAKEN.decode()}).")
    if codings[0] in (b"gzip", b"x-gzip"):
        return "gzip"
    if codings[0] == b"deflate":
        return "deflate"
    raise UnknownPacking(f"The body's content-encoding is not supported; these are: {TAKEN.decode()}.")


def inflate(body: bytes, coding: str, bytes_max: int, hold: Callable[[int], bool]) -> Generator[None, None, bytes]:
    """Unpack a body step by step: yields after each step, returns the whole content at the end.

    `hold` is asked with each piece's size before the piece is kept; it returns False when that is too much. Raises
    `BadPacking`, `InflatesTooFar` (over `bytes_max` or over the ratio) or `TooMuchAtOnce` (`hold` refused).
    """
    ratio_max = max(RATIO_FREE_BYTES, RATIO_MAX * len(body))
    wbits = _GZIP if coding == "gzip" else _deflate_bits(body)
    inflater = zlib.decompressobj(wbits)
    whole, packed, at, size, members = BytesIO(), memoryview(body), 0, 0, 1
    while True:
        if inflater.eof:
            left = inflater.unused_data or packed[at:]
            if not left or (left[0] == 0 and _is_padding(left, packed[at:])):
                return whole.getvalue()
            if wbits != _GZIP or members >= MEMBERS_MAX:
                raise BadPacking(f"The body is not valid {coding}: bytes follow its end.")
            members += 1
            at -= len(inflater.unused_data)
            inflater = zlib.decompressobj(wbits)
        data: bytes | memoryview = inflater.unconsumed_tail
        if not data:
            data = packed[at : at + _STEP_BYTES]
            at += len(data)
        try:
            piece = inflater.decompress(data, _STEP_BYTES)
        except zlib.error:
            raise BadPacking(f"The body is not valid {coding}.") from None
        size += len(piece)
        if size > bytes_max:
            raise InflatesTooFar(f"The body unpacks to more than {bytes_max} bytes.")
        if size > ratio_max:
            raise InflatesTooFar(f"The body unpacks to more than {RATIO_MAX} times its size.")
        if not hold(len(piece)):
            raise TooMuchAtOnce
        whole.write(piece)
        if not piece and not data and not inflater.eof:
            raise BadPacking(f"The body is not valid {coding}: it is cut short.")
        yield


def _is_padding(*pieces: bytes | memoryview) -> bool:
    """Whether there are only zeros, with which some writers fill their last block; gzip itself ignores them."""
    return not any(bytes(piece).strip(b"\0") for piece in pieces)


class Unpacking:
    """The room of bodies that are being unpacked, or were and are being read. All of them share `bytes_max`.

    A body that finds no room waits, except for the oldest: one always goes on, up to the size that a body may have. So
    they take at most that size more than `bytes_max`.
    """

    __slots__ = ("_under_way", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  #: unpacked so far, of all
        self._under_way: dict[int, int] = {}  # by place, the oldest first: its bytes

    def enter(self) -> int:
        """Returns a new body's place. `leave` must follow."""
        place = next(reversed(self._under_way), 0) + 1
        self._under_way[place] = 0
        return place

    def leave(self, place: int) -> None:
        """The body is read, refused or gone: others may take its room."""
        self.bytes -= self._under_way.pop(place)

    def inflate(
        self, place: int, body: bytes, coding: str, bytes_max: int, hold: Callable[[int], bool]
    ) -> Generator[None, None, bytes]:
        """`inflate`, with waits. Raises as it does."""

        def count(size: int) -> bool:
            self.bytes += size
            self._under_way[place] += size
            return hold(size)

        steps = inflate(body, coding, bytes_max, count)
        while True:
            if self.bytes + _STEP_BYTES <= self.bytes_max or next(iter(self._under_way)) == place:
                try:
                    next(steps)
                except StopIteration as end:
                    whole: bytes = end.value
                    return whole
            yield


def _deflate_bits(body: bytes) -> int:
    """`deflate` is zlib's format by the standard; some clients leave its two bytes of header out (RFC 1950, 2.2)."""
    zlibs = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _ZLIB if zlibs else _RAW


class Inflater:
    """Unpacks an answer as it passes. The unpacked size of one read has the bound of a body."""

    __slots__ = ("_begun", "_coding", "_first", "_inflater", "_members")

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._first = b""  # bytes before the kind of `deflate` is known
        self._begun = False
        self._members = 1
        self._inflater = zlib.decompressobj(_GZIP)

    def take(self, data: bytes) -> bytes:
        """Unpack the next bytes. Raises `BadPacking` or `InflatesTooFar`."""
        if not self._begun:
            data = self._first + data
            if len(data) < 2:
                self._first = data
                return b""
            self._begun = True
            if self._coding == "deflate":
                self._inflater = zlib.decompressobj(_deflate_bits(data))
        left = RATIO_FREE_BYTES + RATIO_MAX * len(data)
        pieces = []
        while data:
            if self._inflater.eof:
                if self._coding != "gzip" or self._members >= MEMBERS_MAX:
                    raise BadPacking(f"The body is not valid {self._coding}: bytes follow its end.")
                self._members += 1
                self._inflater = zlib.decompressobj(_GZIP)
            try:
                piece = self._inflater.decompress(data, left)
            except zlib.error:
                raise BadPacking(f"The body is not valid {self._coding}.") from None
            left -= len(piece)
            if left <= 0:
                raise InflatesTooFar(f"The body unpacks to more than {RATIO_MAX} times its size.")
            pieces.append(piece)
            data = self._inflater.unused_data
        return b"".join(pieces)

    def again(self) -> Inflater:
        """Returns a new one for the same coding."""
        return Inflater(self._coding)

    @property
    def breaks_off(self) -> bool:
        """True if there has to be more of it."""
        return bool(self._first) if not self._begun else not self._inflater.eof
