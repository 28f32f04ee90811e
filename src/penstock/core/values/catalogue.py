"""The catalogue: every code that explains something, with its one sentence and advice.

A member is a row. Story, headline, error bodies, the page, the CLI and the docs take the sentence of a code from here.
A new cause needs its row here and the place that decides it (`dispatch/admission.py`, `endpoints/pool.py`,
`explain/wait_causes.py`). A sentence is a clause with its own subject and tense, so it stands alone, after a colon and
in a table. The codes are on the wire: they never change.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

_MORE = "More engines help"
_LESS = (
    f"{_MORE}, or less work: `limits` or `weight` of the tenant that sends most. Callers were told when to come back."
)


class Cause(StrEnum):
    """Why a request is not sent now, or came back to the queue."""

    _value_: str
    sentence: str
    advice: str  #: for operators

    def __new__(cls, code: str, sentence: str = "", advice: str = "") -> Self:
        row = str.__new__(cls, code)
        row._value_, row.sentence, row.advice = code, sentence, advice
        return row

    NO_BACKEND = (
        "no_backend",
        "no live endpoint can serve the request",
        "Start an engine that serves the model: requests wait for it as long as they may.",
    )
    WARMING = (
        "warming",
        "the endpoint has not reported yet which models it serves",
        "Wait, or name the endpoints' `models` in the settings.",
    )
    UNPROVEN = (
        "unproven",
        "the endpoint has not answered as an engine does yet",
        "If they are engines, write `engine: openai` and their `models`; `penstock check FILE --live` tests them.",
    )
    EJECTED = (
        "ejected",
        "the endpoint is ejected after failures in a row",
        "The engines' logs say why they fail; they are retried by themselves.",
    )
    HELD = (
        "held",
        "the engine refuses requests as too many",
        "Give the endpoints fewer `slots`.",
    )
    RETURNING = (
        "returning",
        "the endpoint just came back and gets a few requests first",
        "Wait: it is a matter of seconds.",
    )
    STUCK = (
        "stuck",
        "the engine runs requests and makes no progress",
        "Restart the engines that are stuck; their logs say why.",
    )
    SLOTS_FULL = (
        "slots_full",
        "all slots it may use are taken",
        f"{_MORE}, or more `slots` if engines have room.",
    )
    PREEMPTED = (
        "preempted",
        "its slot went to a request of a higher band",
        "Nothing, if bands are as they are meant. `admission.max_preempted_share` bounds it.",
    )
    ENGINE_QUEUE = (
        "engine_queue",
        "enough requests are queued inside the engine",
        "Give the endpoints fewer `slots`, or the band another `max_engine_waiting`.",
    )
    PREFILL_FULL = (
        "prefill_full",
        "the engine has enough prompt tokens to compute",
        f"{_MORE}, or a higher `admission.max_prefill_tokens`.",
    )
    KV_FULL = (
        "kv_full",
        "too little KV memory is free below the ceiling",
        f"{_MORE}, or shorter contexts, or fewer `slots`.",
    )
    PACE = (
        "pace",
        "the engine needs longer per token than allowed",
        f"{_MORE}; the limit is `admission.max_time_per_output_token`.",
    )
    SHUNNED = (
        "shunned",
        "the endpoint just refused or failed the request",
        "The engine's log says why it refused the request; another try comes.",
    )
    CLASS_SHARE = (
        "class_share",
        "the last slots and memory are reserved for tenants under their share",
        "Nothing, if shares are as they are meant. `admission.reserved_slots` is how many are reserved.",
    )
    TENANT_CAP = (
        "tenant_cap",
        "the tenant runs as many requests as it may",
        "Nothing, unless the tenant may run more: its `limits.running`.",
    )
    TENANT_PAUSED = (
        "tenant_paused",
        "an operator paused the tenant",
        "`penstock tenant resume NAME` ends the pause.",
    )
    AFFINITY = (
        "affinity",
        "the request is held for the endpoint that has its session or prefix",
        "Nothing: it is worth the wait. `routing.affinity_wait` is how long.",
    )
    SESSION_MEMORY = (
        "session_memory",
        "the context of its session does not fit beside those of the sessions that have the engines' KV memory",
        f"{_MORE}, or fewer sessions at a time: `penstock sessions ls` lists them. `sessions.wait` bounds the wait.",
    )
    SESSION_PAUSED = (
        "session_paused",
        "an operator paused its session",
        "`penstock sessions resume NAME` ends the pause.",
    )
    NO_DECIDER = (
        "no_decider",
        "it is not known which gateway leads, so nothing is sent",
        "See why no gateway leads: `penstock decider show`, and the links between gateways.",
    )
    PAUSED = (
        "paused",
        "an operator paused the model or drained the endpoint",
        "`penstock resume`, or `penstock endpoint resume NAME`, ends it.",
    )
    TURN = (
        "turn",
        "other requests go first: higher bands, or tenants that got less for their weight",
        "Nothing, if each tenant gets the share that is meant: `weight`, bands and `min_share` set it.",
    )


#: Causes that end when somebody acts, or an engine comes: no rate of service forecasts that.
UNTIMED = frozenset(
    {
        *(Cause.PAUSED, Cause.TENANT_PAUSED, Cause.SESSION_PAUSED, Cause.NO_DECIDER, Cause.NO_BACKEND),
        *(Cause.WARMING, Cause.UNPROVEN, Cause.EJECTED, Cause.STUCK),
    }
)


class Outcome(StrEnum):
    """At which point a request ended."""

    REJECTED = "rejected"  #: refused before it entered the queue
    EVICTED = "evicted"  #: taken out of the queue, never sent (or sent, refused by the engine and queued again)
    FAILED = "failed"  #: sent to an endpoint, and not answered as it should
    COMPLETED = "completed"  #: an engine's own answer reached the client


class Reason(StrEnum):
    """Why a request ended without an engine's answer."""

    _value_: str
    status: int  #: of the HTTP answer
    sentence: str
    advice: str  #: for operators; `{}` stands for the endpoint
    retryable: bool  #: the same request may succeed a moment later
    message: str  #: for the caller

    def __new__(cls, code: str, status: int = 0, sentence: str = "", advice: str = "See the log of {}.") -> Self:
        row = str.__new__(cls, code)
        row._value_, row.status, row.sentence, row.advice = code, status, sentence, advice
        row.retryable = status in (429, 503) and code != "operator"
        row.message = f"{sentence[:1].upper()}{sentence[1:]}.{' Please try again later.' if row.retryable else ''}"
        return row

    BAD_REQUEST = "bad_request", 400, "the request is not valid"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded", 400, "the prompt is longer than the key allows"
    UNAUTHORIZED = "unauthorized", 401, "the key is missing or wrong"
    FORBIDDEN = "forbidden", 403, "the request is not allowed"
    MODEL_NOT_FOUND = "model_not_found", 404, "no endpoint serves the model"
    PATH_NOT_FOUND = "path_not_found", 404, "there is no such path"
    ENDPOINT_NOT_FOUND = "endpoint_not_found", 404, "there is no such endpoint"
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "this path does not take this method"
    CLIENT_TIMEOUT = "client_timeout", 408, "the client sent the request too slowly"
    REQUEST_TOO_LARGE = "request_too_large", 413, "the request is too large"
    UNSUPPORTED_ENCODING = "unsupported_encoding", 415, "the encoding of the body is not supported"
    HEADER_TOO_LARGE = "header_too_large", 431, "the header is too large"
    WEBSOCKET_UNSUPPORTED = "websocket_unsupported", 426, "WebSocket connections are not supported; use HTTP"
    QUEUE_FULL = "queue_full", 429, "the queue is full", _LESS
    TENANT_LIMIT = "tenant_limit", 429, "a limit of the tenant is reached"
    DEADLINE_INFEASIBLE = (
        "deadline_infeasible",
        429,
        "the request cannot be served before its deadline",
        f"{_MORE}, or longer deadlines.",
    )
    ENDPOINT_OVERLOADED = "endpoint_overloaded", 429, "the endpoint named by ?id= takes no more requests now"
    OVERLOAD = "overload", 429, "the service is overloaded", _LESS
    QUEUE_TIMEOUT = (
        "queue_timeout",
        429,
        "the request timed out in the queue",
        f"{_LESS} They were evicted after `queue.max_wait`.",
    )
    DEADLINE_MISSED = (
        "deadline_missed",
        429,
        "the request missed its deadline in the queue",
        f"{_MORE}, or longer deadlines.",
    )
    DISPLACED = (
        "displaced",
        429,
        "a request of a higher band took the place",
        "Nothing, if bands are as they are meant.",
    )
    CANCELLED = "cancelled", 499, "the client hung up before the request was sent"
    CLIENT_GONE = "client_gone", 499, "the client hung up"
    OPERATOR = "operator", 503, "an operator cancelled the request"
    NO_ENDPOINT = (
        "no_endpoint",
        503,
        "no engine that serves this model is in service",
        "Start an engine that serves the model.",
    )
    DRAINING = "draining", 503, "nothing new is accepted: this service, model or endpoint is being drained"
    IDENTITY_UNAVAILABLE = (
        "identity_unavailable",
        503,
        "tokens cannot be verified now",
        "The log says why the keys of `identity.jwt.issuer` cannot be fetched.",
    )
    UPSTREAM_ERROR = "upstream_error", 502, "no engine answered the request"
    UPSTREAM_TIMEOUT = (
        "upstream_timeout",
        504,
        "the engine did not answer in time",
        "See whether {} is overloaded; the limit is `timeouts.first_byte`.",
    )
    STREAM_BROKEN = (  # an error event in the stream; the status is for metrics only
        "stream_broken",
        502,
        "the engine's answer broke off",
        "See the log of {} at the time when the streams broke: usually memory, or a restart.",
    )
    STORAGE_FULL = "storage_full", 507, "no room is left to store this; nothing of it was kept"


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
#: The client can fix it, or an operator set it: no incident.
EXPECTED = frozenset(
    {reason for reason in Reason if reason.status < 429 or reason is Reason.HEADER_TOO_LARGE}
    | {Reason.TENANT_LIMIT, Reason.DRAINING}
)


