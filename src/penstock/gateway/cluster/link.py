"""One end of a link, over a socket pair or TCP: the messages of one turn of the loop go out as one frame.

A message that cannot be written is left out, logged, and given to `unsent`; the others of its turn go out. Both ends
buffer unread frames up to a bound. Past it the link ends, as it does when anything comes that is no message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from penstock.share.frames import FrameReader, LinkError, written
from penstock.share.messages import Frame

BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024  # unread by the other end: some 500,000 actions

logger = logging.getLogger(__name__)

M = TypeVar("M")


class Link(asyncio.Protocol, Generic[M]):
    """`heard` is called with each frame; `lost` once, with the reason why the link ended."""

    def __init__(
        self,
        reader: FrameReader[M],
        *,
        epoch: int,
        heard: Callable[[Frame[M]], None],
        lost: Callable[[str], None],
    ) -> None:
        self.epoch = epoch
        self.unsent: Callable[[object], None] = _to_nobody
        self._reader = reader
        self._heard = heard
        self._lost: Callable[[str], None] | None = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[object] = []

    def at(self, epoch: int) -> None:
        """Messages from now on are of this epoch."""
        self.flush()
        self.epoch = epoch

    def say(self, message: object) -> None:
        """Send it with the other messages of this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(message)

    def flush(self) -> None:
        """Send pending messages at once."""
        out, self._out = self._out, []
        transport = self._transport
        if not out or transport is None or self._lost is None:
            return
        try:
            transport.write(written(self.epoch, out, self._unsent))
        except LinkError as error:
            self.end(str(error))
            return
        if transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            self.end(f"the other end reads nothing: {BUFFER_BYTES_MAX} bytes wait for it")

    def _unsent(self, message: object, error: Exception) -> None:
        logger.error("a message between processes cannot be written: %s: %s", type(message).__name__, error)
        self.unsent(message)

    def close(self) -> None:
        """Close it after the messages already sent, without calling `lost`."""
        self.flush()
        self._lost = None
        if self._transport is not None:
            self._transport.close()

    def end(self, why: str) -> None:
        """Abort it, and call `lost`."""
        lost, self._lost = self._lost, None
        if self._transport is not None:
            self._transport.abort()
        if lost is not None:
            lost(why)

    # --- from the transport ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if self._lost is None:
                    return
                self._heard(frame)
        except LinkError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        cut = " inside a frame" if self._reader.inside else ""
        self.end(f"the link was closed{cut}" + (f": {exc}" if exc is not None else ""))


def _to_nobody(_message: object) -> None:
    """Nobody asks for messages that cannot be written."""


def taken_over(transport: asyncio.Transport, came: bytes, by: asyncio.Protocol) -> None:
    """Give a connection, and what came on it, to another protocol."""
    transport.set_protocol(by)
    by.connection_made(transport)
    if came:
        by.data_received(came)
    if not transport.is_closing() and not transport.is_reading():
        transport.resume_reading()
