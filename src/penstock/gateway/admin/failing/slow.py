"""Requests that wait where Penstock cannot order them, and first tokens that come late: then nothing is well.

The queue inside the engines is the sum of what engines report, so it counts other gateways' requests, too. It matters
once it is longer than the few that keep an engine busy.
"""

from __future__ import annotations

from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.admin.failing.lately import Lately
from penstock.gateway.admin.history import inside
from penstock.gateway.admin.phrases import count, seconds, short_name

LATE_S = 10.0  # p99 of the time to the first token; a person has gone by then
QUEUED_PER_ENGINE = 4  # more wait inside engines than keep them busy
MOST = 0.5  # of the running requests are one tenant's


def is_slow(snapshot: Snapshot, lately: Lately | None) -> bool:
    """Whether first tokens come late, or long queues stand inside the engines."""
    return _is_late(lately) or _is_long(snapshot)


def slow(snapshot: Snapshot, lately: Lately | None) -> list[str]:
    """Return the sentences about late first tokens and queues inside engines; none if all is well."""
    said = []
    if _is_long(snapshot):
        most = max(snapshot.endpoints, key=lambda endpoint: endpoint.engine_waiting or 0)
        at = f", {most.engine_waiting:,.0f} of them at {short_name(most.name)}" if len(snapshot.endpoints) > 1 else ""
        queued = count(inside(snapshot) or 0, "request waits", "requests wait")
        said.append(f"{queued} inside the engines{at}{_whose(snapshot)}.")
    if _is_late(lately) and lately is not None:
        worst = lately.worst
        if worst is not None and worst.within_share:
            whose = f"First tokens of {short_name(worst.tenant)}, which is within its share, come late"
            p50, p99 = worst.first_token_p50_s, worst.slowest_s
        else:
            whose = "First tokens come late"
            p50, p99 = lately.first_token_p50_s or 0.0, lately.first_token_p99_s or 0.0
        said.append(f"{whose}: half of the streams waited {seconds(p50)}, the slowest {seconds(p99)}.")
    return said


def advice(snapshot: Snapshot, lately: Lately, *, queueing: bool) -> str:
    """Return what to do about it; empty if nothing is slow."""
    if not is_slow(snapshot, lately) or snapshot.waiting:
        return ""
    if not queueing:
        return "Turn queueing on (`queue.enabled: true`): then requests wait here, and tenants take turns."
    if _is_long(snapshot):
        return (
            "Give the endpoints fewer `slots`: then requests wait here, where they can be ordered. More engines help."
        )
    return "More engines help, or shorter prompts: requests are sent at once, and the engines need that long."


def _is_late(lately: Lately | None) -> bool:
    """Whether streams begin late now, and not only those of tenants that ask for more than their share."""
    if lately is None or (lately.first_token_p99_s or 0.0) < LATE_S:
        return False
    return lately.worst is None or lately.worst.slowest_s >= LATE_S


def _is_long(snapshot: Snapshot) -> bool:
    report = sum(endpoint.engine_waiting is not None for endpoint in snapshot.endpoints)
    return (inside(snapshot) or 0) > QUEUED_PER_ENGINE * report


def _whose(snapshot: Snapshot) -> str:
    """The tenant with most of the running requests, if it has most of them and is not alone."""
    first = max(snapshot.flows, key=lambda flow: flow.running, default=None)
    if first is None or len(snapshot.flows) < 2 or first.running <= MOST * snapshot.running:
        return ""
    return f"; {first.running:,} of the {snapshot.running:,} running are from {short_name(first.tenant)}"
