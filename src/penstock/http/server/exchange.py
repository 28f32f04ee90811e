"""One request as the gateway sees it, and the verbs to answer it.

`Exchange` is the port between a request's journey and its sender. Either `respond` once, or `start`, `write` …, `end`.
Nothing here waits. If the sender hangs up first, `on_disconnect` is called once and later verbs do nothing, so a relay
needs no checks.

Connections carry exchanges (`socket_exchange.py`), and so do other sources of requests, such as batches. It hides how
the request got here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.http.client.call import Call, Payload, Sink
    from penstock.http.client.pool import Upstream
    from penstock.http.server.reader import KnownHead

Header = tuple[bytes, bytes]


class Exchange(ABC):
    """One request and its response."""

    __slots__ = (
        "added",
        "body",
        "brought",
        "client",
        "head",
        "headers",
        "lookup",
        "method",
        "note",
        "on_body",
        "on_disconnect",
        "on_over",
        "on_pause",
        "on_resume",
        "peer",
        "query",
        "started",
        "status",
        "target_path",
    )

    def __init__(self, peer: tuple[str, int], *, brought: bool = False) -> None:
        self.peer = peer  # the peer of the connection, if known
        self.brought = brought  # a load balancer holds it for the peer, or claims so
        self.client = peer[0]  # the client: the peer, or the one named by a trusted proxy
        self.added: tuple[Header, ...] = ()  # sent with any response
        self.head: KnownHead | None = None  # if its connection may bring it again
        # The head, filled in by the exchange's maker.
        self.method = ""
        self.target_path = ""  # percent-encoded, as it came
        self.query = ""
        self.headers: list[Header] = []  # names in the order and case they came
        self.lookup: dict[bytes, bytes] = {}  # lower-case name to first value
        self.body = b""
        self.note: object = None  # the gateway's own, from when it saw the head until it has the body
        self.status = 0  # that of the response, once it has begun
        self.started = False  # the response has begun
        # Set in Handler.begin: takes the body as it comes, of any size; `body` stays empty. It must not raise.
        self.on_body: Callable[[bytes], None] | None = None
        # The exchange is over: answered, refused, broken off, or its sender gone. Once, and before on_disconnect:
        # holders of resources for the exchange release them here.
        self.on_over: Callable[[], None] | None = None
        # The sender is gone before end(): at most once, never after end() or abort().
        self.on_disconnect: Callable[[], None] | None = None
        # More was written than the sender takes for now, or it takes more again. No on_resume follows an on_disconnect.
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    def pause_body(self) -> None:  # noqa: B027 (not all can)
        """Pause reading the request's body, if that can be. `on_body` may still be called with data already read."""

    def resume_body(self) -> None:  # noqa: B027
        """Read on after `pause_body`."""

    def repeats(self, name: bytes) -> bool:
        """Whether a header is given more than once; `name` in lower case."""
        return len(self.lookup) != len(self.headers) and sum(given.lower() == name for given, _ in self.headers) > 1

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, or None; `name` in lower case."""
        return self.lookup.get(name)

    def forward(self, upstream: Upstream, target: str, headers: Sequence[Header], body: Payload, sink: Sink) -> Call:
        """Send the request on to an engine; the answer goes to `sink`. Returns the handle to abort or pause it."""
        return upstream.send(self.method, target, headers, body, sink)

    def may_go(self, endpoint: str) -> bool:  # noqa: ARG002
        """Returns False for an endpoint that its sender does not allow."""
        return True

    def hold(self, body_bytes: int) -> bool:  # noqa: ARG002
        """Count `body_bytes` that are kept of the request's body. Returns False if all bodies are too large now."""
        return True

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the response has ended, or never will."""

    @abstractmethod
    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response."""

    @abstractmethod
    def start(self, status: int, headers: Sequence[Header], *, length: int | None) -> None:
        """Begin a response with a body in chunks; None for an unknown length."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send a piece of the body of a started response."""

    @abstractmethod
    def end(self) -> None:
        """The body is whole. With a piece of the promised length missing, the same as `abort`."""

    @abstractmethod
    def abort(self) -> None:
        """Break off: the sender shall see that the body is incomplete."""

    @abstractmethod
    def let_go(self) -> None:
        """Nothing of the request's body is kept any more."""
