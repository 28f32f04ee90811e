"""Agents' sessions as the page draws them: their sums, and the endpoints' KV memory by tenant."""

from __future__ import annotations

import heapq

from penstock.core.values.rows import SessionsSnapshot
from penstock.gateway.admin.phrases import short_name

ENDPOINTS_MAX = 32  # those that hold the most: a bar each
TENANTS_MAX = 8  # of an endpoint; others together have no piece of its bar


def sessions_drawn(sessions: SessionsSnapshot | None) -> dict[str, object] | None:
    """Return what is drawn of sessions; None if none is known that waits or holds memory."""
    if sessions is None or not (sessions.resident or sessions.waiting):
        return None
    told = [row for row in sessions.memory if row.kv_tokens is not None]
    return {
        "resident": sessions.resident,
        "idle": sum([row.idle for row in sessions.memory]),
        "waiting": sessions.waiting,
        "wait_s": sessions.wait_s,
        "price": sessions.price,
        "memory": [
            {
                "endpoint": row.endpoint,
                "usable_tokens": row.usable_tokens,
                "held_tokens": row.held_tokens,
                "sessions": row.sessions,
                "tenants": {short_name(name): held for name, held in list(row.tenants.items())[:TENANTS_MAX]},
            }
            for row in heapq.nlargest(ENDPOINTS_MAX, told, key=lambda row: row.held_tokens)
        ],
    }
