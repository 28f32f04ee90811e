"""Timeouts, bounds and errors of calls to engines, and the endpoint's address."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]


class UpstreamErrorKind(Enum):
    """Why an engine's answer did not arrive whole."""

    #: Nothing was sent: refused, unreachable, unknown name, TLS handshake or certificate.
    CONNECT = "connect"
    #: Nothing was sent: no connection within `connect_s`.
    CONNECT_TIMEOUT = "connect_timeout"
    #: A reused connection was lost at once, before any byte of an answer: maybe it was closed while it was idle.
    STALE = "stale"
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
    """A call's error: `kind` to decide by, `detail` for people."""

    kind: UpstreamErrorKind
    detail: str


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    """How long a call may stand still at each stage, in seconds.

    Open connections are checked once per tick, so a time-out fires never early and at most a tick late.
    """

    connect_s: float = 5.0
    first_byte_s: float = 600.0  # from the request being written to the first payload of the answer
    between_bytes_s: float = 120.0  # while we read: time spent paused does not count
    idle_s: float = 4.0  # an idle connection is closed then: vLLM and SGLang close theirs at 5 s

    @property
    def tick_s(self) -> float:
        """How often open connections are checked: an eighth of the shortest time-out, at most every half second."""
        return min(self.first_byte_s, self.between_bytes_s, self.idle_s, 4.0) / 8


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """How much an engine may make us hold in memory."""

    header_bytes_max: int = 65536  # also of other bytes without payload: interim answers, chunk lines, trailers
    header_count_max: int = 256
    idle_connections_max: int = 256
    fetch_bytes_max: int = 16 * 1024 * 1024  # the body of a `fetch`; streamed answers have no bound, they aren't kept


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer, as `fetch` returns it."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class UpstreamStatistics:
    """How many connections of one pool are in which state now, and totals since the start."""

    connecting: int
    active: int
    idle: int
    requests_total: int
    connects_total: int


@dataclass(frozen=True, slots=True)
class Address:
    """An endpoint's address, from its URL."""

    host: str
    port: int
    authority: str  # for the Host header
    prefix: str  # before every target
    is_tls: bool
    socket: str = ""  # the path of its unix socket: host and port are then names only

    @staticmethod
    def of(url: str) -> Address:
        """Take an endpoint's `url` apart. Raises ValueError if it is not a plain http(s) or unix URL."""
        if url.startswith("unix:/"):
            socket, _, prefix = url.removeprefix("unix:").partition(":")
            return Address("localhost", 80, "localhost", prefix.rstrip("/"), is_tls=False, socket=socket)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http(s) URL with a host: {url!r}")
        if parts.query or parts.fragment or "@" in parts.netloc or " " in url or not url.isascii():
            raise ValueError(f"an endpoint's URL is plain ASCII without query, fragment, credentials: {url!r}")
        is_tls = parts.scheme == "https"
        port_default = 443 if is_tls else 80
        port = port_default if parts.port is None else parts.port
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        authority = name if port == port_default else f"{name}:{port}"
        return Address(parts.hostname, port, authority, parts.path.rstrip("/"), is_tls)
