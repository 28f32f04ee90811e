"""Bounds of clients' requests, and the refusals.

Every buffer, count and wait of a connection has its bound here. A request that breaks a bound, or is not HTTP, ends in
exactly one `Refusal`: the handler renders the answer (status, headers, body in the client's API shape), the connection
sends it and closes. `Refusal` values are the reasons on the wire, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of one server; times are in seconds, sizes in bytes."""

    header_bytes_max: int = 64 * 1024  # request line included
    header_count_max: int = 256
    body_bytes_max: int = 64 * 1024 * 1024
    bodies_bytes_max: int = 1024 * 1024 * 1024  # all bodies in memory together; those of a single read do not count
    connections_max: int = 20_000
    connections_per_address_max: int | None = None  # of these; None: unlimited
    header_timeout_s: float = 10.0  # from a request's first byte to the blank line
    body_timeout_s: float = 60.0  # between two reads of a body
    body_timeout_total_s: float = 600.0  # for a whole body: the largest, over a line of 1 Mbit/s, takes 540 s; more for
    # one that may be larger, as an upload, in proportion
    write_timeout_s: float = 60.0  # without progress, while output waits for the client
    first_request_timeout_s: float = 75.0  # without a byte of a new connection's first request
    keepalive_timeout_s: float = 620.0  # without a byte of the next request; announced to clients (`keep_alive_lines`)
    write_buffer_bytes_max: int = 256 * 1024  # above this the exchange is paused
    write_buffer_bytes_low: int = 64 * 1024  # below this the exchange is resumed
    pipelined_bytes_max: int = 64 * 1024  # read ahead of a running exchange before reading stops
    body_rate_from_s: float = 1.0  # a body that is younger counts as this old when its speed is judged
    linger_bytes_max: int = 1024 * 1024  # discarded after a refusal, so that a reset does not destroy the answer
    linger_timeout_s: float = 2.0  # how long that goes on
    gone_look_s: float = 1.0  # how often we ask the kernel whether a client that we don't read from is still there
    keep_alive_lines: tuple[bytes, ...] = field(
        init=False
    )  # header lines of each response after which the connection stays open

    def __post_init__(self) -> None:
        lines = (b"keep-alive: timeout=%d" % self.keepalive_timeout_s, b"connection: keep-alive")
        object.__setattr__(self, "keep_alive_lines", lines)


class Refusal(Enum):
    """Why the server answers a request itself, before or instead of the gateway."""

    BAD_REQUEST = "bad_request"  # 400
    CLIENT_TIMEOUT = "client_timeout"  # 408
    REQUEST_TOO_LARGE = "request_too_large"  # 413
    EXPECTATION_FAILED = "expectation_failed"  # 417
    WEBSOCKET_UNSUPPORTED = "websocket_unsupported"  # 426
    HEADER_TOO_LARGE = "header_too_large"  # 431
    TOO_MANY_CONNECTIONS = "too_many_connections"  # 429: retry later
    TOO_MANY_BYTES = "too_many_bytes"  # 429: the bodies of all clients together are too large
