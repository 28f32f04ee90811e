"""Failures of the last minute, by reason, tenant and endpoint: the sum of the rows of sixty looks, and its words.

A look adds its rows and subtracts those of a minute ago, so the sum costs the new rows, not all of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable

import msgspec

from penstock.core.values.catalogue import EXPECTED, Cause, Failure, Reason
from penstock.gateway.admin.phrases import count, short_name
from penstock.gateway.admin.picture.times import Worst
from penstock.gateway.telemetry.failures import OTHERS, Failures, Kind, Mishap

WINDOW_S = 60.0
ROWS_SHOWN = 20
TENANTS_NAMED = 3
SHARE_OF_NOTE = 0.01  # of the requests that ended: below it a failure is no reason to call anybody
SHARE_OF_ALARM = 0.1  # of them: if one in ten gets no answer callers call, whatever the reason
ALARM_LEAST = 5  # fewer may be one impatient client

ROWS = {str(row): row.sentence for row in (*Reason, *Failure, Cause.STUCK)}


class FailureRow(msgspec.Struct, frozen=True):
    """One line of the last minute's failures."""

    kind: Kind
    reason: str
    tenant: str  #: "": not known
    endpoint: str  #: "": none had a part in it
    count: int
    what: str  #: in words
    limit: str = ""  #: of the tenant, if that is the reason
    key: str = ""  #: of the tenant, by its name, and how it ended, if that is the reason


class FailureGroup(msgspec.Struct, frozen=True):
    """All failures of the last minute with one reason (and one limit of the tenant, if that is the reason)."""

    kind: Kind
    reason: str
    count: int
    what: str  #: in words
    whose: str  #: in words; "" if no tenant is known
    endpoint: str  #: if all were at one
    most: str = ""  #: the tenant that more than half of them were of, if there is one
    limit: str = ""  #: of the tenant, if that is the reason


class Lately(msgspec.Struct, frozen=True):
    """The last minute."""

    ended: int  #: requests, however they ended
    refused: int
    evicted: int
    broken: int
    failed: int
    retried: int
    first_token_p50_s: float | None  #: of streams, over the last seconds; None: none began
    first_token_p99_s: float | None
    groups: list[FailureGroup]  #: the most frequent first
    rows: list[FailureRow]  #: the most frequent first
    rows_more: int
    worst: Worst | None = None  #: whose first tokens came latest in the last minute, of those within their share


