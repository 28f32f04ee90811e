"""Whose requests come late? Waits and first tokens of the last minute by tenant, and the worst of the innocent.

A flood waits by its own doing: its first tokens say nothing of how well others fare. So the number that people look at
is the worst *of those within their share*, and a flood's stands beside it as what it asked for. Who takes more than
its share is the core's word (`UnderShare.asks_for_more`), which holds for a minute here; requests of a preemptible band
wait by design. If everybody is over the share, everybody is late by the same shortage, and the worst of all is shown.

Some of the innocent ask rarely: of a few streams the median stands for the p99, and one or two streams count only if
nobody else within its share streamed.

The window is the sum of sixty looks, as that of failures: a look adds its rows and takes off those of a minute ago.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.telemetry.tenant_series import FIRST_TOKEN, WAIT, TenantTimes, TimeRow

WINDOW_S = 60.0
LEAST = 5  # streams of a minute that have a p99: one late answer is no state of things
FEW = 3  # streams that have a median which one late answer does not make


class TenantsTimes(msgspec.Struct, frozen=True):
    """A tenant's last minute in one band, in seconds; None: there was none."""

    first_token_p50_s: float | None = None
    first_token_p99_s: float | None = None  #: also None of fewer than `LEAST` streams
    streams: int = 0  #: that these are of
    wait_p50_s: float | None = None
    wait_p99_s: float | None = None


class Worst(msgspec.Struct, frozen=True):
    """The tenant whose first tokens came latest."""

    tenant: str
    band: str
    first_token_p50_s: float
    first_token_p99_s: float | None  #: None of fewer than `LEAST` streams
    within_share: bool  #: otherwise all that stream are over their share
    streams: int = LEAST  #: that these are of

    @property
    def slowest_s(self) -> float:
        """How late the slowest are, as far as the streams tell."""
        return self.first_token_p50_s if self.first_token_p99_s is None else self.first_token_p99_s


NONE = TenantsTimes()


class TimesWindow:
    """Sums up the rows of `TenantTimes`."""

    def __init__(self, times: TenantTimes) -> None:
        self._times = times
        self._looks: deque[tuple[float, Counter[TimeRow]]] = deque()
        self._sum: Counter[TimeRow] = Counter()
        self._over: dict[tuple[str, str], float] = {}  # tenants over their share, and when they were last
        self._by_tenant: dict[tuple[str, str], TenantsTimes] | None = None  # as of the last look, once it was asked for

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Take the new rows, and note which tenants ask for more than their share."""
        self._over = {key: at_s for key, at_s in self._over.items() if now - at_s < WINDOW_S}
        self._over.update({(flow.tenant, flow.band): now for flow in snapshot.flows if flow.asks_for_more})
        self._by_tenant = None
        rows = self._times.take()
        self._looks.append((now, rows))
        self._sum.update(rows)
        while self._looks[0][0] <= now - WINDOW_S:
            _, old = self._looks.popleft()
            self._sum.subtract(old)
            for row in old:
                if not self._sum[row]:
                    del self._sum[row]

    def by_tenant(self) -> dict[tuple[str, str], TenantsTimes]:
        """Return the times by tenant and band, as of the last look."""
        if self._by_tenant is None:
            self._by_tenant = self._counted()
        return self._by_tenant

    def over_share(self, tenant: str, band: str) -> bool:
        """Whether the tenant asked for more than its share in the last minute."""
        return (tenant, band) in self._over

    def worst(self, snapshot: Snapshot) -> Worst | None:
        """Return the worst of those within their share, otherwise of all; None: nobody streamed of late."""
        by_design = {band.name for band in snapshot.bands if band.preemptible}
        all_times = self.by_tenant().items()
        streams = [(key, its) for key, its in all_times if key[1] not in by_design and its.streams]
        many = [(key, its) for key, its in streams if its.first_token_p99_s is not None]
        if not many:
            return None
        within = [(key, its) for key, its in streams if key not in self._over]
        some = [row for row in within if row[1].streams >= FEW]
        return _worst(some or within, within_share=True) or _worst(many, within_share=False)

    def _counted(self) -> dict[tuple[str, str], TenantsTimes]:
        counts: dict[tuple[str, str], dict[str, list[tuple[int, int]]]] = {}
        for row, number in self._sum.items():
            kinds = counts.setdefault((row.tenant, row.band), {WAIT: [], FIRST_TOKEN: []})
            kinds[row.what].append((row.step, number))
        return {key: _times(kinds[WAIT], kinds[FIRST_TOKEN]) for key, kinds in counts.items()}


def _worst(rows: Iterable[tuple[tuple[str, str], TenantsTimes]], *, within_share: bool) -> Worst | None:
    found = max(rows, key=lambda row: row[1].first_token_p99_s or row[1].first_token_p50_s or 0.0, default=None)
    if found is None:
        return None
    (tenant, band), its = found
    return Worst(tenant, band, its.first_token_p50_s or 0.0, its.first_token_p99_s, within_share, its.streams)


def _times(waits: list[tuple[int, int]], firsts: list[tuple[int, int]]) -> TenantsTimes:
    first_p50_s, first_p99_s = _quantiles_s(firsts)
    streams = sum(number for _, number in firsts)
    return TenantsTimes(first_p50_s, first_p99_s if streams >= LEAST else None, streams, *_quantiles_s(waits))


def _quantiles_s(counts: list[tuple[int, int]]) -> tuple[float | None, float | None]:
    """Return p50 and p99 of counted steps."""
    total, found, seen = sum(number for _, number in counts), [], 0
    if not total:
        return None, None
    wanted = [total // 2, int(0.99 * total)]
    for step, number in sorted(counts):
        seen += number
        while wanted and seen > wanted[0]:
            found.append(TimeRow(WAIT, "", "", step).seconds)
            del wanted[0]
    return found[0], found[1]
