"""How do the counts of all workers become one page? Each worker says what it counted since it last said so.

Sums of sums: the decider adds them to its own series, so `/metrics` is that of the gateway, whoever counted. What a
worker counted in the second before it was killed is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.gateway.telemetry.metrics import Metrics
from penstock.share.messages import Counted

Row = tuple[int, list[str], list[float]]
FAILURES = -1  # the number of what is no series: what ended badly, and whose it was


class CountsTaker:
    """Remembers what was said of each series."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._said: dict[tuple[int, tuple[str, ...]], list[float]] = {}

    def take(self) -> Counted | None:
        """What has been counted since; None: nothing."""
        rows: list[Row] = []
        for number, series in enumerate(self._metrics.counted):
            for labels, values in series.values():
                key = (number, labels)
                before = self._said.get(key)
                if before == values:
                    continue
                if before is None or any(was > now for was, now in zip(before, values, strict=True)):
                    before = [0.0] * len(values)  # it is new, or began again
                self._said[key] = values
                added = [now - was for was, now in zip(before, values, strict=True)]
                if any(added):
                    rows.append((number, list(labels), added))
        rows += [(FAILURES, labels, values) for labels, values in self._metrics.failures.told()]
        return Counted(rows) if rows else None


def add(metrics: Metrics, rows: Iterable[Row]) -> None:
    """Add what a worker counted."""
    counted = metrics.counted
    for number, labels, values in rows:
        if number == FAILURES:
            metrics.failures.add(labels, values)
        elif 0 <= number < len(counted):
            counted[number].add(tuple(labels), values)