class FailureWindow:
    """Sums up the rows of `Failures`."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._looks: deque[tuple[float, Counter[Mishap], int]] = deque()  # when, what was new, and how many ended
        self._sum: Counter[Mishap] = Counter()
        self._ended = 0
        self._ended_before = 0

    def look(self, now: float) -> Counter[Mishap]:
        """Take the new rows, and return them."""
        rows, ended = self._failures.take(), self._failures.ended - self._ended_before
        self._ended_before = self._failures.ended
        self._looks.append((now, rows, ended))
        self._sum.update(rows)
        self._ended += ended
        while self._looks[0][0] <= now - WINDOW_S:
            _, old, ended_then = self._looks.popleft()
            self._ended -= ended_then
            for row, number in old.items():
                if self._sum[row] == number:
                    del self._sum[row]
                else:
                    self._sum[row] -= number
        return rows

    def by_tenant(self, tenants: Collection[str]) -> dict[str, dict[Kind, int]]:
        """Failures of each of these tenants in the last minute, by kind."""
        found: dict[str, dict[Kind, int]] = {}
        for row, number in self._sum.items():
            if row.tenant in tenants:
                kinds = found.setdefault(row.tenant, {})
                kinds[row.kind] = kinds.get(row.kind, 0) + number
        return found

    def now(self, now: float, worst: Worst | None = None, *, within_s: float = WINDOW_S) -> Lately:
        """As of the last look; `within_s`: only what later looks found."""
        rows, all_ended = self._sum, self._ended
        if within_s < WINDOW_S:
            rows, all_ended = Counter(), 0
            for at_s, found, ended in self._looks:
                if at_s > now - within_s:
                    rows.update(found)
                    all_ended += ended
        kinds: Counter[Kind] = Counter()
        tenants: dict[tuple[Kind, str, str], Counter[str]] = {}
        endpoints: dict[tuple[Kind, str, str], set[str]] = {}
        for row, number in rows.items():
            kinds[row.kind] += number
            key = row.kind, row.reason, row.limit
            tenants.setdefault(key, Counter())[row.tenant] += number
            endpoints.setdefault(key, set()).add(row.endpoint)
        times = self._failures.first_tokens_s(now)
        return Lately(
            ended=all_ended,
            refused=kinds[Kind.REFUSED],
            evicted=kinds[Kind.EVICTED],
            broken=kinds[Kind.BROKEN],
            failed=kinds[Kind.FAILED],
            retried=kinds[Kind.RETRIED],
            first_token_p50_s=times and times[0],
            first_token_p99_s=times and times[1],
            groups=sorted(
                [_group(key, of, endpoints[key]) for key, of in tenants.items()],
                key=lambda group: -group.count,
            ),
            rows=[
                FailureRow(
                    row.kind,
                    row.reason,
                    short_name(row.tenant),
                    short_name(row.endpoint),
                    number,
                    words(row.kind, row.reason, row.limit or row.key),
                    row.limit,
                    row.key,
                )
                for row, number in rows.most_common(ROWS_SHOWN)
            ],
            rows_more=max(0, len(rows) - ROWS_SHOWN),
            worst=worst,
        )


def words(kind: Kind, reason: str, detail: str = "") -> str:
    """The end of a request and its reason: `refused: the queue is full`. A broken stream needs no reason.

    `detail`: the limit or the key that is the reason.
    """
    if kind is Kind.BROKEN:
        return kind
    return f"{kind}: {ROWS.get(reason, reason)}" + (f" ({detail})" if detail else "")


def of_note(lately: Lately, kinds: Iterable[Kind]) -> list[FailureGroup]:
    """The failures of these kinds that somebody should know of; none if all together are next to nothing."""
    groups = [group for group in lately.groups if group.kind in kinds and group.reason not in EXPECTED]
    return groups if sum(group.count for group in groups) >= max(1.0, SHARE_OF_NOTE * lately.ended) else []


def of_alarm(lately: Lately) -> list[FailureGroup]:
    """The refusals and evictions of the last minute, if they are many. Displacement is meant, so no alarm."""
    groups = [one for one in of_note(lately, (Kind.REFUSED, Kind.EVICTED)) if one.reason != Reason.DISPLACED]
    total = sum(group.count for group in groups)
    return groups if total >= max(ALARM_LEAST, SHARE_OF_ALARM * lately.ended) else []


def said(group: FailureGroup) -> str:
    """A group in a few words: `275 requests of nightly evicted: the request timed out in the queue`."""
    number = count(group.count, "stream" if group.kind is Kind.BROKEN else "request")
    verb, colon, why = group.what.partition(":")
    where = f" at {group.endpoint}" if group.endpoint else ""
    if group.whose.startswith("of "):
        return f"{number} {group.whose} {verb}{where}{colon}{why}"
    return f"{number} {verb}{where}{colon}{why}" + (f" ({group.whose})" if group.whose else "")


def _group(key: tuple[Kind, str, str], tenants: Counter[str], endpoints: set[str]) -> FailureGroup:
    where = short_name(next(iter(endpoints))) if len(endpoints) == 1 else ""
    total = sum(tenants.values())
    first, number = tenants.most_common(1)[0]
    most = short_name(first) if first != OTHERS and number * 2 > total else ""
    return FailureGroup(key[0], key[1], total, words(*key), whose(tenants), where, most, key[2])


def whose(counts: Counter[str]) -> str:
    """The tenants of so many: the first ones by name, the others as a number; empty if no name is known."""
    named = [(name, number) for name, number in counts.most_common() if name not in ("", OTHERS)]
    rest = sum(counts.values()) - sum(number for _, number in named[:TENANTS_NAMED])
    if len(counts) == 1 and named:
        return f"of {short_name(named[0][0])}"
    parts = [f"{number:,} of {short_name(name)}" for name, number in named[:TENANTS_NAMED]]
    if parts and rest:
        parts.append(f"{rest:,} of others")
    return ", ".join(parts)
