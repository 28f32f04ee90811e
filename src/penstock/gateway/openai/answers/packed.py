"""How is a packed answer (gzip, deflate) read?

A packed stream is unpacked and passes unpacked, because events are added to it and taken out. Any other packed answer
passes as it came, and a copy is unpacked to read its usage.
"""

from __future__ import annotations

import logging

from penstock.http.client.call import Sink
from penstock.http.client.values import UpstreamError, UpstreamErrorKind
from penstock.http.inflate import BadPacking, Inflater, InflatesTooFar, UnknownPacking, coding_of

logger = logging.getLogger(__name__)


class Packed:
    """One packed answer."""

    __slots__ = ("_coding", "_inflater", "passes")

    def __init__(self, coding: str, *, passes: bool) -> None:
        self._coding = coding  # empty: unknown here, so nothing of it is read
        self._inflater = Inflater(coding)
        self.passes = passes  #: as it came, packed

    @property
    def opaque(self) -> bool:
        """True if nothing of it can be read."""
        return not self._coding

    def ends(self, sink: Sink) -> bool:
        """Give `sink` what was kept back, or an error if a stream has ended too early. Returns False then."""
        if self.passes or not self._inflater.breaks_off:
            return True
        sink.on_error(UpstreamError(UpstreamErrorKind.BROKEN, "a compressed stream that breaks off"))
        return False

    def unpack(self, data: bytes) -> bytes:
        """Returns what the next bytes of a stream unpack to. Raises BadPacking or InflatesTooFar."""
        return self._inflater.take(data)

    def read(self, data: bytes) -> bytes:
        """Returns what the next bytes of an answer that passes packed unpack to; nothing once that fails."""
        if not self._coding:
            return b""
        try:
            return self._inflater.take(data)
        except (BadPacking, InflatesTooFar) as problem:
            logger.debug("cannot read a compressed answer: %s", problem)
            self._coding = ""
            return b""

    def whole(self, data: bytes) -> bytes:
        """Returns what a whole answer unpacks to; nothing if that fails."""
        return Packed(self._coding, passes=True).read(data)


def packed(content_encoding: bytes, *, streams: bool) -> Packed | None:
    """Returns how an answer with this header is read; None if it is not packed."""
    try:
        coding = coding_of(content_encoding)
    except UnknownPacking:
        return Packed("", passes=True)
    return Packed(coding, passes=not streams) if coding else None