class Failure(StrEnum):
    """How a dispatch failed, as the driver reports it."""

    _value_: str
    sentence: str

    def __new__(cls, code: str, sentence: str = "") -> Self:
        row = str.__new__(cls, code)
        row._value_, row.sentence = code, sentence
        return row

    CONNECT = "connect", "the endpoint could not be reached"  # refused, unreachable, name not found, TLS failed
    STALE = "stale", "the endpoint had closed the idle connection"  # maybe: it was lost before the first byte
    RESET = "reset", "the endpoint closed the connection before the first byte"
    BUSY = "busy", "the endpoint refused the request as too many"  # 429 or 503, or an engine that is shutting down
    SERVER_ERROR = "server_error", "the endpoint answered with an error"  # another 5xx
    FIRST_BYTE_TIMEOUT = "first_byte_timeout", "the endpoint sent no byte in time"
    NOT_AN_ENGINE = "not_an_engine", "the endpoint answered as no engine does"  # no such path, a web page
    KEY_REFUSED = "key_refused", "the endpoint refused the gateway's key"  # 401 or 403 for the gateway's credential
    MODEL_GONE = "model_gone", "the endpoint does not have the model"
    TOO_LONG = "too_long", "the request is too long for the endpoint"  # another one may have a larger context
    MODALITY = "modality", "the endpoint takes no such pictures, sounds or videos"
    NO_PATH = "no_path", "the endpoint does not have the path"
    NO_TOOLS = "no_tools", "the endpoint was started without calls of tools"
    NO_FEATURE = "no_feature", "the endpoint was started without what the request needs"
    BROKEN = "broken", "the stream broke"  # after the first byte: lost, silent for too long, or an error in the stream


