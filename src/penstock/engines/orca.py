"""Which load comes with an answer? The header `endpoint-load-metrics` (ORCA, "Open Request Cost Aggregation").

An engine sends the header if the request asked for it. It has two forms: `JSON {"named_metrics": {…}}`, and `TEXT` with
`named_metrics.x=0.5, …`. Unknown names are passed over; a number that makes no sense counts as unknown.
"""

from __future__ import annotations

import math

import msgspec

from penstock.engines.base import Load
from penstock.engines.page import number

ASK = (b"endpoint-load-metrics-format", b"TEXT")
HEADER = b"endpoint-load-metrics"
HEADER_BYTES_MAX = 4096
_PREFIX = "named_metrics."


def load(header: bytes) -> Load | None:
    """Returns the load in a header; None if it holds none that makes sense."""
    if len(header) > HEADER_BYTES_MAX:
        return None
    form, _, text = header.strip().partition(b" ")
    named = _json(text) if form == b"JSON" else _text(text) if form == b"TEXT" else {}
    waiting = named.get("num_requests_waiting")
    kv_usage = named.get("kv_cache_usage_perc")
    if kv_usage is not None and not kv_usage <= 1.0:
        kv_usage = None
    if waiting is not None and math.isnan(waiting):
        waiting = None
    if waiting is None and kv_usage is None:
        return None
    return Load(running=named.get("num_requests_running"), waiting=waiting, kv_usage=kv_usage)


def _json(text: bytes) -> dict[str, float]:
    try:
        page = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    named = page.get("named_metrics") if isinstance(page, dict) else None
    if not isinstance(named, dict):
        return {}
    return {name: number(repr(value).encode()) for name, value in named.items() if type(value) in (int, float)}


def _text(text: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for pair in text.decode("latin-1").split(","):
        name, equals, value = pair.strip().partition("=")
        if equals and name.startswith(_PREFIX):
            found[name.removeprefix(_PREFIX)] = number(value.encode("latin-1", "replace"))
    return found
