"""Tenants as the page draws them: tokens per second over the last hour, and the remainders of their limits.

A sample every ten seconds has the tenants with most tokens, by their share of the last minute, and all others as one.
So the hour is a few kilobytes, whatever the number of tenants.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

import msgspec

from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.rows import TenantSnapshot
from penstock.gateway.admin.phrases import short_name

STEP_S = 10.0
SAMPLES_MAX = 360
TENANTS_MAX = 6
OTHERS = ""  #: no tenant has this name
ROWS_MAX = 50


class TenantCurves:
    """Tokens per second by tenant."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque(maxlen=SAMPLES_MAX)

    def add(self, snapshot: Snapshot, tokens_per_s: float, now: float) -> None:
        if not self._samples or now - self._samples[-1][0] >= STEP_S:
            self._samples.append((now, by_tenant(snapshot, tokens_per_s)))

    def shown(self, now: float) -> list[tuple[float, dict[str, float]]]:
        """Return the samples, oldest first, with their age in seconds."""
        return [(round(now - at_s, 1), rates) for at_s, rates in self._samples]


def by_tenant(snapshot: Snapshot, tokens_per_s: float) -> dict[str, float]:
    """Return the tokens per second of the tenants with most, and of all others together."""
    rates: dict[str, float] = {}
    for flow in snapshot.flows:
        name = short_name(flow.tenant)
        rates[name] = rates.get(name, 0.0) + flow.share_of_all * tokens_per_s
    first = heapq.nlargest(TENANTS_MAX, rates, key=rates.__getitem__)
    shown = {name: round(rates[name], 1) for name in first if rates[name] >= 0.05}
    rest = tokens_per_s - sum(shown.values())
    return {**shown, OTHERS: round(rest, 1)} if shown and rest >= 0.01 * tokens_per_s else shown


class ConfiguredTenant(msgspec.Struct, frozen=True):
    """A tenant of the settings, with or without requests."""

    tenant: str
    weight: float
    left: str  #: in words; "": no limit


def configured(tenants: Iterable[tuple[str, float]], snapshot: Snapshot) -> list[ConfiguredTenant]:
    """Return the tenants of the settings (name and weight) with the remainders of their limits."""
    limited = {tenant.name: tenant for tenant in snapshot.tenants}
    rows = []
    for name, weight in tenants:
        its = limited.get(name)
        rows.append(ConfiguredTenant(short_name(name), weight, "" if its is None else left(its)))
        if len(rows) == ROWS_MAX:
            break
    return rows


def left(tenant: TenantSnapshot) -> str:
    """Return the remainders of a tenant's limits in words: `40 of 60 requests / min, 3 of 4 running`."""
    limits = tenant.limits
    rests = (
        (tenant.requests_left, limits.requests_per_minute, "requests / min"),
        (tenant.tokens_left, limits.tokens_per_minute, "tokens / min"),
        (tenant.tokens_day_left, limits.tokens_per_day, "tokens / day"),
        (None if limits.running is None else limits.running - tenant.running, limits.running, "running"),
        (None if limits.queued is None else limits.queued - tenant.queued, limits.queued, "queued"),
    )
    return ", ".join(
        [f"{max(0, int(rest)):,} of {most:,} {unit}" for rest, most, unit in rests if rest is not None and most]
    )