class EndpointState(StrEnum):
    """The state of an endpoint at one moment."""

    _value_: str
    tone: str  #: ok, busy (passes by itself), bad (a fault) or hand (set by an operator)
    sentence: str  #: after "the endpoint is"
    advice: str  #: for operators; `{}` stands for the endpoint

    def __new__(cls, code: str, tone: str = "", sentence: str = "", advice: str = "") -> Self:
        row = str.__new__(cls, code)
        row._value_, row.tone, row.sentence, row.advice = code, tone, sentence, advice
        return row

    UP = "up", "ok", "up"
    DOWN = "down", "bad", "down", "See whether {} runs, and what its log says"
    LOADING = "loading", "busy", "loading", "Wait: {} loads its model"
    SLEEPING = "sleeping", "busy", "sleeping", "Wake {}, or start an engine that serves the model"
    PAUSED = "paused", "busy", "paused", "Resume {}: whoever runs the engine has paused it"
    SCALING = "scaling", "busy", "changing its size", "Wait: {} starts or ends engines of its own"
    STOPPING = "stopping", "busy", "stopping"
    HUNG = "hung", "bad", "hung", "Restart {}: it takes connections and answers none"
    DRAINING = "draining", "hand", "drained by an operator"
    REFUSED_KEY = (
        "refused_key",
        "bad",
        "refusing the gateway's key",
        "Write the engine's key in `endpoints[].api_key` of {}, then `penstock reload`",
    )
    UNPROVEN = (
        "unproven",
        "bad",
        "not answering as an engine does",
        "If {0} is an engine, write `engine: openai` and its `models`, or `penstock endpoint resume {0}` to retry it",
    )
    STUCK = "stuck", "bad", "stuck", "Restart {}: it runs requests and makes no progress; its log says why"
    SILENT = "silent", "bad", "silent", "See whether {} runs: it has not answered a probe for seconds"
    EJECTED = "ejected", "bad", "ejected after failures", "It is retried by itself; the log of {} says why it fails"
    HELD = "held", "busy", "held"


SERVING = (EndpointState.UP, EndpointState.HELD)  # requests are sent there; to held ones again within a moment
MISSING = tuple(state for state in EndpointState if state.tone == "bad")  # they should serve, and cannot
AWAY = (  # as a probe finds it
    EndpointState.DOWN,
    EndpointState.LOADING,
    EndpointState.SLEEPING,
    EndpointState.PAUSED,
    EndpointState.SCALING,
    EndpointState.STOPPING,
    EndpointState.HUNG,
)
