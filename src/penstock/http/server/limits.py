"""What may a client ask of our own HTTP/1.1 server, and in which ways do we refuse it?

Every buffer, count and wait of a connection has its bound here. A request that breaks one, or that is not
HTTP, ends in exactly one `Refusal`; the handler renders it (status, headers, body in the caller's API shape),
the connection sends it and closes. `Refusal` values are the reason words of the wire, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of one server; times are in seconds, sizes in bytes."""

    header_bytes_max: int = 64 * 1024  # request line included
    header_count_max: int = 256
    body_bytes_max: int = 64 * 1024 * 1024
    bodies_bytes_max: int = 1024 * 1024 * 1024  # of all that are under way together, each longer than one read
    connections_max: int = 20_000
    connections_per_address_max: int | None = None  # of these
    header_timeout_s: float = 10.0  # from a request's first byte to the blank line
    body_timeout_s: float = 60.0  # between two reads of a body
    body_timeout_total_s: float = 600.0  # a full body over a line of 1 Mbit/s takes 540 s
    write_timeout_s: float = 60.0  # without progress, while output waits for the client
    keepalive_timeout_s: float = 75.0  # without a byte of the next request, or of the first
    write_buffer_bytes_max: int = 256 * 1024  # above it the exchange is paused
    write_buffer_bytes_low: int = 64 * 1024  # below it, resumed
    pipelined_bytes_max: int = 64 * 1024  # read ahead of a running exchange before reading stops
    body_rate_from_s: float = 1.0  # a body is not judged by how fast its first second was
    linger_bytes_max: int = 1024 * 1024  # discarded after a refusal, so that its answer is not lost to a reset
    linger_timeout_s: float = 2.0
    gone_look_s: float = 1.0  # how often a client that is not read from is asked whether it is still there


class Refusal(Enum):
    """Why this layer itself answers a request."""

    BAD_REQUEST = "bad_request"  # 400
    CLIENT_TIMEOUT = "client_timeout"  # 408
    REQUEST_TOO_LARGE = "request_too_large"  # 413
    EXPECTATION_FAILED = "expectation_failed"  # 417
    WEBSOCKET_UNSUPPORTED = "websocket_unsupported"  # 426
    HEADER_TOO_LARGE = "header_too_large"  # 431
    TOO_MANY_CONNECTIONS = "too_many_connections"  # 429: the caller should come back later
    TOO_MANY_BYTES = "too_many_bytes"  # 429: in the bodies of all clients together
