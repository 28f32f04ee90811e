"""The access log (`log.access`): one line per request that reached the queue, when it is over.

As text, `key=value` and spaces between. Callers choose ids, names and paths: a value with a space, an equals sign or a
quote in it stands in quotes, as JSON writes them, so that nobody writes fields.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

from penstock.gateway.admin.phrases import printable
from penstock.logs import FIELDS

if TYPE_CHECKING:
    from penstock.core.values.catalogue import Outcome, Reason
    from penstock.gateway.proxy.journey import QueuedJourney

logger = logging.getLogger("penstock.access")

NAME_CHARS_MAX = 128
_PLAIN = re.compile(r"[^\s=\"\\]+")


def ended(journey: QueuedJourney, outcome: Outcome, reason: Reason | None) -> None:
    """Log the request's origin, model, times and end; no prompt and no answer."""
    exchange, request = journey.exchange, journey.request
    first_s = None if journey.first_s is None else journey.first_s - journey.started_s
    fields = {
        "request_id": request.id,
        "client": exchange.client or None,
        "method": exchange.method,
        "path": printable(exchange.target_path, NAME_CHARS_MAX),
        "status": exchange.status or 499,
        "model": printable(request.model, NAME_CHARS_MAX),
        "instead_of": printable(request.instead_of, NAME_CHARS_MAX) or None,
        "tenant": printable(request.tenant, NAME_CHARS_MAX),
        "band": journey.band,
        "endpoint": journey.endpoint or None,
        "attempts": journey.attempts if journey.attempts > 1 else None,
        "outcome": str(outcome),
        "reason": None if reason is None else str(reason),
        "limit": None if journey.limit is None else journey.limit.limit,
        "queue_ms": round(journey.waited_s() * 1000, 1),
        "ttft_ms": None if first_s is None else round(first_s * 1000, 1),
        "total_ms": round(journey.elapsed_s() * 1000, 1),
        "tokens": journey.tokens,
    }
    words = " ".join(f"{key}={word(value)}" for key, value in fields.items() if value is not None)
    logger.info("%s", words, extra={FIELDS: fields})


def word(value: object) -> str:
    """A value that is read back as one: in quotes if it could be taken for several, or for a field."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
