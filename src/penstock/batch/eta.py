"""When will a batch be done, and will it miss its window? Estimated from how fast its tenant's items ended recently.

Pure. A tenant's batches run one after another, the earliest deadline first, so the items of earlier batches count with
those of the batch itself. The rate forgets exponentially over `MEMORY_S`: long enough to smooth over single long
answers, short enough to see that interactive traffic takes the engines in the morning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from penstock.batch.states import Status
from penstock.batch.values import Batch
from penstock.core.util.decaying import Decaying

MEMORY_S = 60.0
SEEN_S_MIN = 3.0  # a rate over less time would be a guess


class Outlook(msgspec.Struct, frozen=True):
    """How far one open batch is, and when it will be done. Times are Unix times in seconds."""

    id: str
    tenant: str
    models: tuple[str, ...]
    status: str
    total: int
    completed: int
    failed: int
    created_at: float
    deadline: float
    per_s: float  #: items of its tenant that end per second; 0.0: none recently, or not watched long enough
    estimated_end: float | None  #: None: no item ends at present, or the batch is being cancelled
    misses_window: bool


class _TenantRate:
    def __init__(self, now: float) -> None:
        self.since = now
        self.ended = Decaying(MEMORY_S)


class CompletionEta:
    """Watches open batches and estimates their ends."""

    def __init__(self) -> None:
        self._tenants: dict[str, _TenantRate] = {}
        self._ended: dict[str, int] = {}  # items ended at the last look, by batch

    def look(self, batches: Sequence[Batch], *, wall: float, now: float) -> list[Outlook]:
        """Returns the outlook of all open `batches`, those with the earliest deadline first.

        Call it regularly: the rate is the change between two calls. `wall` is the Unix time, in which deadlines are set
        and which may be put back; the rate is counted in `now`, which never goes back.
        """
        self._count(batches, now)
        ahead: dict[str, int] = {}
        found: list[Outlook] = []
        for batch in sorted(batches, key=lambda b: (b.deadline, b.created_at, b.id)):
            ahead[batch.tenant] = left = ahead.get(batch.tenant, 0) + batch.left
            per_s = self._per_s(batch.tenant, now)
            end = wall + left / per_s if per_s > 0 else None
            runs = batch.status in (Status.VALIDATING, Status.IN_PROGRESS)
            stalled = end is None and now - self._tenants[batch.tenant].since > MEMORY_S
            misses = runs and (wall >= batch.deadline or stalled or (end is not None and end > batch.deadline))
            found.append(
                Outlook(
                    id=batch.id,
                    tenant=batch.tenant,
                    models=batch.names(),
                    status=batch.status,
                    total=batch.total,
                    completed=batch.completed,
                    failed=batch.failed,
                    created_at=batch.created_at,
                    deadline=batch.deadline,
                    per_s=per_s,
                    estimated_end=end if runs else None,
                    misses_window=misses,
                )
            )
        return found

    def _count(self, batches: Sequence[Batch], now: float) -> None:
        tenants: dict[str, int] = {}
        ended: dict[str, int] = {}
        for batch in batches:
            ended[batch.id] = batch.completed + batch.failed
            new = ended[batch.id] - self._ended.get(batch.id, ended[batch.id])
            tenants[batch.tenant] = tenants.get(batch.tenant, 0) + max(0, new)
        for name, new in tenants.items():
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = _TenantRate(now)
            tenant.ended.add(new, now)
        self._tenants = {name: self._tenants[name] for name in tenants}
        self._ended = ended

    def _per_s(self, name: str, now: float) -> float:
        tenant = self._tenants[name]
        seen_s = now - tenant.since
        ended = tenant.ended.at(now)
        if seen_s < SEEN_S_MIN or ended < 0.5:
            return 0.0
        return ended / (-math.expm1(-seen_s / MEMORY_S) * MEMORY_S)
