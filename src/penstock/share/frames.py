"""Frames: messages as bytes, read strictly, because anybody may be at the other end.

A frame is four bytes of length (big-endian) and one msgpack array: the epoch, and all messages of one turn of the loop.
A length out of range, undecodable bytes and a field of another type end the link with a `LinkError`. A peer can make us
hold one frame at most, and no byte of it before its length was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from penstock.share.messages import PROTOCOL, Down, Frame, Hello, Up

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024  # a thousand tenants' settings are some 300 KB
MESSAGES_MAX: Final = 512  # in one frame that we write; longer turns write several
_LENGTH_BYTES: Final = 4

M = TypeVar("M")


class LinkError(Exception):
    """The bytes or messages are none that a peer of ours sends. The text describes them."""


_encoder = msgspec.msgpack.Encoder()


def written(epoch: int, messages: Sequence[object], unsent: Callable[[object, Exception], None] | None = None) -> bytes:
    """Returns the bytes of one frame, or of several if there are many messages, or long ones.

    `unsent` is called with each message that cannot be written; the others are. None: the error is raised.
    """
    pieces: list[bytes] = []
    for at in range(0, len(messages), MESSAGES_MAX):
        _write(epoch, messages[at : at + MESSAGES_MAX], pieces, unsent)
    return b"".join(pieces)


def _write(
    epoch: int,
    messages: Sequence[object],
    pieces: list[bytes],
    unsent: Callable[[object, Exception], None] | None,
) -> None:
    """Write all messages, in halves if there is no other way. Raises `LinkError` if one alone is too long."""
    payload: bytes | None = None
    try:
        payload = _encoder.encode((epoch, messages))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if unsent is None:
            raise
        if len(messages) == 1:
            unsent(messages[0], error)
            return
    if payload is not None and len(payload) <= FRAME_BYTES_MAX:
        pieces += (len(payload).to_bytes(_LENGTH_BYTES, "big"), payload)
        return
    if payload is not None and len(messages) == 1:
        raise LinkError(f"a frame of {len(payload)} bytes is too long to send; at most {FRAME_BYTES_MAX}")
    half = len(messages) // 2
    _write(epoch, messages[:half], pieces, unsent)
    _write(epoch, messages[half:], pieces, unsent)


class FrameReader(Generic[M]):
    """Reads one direction of one link."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Frame[M]]) -> None:
        self._decoder = decoder
        self._kept = bytearray()

    @property
    def inside(self) -> bool:
        """Whether a frame is incomplete: a link that ends now was cut."""
        return bool(self._kept)

    def feed(self, data: bytes) -> list[Frame[M]]:
        """Returns the frames that are complete now. Raises `LinkError`."""
        kept = self._kept
        if kept:
            kept += data
        here: bytes | bytearray = kept or data  # usually whole frames, and nothing is kept
        frames: list[Frame[M]] = []
        at = 0
        while len(here) - at >= _LENGTH_BYTES:
            size = int.from_bytes(here[at : at + _LENGTH_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise LinkError(f"a frame of {size} bytes was announced; at most {FRAME_BYTES_MAX} are accepted")
            end = at + _LENGTH_BYTES + size
            if len(here) < end:
                break
            frames.append(self._read(here[at + _LENGTH_BYTES : end]))
            at = end
        if here is kept:
            del kept[:at]
        else:
            kept += data[at:]
        return frames

    def _read(self, payload: bytes | bytearray) -> Frame[M]:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # a name in no UTF-8 is a ValueError
            problem = f"{_other_version(payload) or error}"
        raise LinkError(f"not a message: {problem}")


def edge_reader() -> FrameReader[Down]:
    """Returns the reader of an edge."""
    return FrameReader(msgspec.msgpack.Decoder(Frame[Down]))


def decider_reader() -> FrameReader[Up]:
    """Returns the reader of a decider."""
    return FrameReader(msgspec.msgpack.Decoder(Frame[Up]))


def why_not(hello: Hello, *, version: str) -> str | None:
    """Returns why an edge is refused; None: it is accepted."""
    if hello.protocol != PROTOCOL:
        return _differs(hello.protocol, hello.version)
    if hello.version != version:
        return f"the edge is Penstock {hello.version}, the decider {version}: run one version"
    return None


def _differs(protocol: object, version: object) -> str:
    told = f"protocol {protocol!r:.20} (Penstock {version!r:.40})"
    return f"the other end speaks {told}, this one {PROTOCOL}: run one version"


def _other_version(payload: bytes | bytearray) -> str | None:
    """Returns the difference if the payload is the hello of another protocol."""
    try:
        _, ((name, protocol, version, *_), *_) = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return None
    return _differs(protocol, version) if name == "hello" and protocol != PROTOCOL else None
