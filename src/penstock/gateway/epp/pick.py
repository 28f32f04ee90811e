"""A request of which a proxy shows us the head and the body, and which it sends itself to the endpoint that we pick.

The journey sees an exchange and an engine's answer as always. Behind it `forward` becomes a pick, and what the journey
writes becomes a change of what the proxy has: headers that differ, and the body's pieces. An answer that no engine
gives (a refusal, a path of our own) is one message to the proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.core.dispatch.fit import Kind
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Request
from penstock.gateway.proxy.relay import Relay
from penstock.http.client.call import Call, Payload, Sink
from penstock.http.client.pool import Headers, Upstream, UpstreamError, UpstreamErrorKind
from penstock.http.server.server import Exchange, Header

OWN_BYTES_MAX = 1 << 20  # of an answer of ours in pieces: the list of all models
_PROXYS_OWN = frozenset({b"content-length", b"host", b"connection", b"transfer-encoding", b"te", b"expect"})


class Reporter(Protocol):
    """Takes what a proxy reports of endpoints, for its own requests."""

    def failed(self, endpoint: str, failure: Failure, now: float, *, retry_after_s: float = 0.0) -> None: ...
    def well(self, endpoint: str) -> None: ...
    def refused(self, endpoint: str, kinds: Sequence[Kind], now: float) -> None: ...
    def avoided(self, request: Request, now: float) -> list[str]: ...


class Picks(Protocol):
    """The proxy's side of a pick: each verb is sent once at most, in this order."""

    def picked(
        self, upstream: Upstream, target: str, added: Headers, removed: list[bytes], body: Payload | None
    ) -> None: ...
    def refused(self, status: int, headers: Sequence[Header], body: bytes) -> None: ...
    def head(self, status: int | None, added: Headers, removed: list[bytes]) -> None: ...
    def piece(self, data: bytes) -> None: ...
    def last(self, data: bytes) -> None: ...
    def broken(self) -> None: ...


