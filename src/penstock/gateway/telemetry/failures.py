"""Failures since the last look, with tenant and endpoint. Counted as they happen, taken once a second by `Watch`.

A row is a few words: kind, reason, tenant, endpoint if one had a part in it, and limit of the tenant if one was
reached. So a flood of a million refusals is one row with a number. Rows are bounded: past `ROWS_MAX` between two looks,
tenants are merged, and then endpoints. Clients that hang up are no failure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.core.values.catalogue import Outcome, Reason
from penstock.core.values.rows import LimitReached
from penstock.gateway.telemetry.request_events import FIRST_TOKENS_MAX, RequestEvents

ROWS_MAX = 512  # between two looks
OTHERS = "others"  # a tenant or an endpoint past that
FIRST_TOKENS_S = 10.0  # long enough to have some, short enough to follow what happens
_ENDED, _FIRST_TOKENS = "ended", "first_tokens"  # other rows between processes
_OWN_WISH = (Reason.CANCELLED, Reason.CLIENT_GONE, Reason.OPERATOR)


class Kind(StrEnum):
    """The end of a request that was not served well."""

    REFUSED = "refused"  #: at the door
    EVICTED = "evicted"  #: after it had waited
    BROKEN = "broken"  #: its answer had begun
    FAILED = "failed"  #: sent, and not answered
    RETRIED = "retried"  #: sent, and back in the queue: its client notices a longer wait


AT_ENDPOINTS = (Kind.BROKEN, Kind.FAILED, Kind.RETRIED)  # an endpoint had a part in it


class Mishap(NamedTuple):
    """One row."""

    kind: Kind
    reason: str
    tenant: str  #: "": not known, as it was refused before anybody asked
    endpoint: str  #: "": none had a part in it
    limit: str = ""  #: of the tenant, if that is the reason
    key: str = ""  #: of the tenant, by its name, and how it ended, if that is the reason


class Failures:
    """Counts since the start, rows since the last look. `ends` are folded before anything is read."""

    def __init__(self, events: RequestEvents | None = None) -> None:
        self._events = events = events or RequestEvents()
        self._totals: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._ended = 0
        self._ended_told = 0
        self._rows: Counter[Mishap] = Counter()
        self._fresh = events.first_tokens  # since the last look
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=FIRST_TOKENS_MAX)  # with the time of that look

    def note(
        self,
        tenant: str,
        endpoint: str,
        outcome: Outcome,
        reason: Reason | None,
        limit: LimitReached | None = None,
        *,
        key: str = "",
    ) -> None:
        """A request ended. Nothing is noted if it went well, or its client wished it."""
        self._ended += 1
        if reason is None or outcome is Outcome.COMPLETED or reason in _OWN_WISH:
            return
        which = "" if limit is None else limit.limit
        self._add(Mishap(_kind(outcome, reason), reason, tenant, endpoint, which, key), 1)

    def went_well(self, requests: int) -> None:
        """So many requests were answered."""
        self._ended += requests

    def retried(self, tenant: str, endpoint: str, cause: str) -> None:
        """A request that was sent waits again."""
        self._add(Mishap(Kind.RETRIED, cause, tenant, endpoint), 1)

    def first_token(self, after_s: float) -> None:
        """A stream began."""
        self._fresh.append(after_s)

    @property
    def totals(self) -> dict[Kind, int]:
        """Since the start, by kind."""
        self._events.fold()
        return self._totals

    @property
    def ended(self) -> int:
        """Requests since the start, however they ended."""
        self._events.fold()
        return self._ended

    def take(self) -> Counter[Mishap]:
        """The rows noted since the last call."""
        self._events.fold()
        rows, self._rows = self._rows, Counter()
        return rows

    def first_tokens_s(self, now: float) -> tuple[float, float] | None:
        """p50 and p99 of the last seconds; None if no stream began."""
        self._first_tokens.extend([(now, after_s) for after_s in self._fresh])
        self._fresh.clear()
        times = sorted([after_s for at_s, after_s in self._first_tokens if now - at_s <= FIRST_TOKENS_S])
        return (times[len(times) // 2], times[int(0.99 * len(times))]) if times else None

    # --- several processes --------------------------------------------------------------------------------------------

    def told(self) -> list[tuple[list[str], list[float]]]:
        """All that was noted since this was last asked, for another process, which is the one that looks."""
        rows = [([*row], [float(number)]) for row, number in self.take().items()]
        if self.ended > self._ended_told:
            rows.append(([_ENDED], [float(self.ended - self._ended_told)]))
            self._ended_told = self.ended
        if self._fresh:
            rows.append(([_FIRST_TOKENS], [*self._fresh]))
            self._fresh.clear()
        return rows

    def add(self, labels: Sequence[str], values: Sequence[float]) -> None:
        """Add another process's rows."""
        if labels == [_FIRST_TOKENS]:
            self._fresh.extend(values)
        elif labels == [_ENDED]:
            self._ended += int(sum(values))
        elif len(labels) == len(Mishap._fields) and labels[0] in self._totals:
            kind, *rest = labels
            self._add(Mishap(Kind(kind), *rest), int(sum(values)))

    def _add(self, row: Mishap, number: int) -> None:
        self._totals[row.kind] += number
        if row.kind not in AT_ENDPOINTS:
            row = row._replace(endpoint="")
        merged = row._replace(tenant=OTHERS, key="")
        for whose in (row, merged, merged._replace(endpoint=row.endpoint and OTHERS)):
            if whose in self._rows or len(self._rows) < ROWS_MAX:
                self._rows[whose] += number
                return
        self._rows[Mishap(row.kind, OTHERS, OTHERS, "")] += number  # a few more: one of each kind


def _kind(outcome: Outcome, reason: Reason) -> Kind:
    if outcome is Outcome.REJECTED:
        return Kind.REFUSED
    if outcome is Outcome.EVICTED:
        return Kind.EVICTED
    return Kind.BROKEN if reason is Reason.STREAM_BROKEN else Kind.FAILED
