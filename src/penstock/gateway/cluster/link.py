"""One end of a link: what a turn of the loop has to say goes out as one frame, and what comes in is read strictly.

Both ends hold what the other has not taken yet up to a bound. A peer that reads nothing is no peer: past the bound the
link is lost, as it is when anything comes that is no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from penstock.share.frames import FrameReader, LinkError, written
from penstock.share.messages import Frame

BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024  # that the other end has not taken: some 500,000 actions

M = TypeVar("M")


class Link(asyncio.Protocol, Generic[M]):
    """`heard` is called with each frame; `lost` once, with what ended the link."""

    def __init__(
        self,
        reader: FrameReader[M],
        *,
        epoch: int,
        heard: Callable[[Frame[M]], None],
        lost: Callable[[str], None],
    ) -> None:
        self.epoch = epoch
        self._reader = reader
        self._heard = heard
        self._lost: Callable[[str], None] | None = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[object] = []

    def adopt(self, transport: asyncio.Transport, came: bytes) -> None:
        """Go on with a connection that somebody else has begun, and what came on it since."""
        transport.set_protocol(self)
        self.connection_made(transport)
        if came:
            self.data_received(came)
        if not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def at(self, epoch: int) -> None:
        """What is said from now on is of this epoch."""
        self.flush()
        self.epoch = epoch

    def say(self, message: object) -> None:
        """Send it with all else that this turn of the loop has to say."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(message)

    def flush(self) -> None:
        """Send at once what is to be said."""
        out, self._out = self._out, []
        transport = self._transport
        if not out or transport is None or self._lost is None:
            return
        try:
            transport.write(written(self.epoch, out))
        except LinkError as error:
            self.end(str(error))
            return
        if transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            self.end(f"the other end reads nothing: {BUFFER_BYTES_MAX} bytes wait for it")

    def close(self) -> None:
        """End it, and say so to nobody here. What was said goes out."""
        self.flush()
        self._lost = None
        if self._transport is not None:
            self._transport.close()

    def end(self, why: str) -> None:
        """The link can't go on."""
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