class Pick(Exchange):
    """One request of a proxy."""

    __slots__ = (
        "_bytes",
        "_call",
        "_engine_head",
        "_hold",
        "_is_sent",
        "_out",
        "_over",
        "_own",
        "_status",
        "keyless",
        "only",
        "reporter",
        "unseen",
    )

    def __init__(self, peer: tuple[str, int], out: Picks, hold: Callable[[int], bool], reporter: Reporter) -> None:
        super().__init__(peer)
        self.reporter = reporter  #: takes what the proxy reports
        self.keyless = False  #: no engine's key is given out
        self.only: tuple[str, ...] = ()  #: endpoints that the proxy allows; empty: all
        self.unseen = False  #: the bodies of answers do not come
        self._out = out
        self._hold = hold
        self._bytes = 0  # of its body, in the server's sum
        self._over = False
        self._is_sent = False
        self._own: tuple[int, list[Header], bytearray] | None = None  # an answer of ours that is not whole
        self._call: Call | None = None
        self._status = 0  # the engine's
        self._engine_head: Headers = []

    # --- from the journey -----------------------------------------------------------------------------------------

    def forward(self, upstream: Upstream, target: str, headers: Sequence[Header], body: Payload, sink: Sink) -> Call:
        """Tell the proxy where to send the request, and how its head and body change."""
        call = self._call = Call(b"", b"", sink, is_head_request=False)
        if self._is_sent:  # the proxy can't send it again
            error = UpstreamError(UpstreamErrorKind.PROTOCOL, "it was sent once")
            asyncio.get_running_loop().call_soon(self.failed, error)
            return call
        self._is_sent = True
        removed = _missing(self.headers, headers)
        added = list(headers[len(self.headers) - len(removed) :])
        if self.keyless and any(name == b"authorization" for name, _ in added):
            error = UpstreamError(UpstreamErrorKind.PROTOCOL, "its key is not given out here")
            asyncio.get_running_loop().call_soon(self.failed, error)
            return call
        self._out.picked(upstream, target, added, _named(removed), body)
        return call

    def may_go(self, endpoint: str) -> bool:
        return not self.only or endpoint in self.only

    def hold(self, body_bytes: int) -> bool:
        """Count `body_bytes` that are kept of the request's body. Returns False if all bodies are too large now."""
        self._bytes += body_bytes
        return self._hold(body_bytes)

    def let_go(self) -> None:
        """Stop counting the request's body: nothing of it is kept any more."""
        if self._bytes:
            self._hold(-self._bytes)
            self._bytes = 0

    @property
    def over(self) -> bool:
        return self._over

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self._over:
            return
        if self.unseen and self._status == status:  # the engine's own answer: its body passes
            self.start(status, headers, length=None)
            self.end()
            return
        self.status = status
        if not self.started and (not self._status or status >= 300):
            self._finish()
            self._out.refused(status, headers, body)
            return
        self.start(status, headers, length=len(body))
        self._finish()
        self._out.last(body)

    def start(self, status: int, headers: Sequence[Header], *, length: int | None) -> None:
        if self._over:
            return
        self.started = True
        self.status = status
        if not self._is_sent:
            self._own = status, list(headers), bytearray()
            return
        removed = _missing(self._engine_head, headers)
        added = list(headers[len(self._engine_head) - len(removed) :])
        if length is not None:
            added.append((b"content-length", b"%d" % length))
        names = _named(removed)
        if length is None and not self.unseen and any(name.lower() == b"content-length" for name, _ in removed):
            names.append(b"content-length")
        self._out.head(None if status == self._status else status, added, names)

    def write(self, data: bytes) -> None:
        if not data or self._over:
            return
        own = self._own
        if own is None:
            self._out.piece(data)
        elif len(own[2]) + len(data) <= OWN_BYTES_MAX:
            own[2].extend(data)
        else:
            self.abort()

    def end(self) -> None:
        if self._over:
            return
        self._finish()
        own = self._own
        if own is not None:
            self._out.refused(own[0], own[1], bytes(own[2]))
        elif not self.unseen:
            self._out.last(b"")

    def abort(self) -> None:
        if not self._over:
            self._finish()
            self._out.broken()

    def _finish(self) -> None:
        self._over = True
        self.let_go()
        over = self.on_over
        self.on_body = self.on_disconnect = self.on_over = self.on_pause = self.on_resume = None
        if over is not None:
            over()

    # --- from the proxy -------------------------------------------------------------------------------------------

    @property
    def sent(self) -> bool:
        """True from the pick to the end of the answer."""
        return self._call is not None

    def answered(self, status: int, headers: Headers) -> None:
        """The head of the engine's answer."""
        self._status, self._engine_head = status, headers
        if self._call is not None:
            self._call.sink.on_response(status, list(headers))

    def answered_alone(self, status: int, headers: Headers) -> None:
        """The head of the engine's answer, whose body does not come."""
        self._status, self._engine_head = status, headers
        if self._call is not None and isinstance(relay := self._call.sink, Relay):
            relay.on_head_alone(status, list(headers))

    def ended(self) -> None:
        """The engine's answer has ended."""
        call, self._call = self._call, None
        if call is None:
            return
        if not self.unseen:
            call.sink.on_end()
        elif isinstance(relay := call.sink, Relay):
            relay.on_end_alone()

    @property
    def sink(self) -> Sink | None:
        """The receiver of the engine's answer."""
        return None if self._call is None else self._call.sink

    def failed(self, error: UpstreamError) -> None:
        """There is no answer."""
        call, self._call = self._call, None
        if call is not None:
            call.sink.on_error(error)

    def gone(self) -> None:
        """The proxy's stream is over before the answer's end."""
        if self._over:  # the client has all of the answer
            self.ended()
            return
        hang_up = self.on_disconnect
        self._finish()
        if hang_up is not None:
            hang_up()


def _missing(before: Headers, after: Sequence[Header]) -> Headers:
    """Returns the headers of `before` that are not at the beginning of `after`, which keeps their order."""
    missing: Headers = []
    at, size = 0, len(after)
    for header in before:
        if at < size and after[at] == header:
            at += 1
        else:
            missing.append(header)
    return missing


def _named(headers: Headers) -> list[bytes]:
    """Returns the headers' names, without those that are the proxy's own."""
    return [name for name, _ in headers if name.lower() not in _PROXYS_OWN]
