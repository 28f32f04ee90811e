"""An outcome on the wire (docs/design.md#outcomes): its status, error body, headers.

An error that Penstock makes has the shape of the API that was called, so that each client's own library understands it.
`code` in the body, the `x-penstock-reason` header and the metrics' `reason` label are equal.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.queueing.quotas import whose
from penstock.core.values.catalogue import Reason
from penstock.core.values.rows import Allowance, LimitReached

Headers = list[tuple[bytes, bytes]]
_DAY_S = 86_400

_MAY = {  # by the setting's name, with the number in the middle
    "running": ("have", "request", "running"),
    "queued": ("have", "request", "waiting"),
    "queued_bytes": ("have requests of", "byte", "waiting"),
    "queued_tokens": ("have prompts of", "token", "waiting"),
    "requests_per_minute": ("send", "request", "a minute"),
    "tokens_per_minute": ("use", "token", "a minute"),
    "tokens_per_day": ("use", "token", "a day"),
}
PARAM = {Reason.CONTEXT_LENGTH_EXCEEDED: "messages", Reason.MODEL_NOT_FOUND: "model", Reason.ENDPOINT_NOT_FOUND: "id"}


_SATURATED, _EXPIRED = b"rejected-saturated", b"rejected-ttl-expired"
#: llm-d's names of reasons, by which clients behind its gateways tell contention from a missing engine.
DROPPED = {
    Reason.QUEUE_FULL: _SATURATED,
    Reason.TENANT_LIMIT: _SATURATED,
    Reason.DEADLINE_INFEASIBLE: _SATURATED,
    Reason.ENDPOINT_OVERLOADED: _SATURATED,
    Reason.OVERLOAD: _SATURATED,
    Reason.DISPLACED: _SATURATED,
    Reason.QUEUE_TIMEOUT: _EXPIRED,
    Reason.DEADLINE_MISSED: _EXPIRED,
    Reason.NO_ENDPOINT: b"rejected-no-endpoints",
    Reason.DRAINING: b"rejected-shutting-down",
    Reason.CANCELLED: b"rejected-context-cancelled",
    Reason.OPERATOR: b"evicted",
}


class Api(Enum):
    """The error shape that a client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    TGI = "tgi"
    OLLAMA = "ollama"


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message(reason: Reason, *, model: str, pinned: str | None, prompt_tokens_max: int | None = None) -> str:
    """Returns the message of a reason for a request of a model, and maybe of the endpoint `pinned`.

    `prompt_tokens_max`: the bound of the client's key, if any.
    """
    if reason is Reason.CONTEXT_LENGTH_EXCEEDED:
        return (  # in OpenAI's words, by which libraries recognise it
            f"Input tokens exceed the configured limit of {prompt_tokens_max} tokens for this key, "
            "as the gateway estimates them. Please reduce the length of the prompt."
        )
    if reason is Reason.MODEL_NOT_FOUND:
        return model_not_found(model)
    if reason is Reason.ENDPOINT_NOT_FOUND:
        return f"There is no endpoint `{(pinned or '')[:200]}`."
    return reason.message


def model_not_allowed(model: str) -> str:
    """Returns the message for a key that may not use this model."""
    return f"This API key may not use the model `{model[:200]}`. GET /v1/models lists those that it may."


def limit_name(reached: LimitReached) -> str:
    """Returns the name of a limit for the header: `keys.` or `models.` before it, if it is one of those."""
    _, kind, _ = whose(reached.account)
    return f"{kind}s.{reached.limit}" if kind else reached.limit


def limit_reached(reached: LimitReached, account: str) -> str:
    """Returns the message for a tenant, key or model at one of its limits, with the limit's value."""
    together = account == ANONYMOUS
    subject = "All clients without a key together" if together else f"The tenant `{account[:200]}`"
    its = "their" if together else "its"
    _, kind, name = whose(reached.account)
    if kind == "key":
        subject = f"The key `{name[:200]}` of the tenant `{account[:200]}`"
    where = f" of the model `{name[:200]}`" if kind == "model" else ""
    if reached.limit == "running" and reached.most == 0:
        return f"{subject} may have no request running (its limit `running` is 0: paused). Please try again later."
    may, unit, how = _MAY[reached.limit]
    most = f"{reached.most:,} {unit}{'' if reached.most == 1 else 's'}"
    when = _in_words(reached.retry_after_s or 0.0)
    return f"{subject} may {may} {most} {how}{where} ({its} limit `{limit_name(reached)}`). Please try again {when}."


