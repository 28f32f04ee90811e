"""One request to an engine, as its sender sees it.

The sender passes a `Sink` for the answer and gets a `Call`, the handle to abort or pause the answer. A call belongs to
its sender. Its sink hears `on_end` or `on_error` exactly once, and nothing after an abort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.http.client.values import Headers, UpstreamError


#: A request's body: whole, or the pieces of a large one.
Payload = bytes | list[bytes | memoryview]


class Sink(Protocol):
    """The receiver of an answer: `on_response`, then `on_data` any number of times, then one of `on_end` and
    `on_error`.

    `on_error` may come at any time, also first. `headers` are as the engine sent them, hop-by-hop ones included, and
    the list is the sink's to keep. Nothing is called before `send` has returned or after `Call.abort`. `on_data`
    returns True if the bytes show no progress of the answer (a comment of a stream): then the time-outs go on.
    """

    def on_response(self, status: int, headers: Headers, /) -> None: ...
    def on_data(self, data: bytes, /) -> bool | None: ...
    def on_end(self) -> None: ...
    def on_error(self, error: UpstreamError, /) -> None: ...


class _Silence:
    """The sink of a call that is over, so that no callback has to ask whether its call still runs."""

    def on_response(self, status: int, headers: Headers, /) -> None: ...
    def on_data(self, data: bytes, /) -> None: ...
    def on_end(self) -> None: ...
    def on_error(self, error: UpstreamError, /) -> None: ...


_SILENCE: Final = _Silence()


class Carrier(Protocol):
    """A call's interface to its connection."""

    transport: asyncio.Transport
    is_open: bool
    heard: bool

    def close(self) -> None: ...
    def hang_up(self, on_closed: Callable[[], None], /) -> None: ...


class Call:
    """One request on its way to an engine. Its sender may abort it, or pause its answer, at any time."""

    __slots__ = ("body", "connection", "head", "is_head_request", "paused", "sink")

    def __init__(self, head: bytes, body: Payload, sink: Sink, is_head_request: bool) -> None:  # noqa: FBT001
        self.head = head
        self.body: Payload = body
        self.sink: Sink = sink
        self.is_head_request = is_head_request
        self.connection: Carrier | None = None
        self.paused = False

    def abort(self) -> None:
        """Close the connection, so that the engine stops working on the request.

        No callback of the sink follows. A second call does nothing.
        """
        connection = self.connection
        self.end()
        if connection is not None:
            connection.close()

    def hang_up(self, on_closed: Callable[[], None]) -> None:
        """Abort as `abort` does, but in an orderly way that the engine can confirm.

        `on_closed` is called once, maybe before this returns: when the engine has closed its side, or has had long
        enough to do so.
        """
        connection = self.connection
        self.end()
        if connection is None:
            on_closed()
        else:
            connection.hang_up(on_closed)

    def pause(self) -> None:
        """Stop reading the answer. Data already read is still delivered: one read, at most 256 KiB."""
        self.paused = True
        if self.connection is not None and self.connection.is_open:
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """Read the answer on after `pause`."""
        self.paused = False
        if self.connection is not None and self.connection.is_open:
            self.connection.heard = True
            self.connection.transport.resume_reading()

    def end(self) -> Sink:
        """Let go of everything the call holds. Returns its sink, for the last callback."""
        sink, self.sink = self.sink, _SILENCE
        self.connection = None
        self.head = b""
        self.body = b""
        return sink
