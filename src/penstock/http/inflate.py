"""How is a gzip body unpacked without being flooded by it? In steps, and each piece is counted before it is kept.

A kilobyte may unpack to a megabyte, so there are three bounds: the size of one body, its size as a multiple of the
packed one, and the size of all bodies in memory together.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from io import BytesIO

RATIO_MAX = 100  # text packs to a tenth, the same sentence again and again to a fiftieth
RATIO_FREE_BYTES = 1024 * 1024  # up to this size the ratio does not count
_STEP_BYTES = 256 * 1024  # takes half a millisecond


class BadGzip(Exception):  # noqa: N818 - it says what it is
    """The body is not valid gzip. The text says why, and is shown to the caller."""


class InflatesTooFar(Exception):  # noqa: N818
    """The body unpacks to more than is allowed. The text names the limit."""


class TooMuchAtOnce(Exception):  # noqa: N818
    """This body and all others in memory together would be too many bytes."""


def inflate(body: bytes, bytes_max: int, hold: Callable[[int], bool]) -> Generator[None, None, bytes]:
    """Unpack a gzip body step by step: yields after each step, returns the whole content at the end.

    `hold` is asked with each piece's size before the piece is kept; it returns False when that is too much. Raises
    `BadGzip`, `InflatesTooFar` (over `bytes_max` or over the ratio) or `TooMuchAtOnce` (`hold` said no).
    """
    ratio_max = max(RATIO_FREE_BYTES, RATIO_MAX * len(body))
    inflater = zlib.decompressobj(wbits=31)
    whole, packed, at, size = BytesIO(), memoryview(body), 0, 0
    while not inflater.eof:
        data: bytes | memoryview = inflater.unconsumed_tail
        if not data:
            data = packed[at : at + _STEP_BYTES]
            at += len(data)
        try:
            piece = inflater.decompress(data, _STEP_BYTES)
        except zlib.error:
            raise BadGzip("The body is not valid gzip.") from None
        size += len(piece)
        if size > bytes_max:
            raise InflatesTooFar(f"The body unpacks to more than {bytes_max} bytes.")
        if size > ratio_max:
            raise InflatesTooFar(f"The body unpacks to more than {RATIO_MAX} times its size.")
        if not hold(len(piece)):
            raise TooMuchAtOnce
        whole.write(piece)
        if not piece and not data and not inflater.eof:
            raise BadGzip("The body is not one whole gzip member.")
        yield
    if inflater.unused_data or at < len(body):
        raise BadGzip("The body is not one whole gzip member.")
    return whole.getvalue()
