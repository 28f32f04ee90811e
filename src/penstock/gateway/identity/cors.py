"""CORS: letting pages of other sites use the API.

Before a call that a form could not have made, the browser asks (a *preflight*: `OPTIONS`, no key, no body); here is the
answer, which costs no engine anything. After a call it shows the page the answer if that names the page's origin, and
of its headers those that are listed. Cookies are never allowed, so a page has only the rights of its key.
"""

from __future__ import annotations

import re

from penstock.config.model import Settings
from penstock.config.sections.clients import ANY_ORIGIN
from penstock.http.server.exchange import Exchange, Header

PREFLIGHT_KEPT_S = 600  # by the browser; a reload that takes an origin out is felt so late at most
ASKED_BYTES_MAX = 4096  # of header names: more than any client library has
#: Response headers of ours that a page may read.
EXPOSED = (
    *("x-request-id", "x-penstock-endpoint", "x-penstock-prefill", "x-penstock-model", "x-penstock-band"),
    "x-penstock-attempts",
    *("x-penstock-queue-ms", "x-penstock-reason", "x-penstock-limit", "x-penstock-warning", "x-should-retry"),
    "x-llm-d-request-dropped-reason",
    "retry-after",
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    *("x-ratelimit-limit-tokens-day", "x-ratelimit-remaining-tokens-day", "x-ratelimit-reset-tokens-day"),
)
_METHODS = b"GET, POST, PUT, PATCH, DELETE"
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


class Cors:
    """Answers browsers, by the settings."""

    def __init__(self, settings: Settings) -> None:
        origins = settings.cors.origins
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def allows(self, exchange: Exchange, *, passes: bool) -> bool:
        """Whether the page that asks may use the path. Then every answer carries the headers.

        `passes`: the path is an engine's.
        """
        origin = exchange.header(b"origin")
        if origin is None or not (passes or _is_callers(exchange.target_path)):
            return False
        if not self._any and origin.lower() not in self._origins:
            return False
        allowed: list[Header] = [(b"access-control-allow-origin", b"*")]
        if not self._any:
            allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        exchange.added = (*allowed, (b"access-control-expose-headers", ", ".join(EXPOSED).encode()))
        return True

    @staticmethod
    def is_preflight(exchange: Exchange) -> bool:
        return exchange.method == "OPTIONS" and exchange.header(b"access-control-request-method") is not None

    @staticmethod
    def answer(exchange: Exchange) -> None:
        headers: list[Header] = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"%d" % PREFLIGHT_KEPT_S),
        ]
        asked = exchange.header(b"access-control-request-headers")
        if asked and len(asked) <= ASKED_BYTES_MAX and _NAMES.fullmatch(asked):
            headers.append((b"access-control-allow-headers", asked))
        exchange.respond(204, headers, b"")


def _is_callers(path: str) -> bool:
    """Whether a path of the gateway is for clients; the others are for operators and probes, never for pages."""
    return path.startswith(("/v1/", "/api/")) or path in ("/queue", "/usage")
