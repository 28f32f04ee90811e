"""The access log (`log.access`): one line per request that reached the queue, when it is over.

As text, `key=value` and spaces between. Callers choose ids, names and paths: a value with a space, an equals sign or a
quote in it stands in quotes, as JSON writes them, so that nobody writes fields. Lines are made from the values of
requests that ended (`request_events.py`), when they are written (`line_log.py`).
"""

from __future__ import annotations

import functools
import json
import logging
import re
from typing import TYPE_CHECKING

from penstock import logs
from penstock.gateway.admin.phrases import printable
from penstock.gateway.openai.errors import limit_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.gateway.telemetry.line_log import LineLog
    from penstock.gateway.telemetry.request_events import End

logger = logging.getLogger("penstock.access")

NAME_CHARS_MAX = 128
NAMES_KEPT = 4096  # written before: tenants, models and paths are few, whatever one caller sends
_PLAIN = re.compile(r"[^\s=\"\\]+")
_CUT = NAME_CHARS_MAX + 1  # longer than what is shown
_Name = str | None
#: Id, client, method, path, status, model, model asked for, tenant, band, endpoint, attempts, outcome, reason, limit;
#: milliseconds in the queue, to the first token and to the end; tokens.
_Values = tuple[
    str, _Name, str, str, int, str, str, str, str, _Name, int | None, str, _Name, _Name, float, float | None, float, int
]


class AccessLog:
    """Notes the ends of requests."""

    def __init__(self, lines: LineLog) -> None:
        self._lines = lines

    def fold(self, ended: Sequence[End], wall_s: float) -> None:
        """Note the requests' origins, models, times and ends; no prompt and no answer."""
        self._lines.add_all([(line, end.ended_s + wall_s, _values(end)) for end in ended])


def _values(end: End) -> _Values:
    limit, begun_s, started_s = end.limit, end.begun_s, end.started_s
    return (
        end.request_id,
        end.client or None,
        end.method,
        end.path[:_CUT],
        end.status or 499,
        end.model[:_CUT],
        end.instead_of[:_CUT],
        end.caller.tenant[:_CUT],
        end.band,
        end.endpoint or None,
        end.attempts if end.attempts > 1 else None,
        end.outcome,
        end.reason,
        None if limit is None else limit_name(limit),
        round(end.waited_s * 1000, 1),
        None if begun_s is None else round((begun_s - started_s) * 1000, 1),
        round((end.ended_s - started_s) * 1000, 1),
        end.completion_tokens,
    )


def line(at_s: float, values: _Values, is_json: bool) -> bytes:  # noqa: FBT001
    """Returns the line of a request that ended at `at_s`."""
    request_id, client, method, path, status, model, instead_of, tenant, band, endpoint = values[:10]
    attempts, outcome, reason, limit, queue_ms, ttft_ms, total_ms, tokens = values[10:]
    path, model, instead_of, tenant = _shown(path), _shown(model), _shown(instead_of), _shown(tenant)
    words = (
        f"request_id={_word(request_id)}{_pair('client', client)} method={method} path={_kept(path)} status={status}"
        f" model={_kept(model)}{_pair('instead_of', instead_of or None)} tenant={_kept(tenant)} band={_kept(band)}"
        f"{_pair('endpoint', endpoint)}{_pair('attempts', attempts)} outcome={outcome}{_pair('reason', reason)}"
        f"{_pair('limit', limit)} queue_ms={queue_ms}{_pair('ttft_ms', ttft_ms)} total_ms={total_ms} tokens={tokens}"
    )
    if not is_json:
        return logs.line(at_s, "INFO", logger.name, words, None)
    return logs.line(
        at_s,
        "INFO",
        logger.name,
        words,
        {
            "request_id": request_id,
            "client": client,
            "method": method,
            "path": path,
            "status": status,
            "model": model,
            "instead_of": instead_of or None,
            "tenant": tenant,
            "band": band,
            "endpoint": endpoint,
            "attempts": attempts,
            "outcome": outcome,
            "reason": reason,
            "limit": limit,
            "queue_ms": queue_ms,
            "ttft_ms": ttft_ms,
            "total_ms": total_ms,
            "tokens": tokens,
        },
    )


def _pair(key: str, value: str | float | None) -> str:
    """A field that is left out if it is None."""
    if value is None:
        return ""
    return f" {key}={_kept(value) if isinstance(value, str) else value}"


def _word(text: str) -> str:
    """A value that is read back as one: in quotes if it could be taken for several, or for a field."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


_kept = functools.lru_cache(NAMES_KEPT)(_word)


@functools.lru_cache(NAMES_KEPT)
def _shown(name: str) -> str:
    return printable(name, NAME_CHARS_MAX)
