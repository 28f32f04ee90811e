"""A call to an engine: what does its sender give, see and get to know?

Where the answer goes, and the handle to abort or pause. A call belongs to whoever sent it; its sink hears `on_end` or
`on_error` exactly once, and nothing more after an abort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.http.client.values import Headers, UpstreamError


#: A body to be sent: as it is, or the pieces of a large one.
Payload = bytes | list[bytes | memoryview]


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
    def hang_up(self, on_closed: Callable[[], None], /) -> None: ...


class Call:
    """One request on its way. Its sender may abort it at any time, and pause what comes back."""

    __slots__ = ("body", "connection", "head", "is_head_request", "paused", "sink")

    def __init__(self, head: bytes, body: Payload, sink: Sink, *, is_head_request: bool) -> None:
        self.head = head
        self.body: Payload = body
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

    def hang_up(self, on_closed: Callable[[], None]) -> None:
        """The same, and be told, once, when the engine has seen it or has had its time to; maybe at once."""
        connection = self.connection
        self.end()
        if connection is None:
            on_closed()
        else:
            connection.hang_up(on_closed)

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
        self.head = b""
        self.body = b""
        return sink
