"""How much is in a gzip body? Unpacked in steps, and each piece counted before it is kept.

A kilobyte may hold a megabyte, so three things bound it: what one body may be, what it may be beside its packed size,
and what all bodies in memory may be together.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from io import BytesIO

RATIO_MAX = 100  # text packs to a tenth, the same sentence again and again to a fiftieth
RATIO_FREE_BYTES = 1024 * 1024  # so much may come of however little
_STEP_BYTES = 256 * 1024  # half a millisecond


class BadGzip(Exception):  # noqa: N818 - it says what it is
    """The body is not what its encoding says; the text says why, to the caller."""


class InflatesTooFar(Exception):  # noqa: N818
    """There is more in it than a body may be; the text says how much may be."""


class TooMuchAtOnce(Exception):  # noqa: N818
    """All bodies together are more than are kept."""


def inflate(body: bytes, bytes_max: int, hold: Callable[[int], bool]) -> Generator[None, None, bytes]:
    """What is in a gzip body. `hold` counts bytes before they are kept; False: they are too many."""
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
