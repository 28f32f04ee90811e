"""How a request can end: one closed list of outcomes and reasons.

An outcome says at which point of its life a request ended, a reason says why. The reason is the same word in an
error body's `code`, in the `x-penstock-reason` header and in the metrics' `reason` label (docs/design.md#outcomes).
"""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """At which point a request ended."""

    REJECTED = "rejected"  #: refused before it entered the queue
    EVICTED = "evicted"  #: taken out of the queue, never sent (or sent, refused by the engine and queued again)
    FAILED = "failed"  #: sent to an endpoint, and not answered as it should
    COMPLETED = "completed"  #: an engine's own answer reached the client


class Reason(StrEnum):
    """Why a request ended without an engine's answer."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    IDENTITY_UNAVAILABLE = "identity_unavailable"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    PATH_NOT_FOUND = "path_not_found"
    ENDPOINT_NOT_FOUND = "endpoint_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CLIENT_TIMEOUT = "client_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    HEADER_TOO_LARGE = "header_too_large"
    WEBSOCKET_UNSUPPORTED = "websocket_unsupported"
    QUEUE_FULL = "queue_full"
    TENANT_LIMIT = "tenant_limit"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    ENDPOINT_OVERLOADED = "endpoint_overloaded"
    OVERLOAD = "overload"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE_MISSED = "deadline_missed"
    DISPLACED = "displaced"
    CANCELLED = "cancelled"
    CLIENT_GONE = "client_gone"
    OPERATOR = "operator"
    NO_ENDPOINT = "no_endpoint"
    DRAINING = "draining"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    STREAM_BROKEN = "stream_broken"
    STORAGE_FULL = "storage_full"


#: Only admitted requests end for these reasons: no request is rejected for them.
AFTER_ADMISSION = frozenset(
    {
        Reason.QUEUE_TIMEOUT,
        Reason.DEADLINE_MISSED,
        Reason.DISPLACED,
        Reason.CANCELLED,
        Reason.CLIENT_GONE,
        Reason.OPERATOR,
        Reason.UPSTREAM_TIMEOUT,
        Reason.STREAM_BROKEN,
    }
)