def _in_words(seconds: float) -> str:
    """Returns a Retry-After of hours in words: a daily limit refills slowly."""
    if seconds <= 300:
        return "later"
    return f"in {math.ceil(seconds / 60)} minutes" if seconds < 7_200 else f"in {math.ceil(seconds / 3_600)} hours"


def key_refused(endpoint: str) -> str:
    """Returns the message for a request that engines refused because of the gateway's credential."""
    return (
        f"The engine `{endpoint[:200]}` refuses this gateway's key. The gateway's operator has to set"
        " `endpoints[].api_key`; trying again does not help until then."
    )


def model_not_found(model: str) -> str:
    """Returns the message for a model that no endpoint serves."""
    return f"The model `{model[:200]}` does not exist. GET /v1/models lists those that do."


def unknown_band(asked: str, band: str) -> bytes:
    """Returns the header value for an unknown band."""
    return f"there is no band {asked!a}; this request is in {band}".encode()


def wrong_method(method: str, allowed: str) -> str:
    """Returns the message for a path with other methods, those `allowed`."""
    return f"This path takes {allowed}, not {method}."


def error_body(api: Api, reason: Reason, message: str, *, param: str | None = None) -> bytes:
    """Returns the error as JSON, in the shape of the client's API. `param`: the field of the body that is wrong."""
    status = reason.status
    body: dict[str, object]
    if api is Api.ANTHROPIC:
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(status, fallback)
        body = {"type": "error", "error": {"type": kind, "message": message, "code": reason}}
    elif api is Api.TGI:
        kind = "overloaded" if status in (429, 503) else "validation" if status < 500 else "generation"
        body = {"error": message, "error_type": kind, "code": reason}
    elif api is Api.OLLAMA:
        body = {"error": message, "code": reason}
    else:
        fallback = "server_error" if status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if status == 429 else fallback
        body = {"error": {"message": message, "type": kind, "param": param, "code": reason}}
    return msgspec.json.encode(body)


def error_event(api: Api, reason: Reason, message: str, *, param: str | None = None) -> bytes:
    """Returns the error as an event of a stream that has begun; in Ollama's API, as a line."""
    return _event(api, error_body(api, reason, message, param=param))


def engine_error_event(api: Api, status: int, body: bytes) -> bytes:
    """Returns an engine's own error answer as an event of a stream that has begun; in our words if `body` is no error
    object.
    """
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = None
    if isinstance(told, dict) and ("error" in told or told.get("object") == "error"):
        return _event(api, msgspec.json.format(body, indent=-1))  # on one line
    return error_event(api, Reason.UPSTREAM_ERROR, f"The engine answered with status {status}.")


def _event(api: Api, data: bytes) -> bytes:
    if api is Api.OLLAMA:
        return data + b"\n"
    prefix = b"event: error\ndata: " if api is Api.ANTHROPIC else b"data: "
    return prefix + data + b"\n\n"


def refusal(
    api: Api,
    reason: Reason,
    message: str | None = None,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> tuple[int, Headers, bytes]:
    """Returns the status, headers and body of an error that Penstock makes.

    `retry_after_s`: None: the header is left out.
    """
    headers: Headers = [(b"content-type", b"application/json"), (b"x-penstock-reason", reason.encode())]
    if (dropped := DROPPED.get(reason)) is not None:
        headers.append((b"x-llm-d-request-dropped-reason", dropped))
    if retry_after_s is not None:
        headers.append(retry_after(retry_after_s))
    if reason in (Reason.UNAUTHORIZED, Reason.FORBIDDEN):
        headers.append((b"x-should-retry", b"false"))
    return reason.status, headers, error_body(api, reason, message or reason.message, param=param)


def rate_limits(allowance: Allowance) -> Headers:
    """Returns headers with the remaining rates, under OpenAI's names; daily ones under Cerebras'."""
    headers: Headers = []
    for name, left in (
        (b"requests", allowance.requests),
        (b"tokens", allowance.tokens),
        (b"tokens-day", allowance.tokens_day),
    ):
        if left is not None:
            headers += (
                (b"x-ratelimit-limit-" + name, b"%d" % left.limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % left.remaining),
                (b"x-ratelimit-reset-" + name, _duration(left.reset_s)),
            )
    return headers


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: `20ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    if seconds < 60:
        return b"%.4gs" % seconds
    minutes, rest = divmod(math.ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest)


def retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Returns the header, in whole seconds. SDKs obey up to 60; a tenant's limit may exceed that."""
    return b"retry-after", b"%d" % min(max(math.ceil(seconds), 1), _DAY_S)
