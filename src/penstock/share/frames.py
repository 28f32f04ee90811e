"""How are messages written on a stream of bytes, and read from whoever may be at its other end?

A frame is four bytes of length (big-endian) and one msgpack array: the epoch, and all messages of one turn of the loop.
Reading is strict: a length that no frame has, bytes that are no messages, a field of another kind end the link with a
`LinkError` that says what came. What a peer may make us hold is one frame, and it has to begin with a length we accept
before a byte of it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from penstock.share.messages import PROTOCOL, Down, Frame, Hello, Up

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024  # a thousand tenants' settings are some 300 KB
MESSAGES_MAX: Final = 512  # in one frame that we write; a turn that has more to say writes several
_LENGTH_BYTES: Final = 4

M = TypeVar("M")


class LinkError(Exception):
    """What came is nothing that a peer of ours sends. The text says what it was."""


_encoder = msgspec.msgpack.Encoder()


def written(epoch: int, messages: Sequence[object]) -> bytes:
    """The bytes of one frame, or several where there are many messages."""
    pieces: list[bytes] = []
    for at in range(0, len(messages), MESSAGES_MAX):
        payload = _encoder.encode((epoch, messages[at : at + MESSAGES_MAX]))
        if len(payload) > FRAME_BYTES_MAX:
            raise LinkError(f"a frame of {len(payload)} bytes is too long to be sent; at most {FRAME_BYTES_MAX}")
        pieces += (len(payload).to_bytes(_LENGTH_BYTES, "big"), payload)
    return b"".join(pieces)


class FrameReader(Generic[M]):
    """Reads one direction of one link."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Frame[M]]) -> None:
        self._decoder = decoder
        self._kept = bytearray()

    @property
    def inside(self) -> bool:
        """Whether a frame has begun and is not whole: a link that ends now was cut."""
        return bool(self._kept)

    def feed(self, data: bytes) -> list[Frame[M]]:
        """The frames that are whole now. A `LinkError` says why the link can't go on."""
        kept = self._kept
        if kept:
            kept += data
        here: bytes | bytearray = kept or data  # mostly whole frames: then nothing is kept
        frames: list[Frame[M]] = []
        at = 0
        while len(here) - at >= _LENGTH_BYTES:
            size = int.from_bytes(here[at : at + _LENGTH_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise LinkError(f"a frame of {size} bytes was announced; at most {FRAME_BYTES_MAX} are taken")
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
        raise LinkError(f"what came is no message: {problem}")


def edge_reader() -> FrameReader[Down]:
    """What an edge reads."""
    return FrameReader(msgspec.msgpack.Decoder(Frame[Down]))


def decider_reader() -> FrameReader[Up]:
    """What a decider reads."""
    return FrameReader(msgspec.msgpack.Decoder(Frame[Up]))


def why_not(hello: Hello, *, version: str) -> str | None:
    """Why an edge is not taken; None: it is."""
    if hello.protocol != PROTOCOL:
        return _differs(hello.protocol, hello.version)
    if hello.version != version:
        return f"the edge is Penstock {hello.version}, the decider {version}: run one version"
    return None


def _differs(protocol: object, version: object) -> str:
    told = f"protocol {protocol!r:.20} (Penstock {version!r:.40})"
    return f"the other end speaks {told}, this one {PROTOCOL}: run one version"


def _other_version(payload: bytes | bytearray) -> str | None:
    """Where what came is the hello of another protocol: that."""
    try:
        _, ((name, protocol, version, *_), *_) = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return None
    return _differs(protocol, version) if name == "hello" and protocol != PROTOCOL else None
