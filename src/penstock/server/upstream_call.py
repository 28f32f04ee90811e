"""A call to an engine: what does its sender give, see and get to know?

The values around the transport: how long and how much it may take, where the answer goes, the names of what can
go wrong, and the handle to abort or pause. A call belongs to whoever sent it; its sink hears `on_end` or
`on_error` exactly once, and nothing more after an abort.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

Headers = list[tuple[bytes, bytes]]


class UpstreamErrorKind(Enum):
    """Why an engine's answer did not arrive whole."""

    #: Nothing was sent: refused, unreachable, unknown name, TLS handshake or certificate.
    CONNECT = "connect"
    #: Nothing was sent: no connection within `connect_s`.
    CONNECT_TIMEOUT = "connect_timeout"
    #: The connection was lost before any byte of an answer.
    RESET = "reset"
    #: The connection was lost after some bytes of an answer, in its head or its body.
    BROKEN = "broken"
    #: No payload of the answer within `first_byte_s`.
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    #: No payload for `between_bytes_s`, while we were reading.
    IDLE_TIMEOUT = "idle_timeout"
    #: Not HTTP/1.x as we accept it: garbage, bad framing, a head or trailers beyond the limits, status 101.
    PROTOCOL = "protocol"


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """What went wrong with a call: a kind to decide by, a detail for people."""

    kind: UpstreamErrorKind
    detail: str


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    """What is watched on an open connection is looked at once per tick: never early, late by a tick at most."""

    connect_s: float = 5.0
    first_byte_s: float = 600.0  # from the request being written to the first payload of the answer
    between_bytes_s: float = 120.0  # time spent paused does not count
    idle_s: float = 4.0  # vLLM and SGLang close at 5 s

    @property
    def tick_s(self) -> float:
        """An eighth of the shortest, half a second at most."""
        return min(self.first_byte_s, self.between_bytes_s, self.idle_s, 4.0) / 8


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds on what an engine may make us hold."""

    header_bytes_max: int = 65536  # and for what carries no payload: interim answers, chunk lines, trailers
    header_count_max: int = 256
    idle_connections_max: int = 256
    fetch_bytes_max: int = 16 * 1024 * 1024


class Sink(Protocol):
    """Where an answer goes: `on_response`, then data, then exactly one of `on_end` and `on_error`.

    `on_error` may come at any time, also first. Headers are as the engine sent them, hop-by-hop ones too;
    the list is the sink's to keep. Nothing is called before `send` returned, nor after `Call.abort`.
    """

    def on_response(self, status: int, headers: Headers, /) -> None: ...
    def on_data(self, data: bytes, /) -> None: ...
    def on_end(self) -> None: ...
    def on_error(self, error: UpstreamError, /) -> None: ...


class _Silence:
    """The sink of a call that is over: so no callback needs to ask whether it is."""

    def on_response(self, status: int, headers: Headers, /) -> None: ...
    def on_data(self, data: bytes, /) -> None: ...
    def on_end(self) -> None: ...
    def on_error(self, error: UpstreamError, /) -> None: ...


_SILENCE: Final = _Silence()


class Carrier(Protocol):
    """The connection as its call sees it."""

    transport: asyncio.Transport
    is_open: bool
    heard: bool

    def close(self) -> None: ...


class Call:
    """One request on its way. Its sender may abort it at any time, and pause what comes back."""

    __slots__ = ("body", "connection", "head", "is_head_request", "paused", "sink")

    def __init__(self, head: bytes, body: bytes, sink: Sink, *, is_head_request: bool) -> None:
        self.head = head
        self.body = body
        self.sink: Sink = sink
        self.is_head_request = is_head_request
        self.connection: Carrier | None = None
        self.paused = False

    def abort(self) -> None:
        """Close the connection, so that the engine stops its work. No callback follows. Idempotent."""
        connection = self.connection
        self.end()
        if connection is not None:
            connection.close()

    def pause(self) -> None:
        """Stop reading from the engine. What was already read is still delivered: one read, 256 KiB at most."""
        self.paused = True
        if self.connection is not None and self.connection.is_open:
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self.paused = False
        if self.connection is not None and self.connection.is_open:
            self.connection.heard = True
            self.connection.transport.resume_reading()

    def end(self) -> Sink:
        """Let go of everything; the sink is handed out for its last callback."""
        sink, self.sink = self.sink, _SILENCE
        self.connection = None
        self.head = self.body = b""
        return sink
