"""Tenants as the page draws them: tokens per second over the last hour.

A sample every ten seconds has the tenants with most tokens, by their share of the last minute, and all others as one.
So the hour is a few kilobytes, whatever the number of tenants.
"""

from __future__ import annotations

import heapq
from collections import deque

from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.admin.phrases import short_name

STEP_S = 10.0
SAMPLES_MAX = 360
TENANTS_MAX = 6
OTHERS = ""  #: no tenant has this name


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
