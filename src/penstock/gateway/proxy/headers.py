"""Which headers pass, upstream and back?

All except those of one hop (RFC 9110 7.6.1), those named by a `Connection` header, and Penstock's own. They keep their
order, case and bytes.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Final

from penstock.gateway.identity.caller import Sender
from penstock.gateway.identity.callers import KEY_HEADERS
from penstock.http.client.pool import Headers

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
    }
)
_REQUEST_OWN: Final = HOP_BY_HOP | {b"host", b"expect", b"x-request-id"}
RESPONSE_OWN: Final = HOP_BY_HOP | {
    b"x-request-id",
    # Which web pages may read an answer is decided by the gateway (`cors`): engines usually allow all.
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-allow-headers",
    b"access-control-allow-methods",
    b"access-control-expose-headers",
    b"access-control-max-age",
}
_ONE_HOP: Final = HOP_BY_HOP | {b"", b"close"}
_NUMBER: Final = re.compile(rb"\d{1,12}(\.\d{0,9})?")
_CREDENTIALS: Final = frozenset(KEY_HEADERS)
_PRIORITY_HEADERS: Final = frozenset({b"x-vllm-priority", b"x-override-priority"})  # engines let them override the body


def _dropped(*, credentials: bool, ranked: bool, inflated: bool, plain: bool) -> frozenset[bytes]:
    dropped = _REQUEST_OWN
    if credentials:  # a key of ours stays here
        dropped |= _CREDENTIALS
    if ranked:
        dropped |= _PRIORITY_HEADERS
    if inflated:
        dropped |= {b"content-encoding"}
    if plain:
        dropped |= {b"accept-encoding"}
    return dropped


_DROPPED: Final = [
    _dropped(credentials=bool(n & 1), ranked=bool(n & 2), inflated=bool(n & 4), plain=bool(n & 8)) for n in range(16)
]


def request_headers(
    headers: Headers,
    sender: Sender | None = None,
    /,
    *,
    api_key: str | None,
    request_id: bytes,
    inflated: bool,
    has_key: bool = False,
    ranked: bool = False,
    plain: bool = False,
) -> Headers:
    """Returns the client's headers for upstream, with the engine's own credential if it has one.

    The `sender` of a head keeps those that pass, for its next request.
    """
    credentials = api_key is not None or has_key
    dropped = _DROPPED[credentials + 2 * ranked + 4 * inflated + 8 * plain]
    if sender is None:
        kept = _passing(headers, dropped)
    else:
        if sender.dropped is not dropped:
            sender.passing, sender.dropped = _passing(headers, dropped), dropped
        kept = sender.passing.copy()
    kept.append((b"x-request-id", request_id))
    if api_key is not None:
        kept.append((b"authorization", b"Bearer " + api_key.encode()))
    return kept


def credentials(headers: Headers) -> Headers:
    """Returns the credentials that a client's `headers` carry."""
    return [header for header in headers if header[0].lower() in _CREDENTIALS]


def response_headers(headers: Headers) -> Headers:
    """Returns an engine's headers for the client."""
    return _passing(headers, RESPONSE_OWN)


def retry_after_s(headers: Headers, now: float) -> float:
    """Returns the seconds of an engine's Retry-After; 0.0 if it is absent or invalid.

    `now`: the wall clock, for a date in an answer without a `Date`.
    """
    told = {name.lower(): value for name, value in headers}
    milliseconds = _seconds(told.get(b"retry-after-ms", b"")) / 1000  # first, as in OpenAI's libraries
    value = told.get(b"retry-after", b"")
    if milliseconds or not value:
        return milliseconds
    until_s = _date(value)
    return _seconds(value) if until_s is None else max(0.0, until_s - (_date(told.get(b"date", b"")) or now))


def _seconds(value: bytes) -> float:
    return float(value) if _NUMBER.fullmatch(value.strip()) else 0.0


def _date(value: bytes) -> float | None:
    try:
        return parsedate_to_datetime(value.decode("latin-1")).timestamp()
    except (ValueError, OverflowError):
        return None


def _passing(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    kept, named = [], b""
    for header in headers:
        name = header[0].lower()
        if name not in dropped:
            kept.append(header)
        elif name == b"connection":
            named += b"," + header[1]
    return unnamed(kept, named) if named else kept


def unnamed(headers: Headers, named: bytes) -> Headers:
    """Returns the headers but for those that `Connection` headers with these values name."""
    names = {token.strip().lower() for token in named.split(b",")}
    if names <= _ONE_HOP:  # usually: none, `keep-alive` or `close`
        return headers
    return [header for header in headers if header[0].lower() not in names]
