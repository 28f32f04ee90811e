"""One page of metrics for all workers: each reports the differences since its last report.

The first process adds them to its own series, so `/metrics` counts for the whole gateway. The counts of a worker's last
second are lost when it is killed.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.gateway.telemetry.metrics import Metrics
from penstock.share.messages import Counted

Row = tuple[int, list[str], list[float]]
FAILURES, USAGE, TIMES = -1, -2, -3  # failures and times by tenant, and the ledger of use, which are no series


class CountsTaker:
    """A worker's series as last reported."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._reported: dict[tuple[int, tuple[str, ...]], list[float]] = {}

    def take(self) -> Counted | None:
        """Returns the counts since the last report; None: there are none."""
        rows: list[Row] = []
        self._metrics.events.fold()
        for number, series in self._metrics.counted.items():
            for labels, values in series.values():
                key = (number, labels)
                before = self._reported.get(key)
                if before == values:
                    continue
                if before is None or any(was > now for was, now in zip(before, values, strict=True)):
                    before = [0.0] * len(values)  # a new series, or one that was reset
                self._reported[key] = values
                added = [now - was for was, now in zip(before, values, strict=True)]
                if any(added):
                    rows.append((number, list(labels), added))
        rows += [(FAILURES, labels, values) for labels, values in self._metrics.failures.told()]
        rows += [(TIMES, labels, values) for labels, values in self._metrics.times.told()]
        rows += self._usage()
        return Counted(rows) if rows else None

    def take_usage(self) -> Counted | None:
        """Returns the use since the last report; None: there is none."""
        rows = self._usage()
        return Counted(rows) if rows else None

    def _usage(self) -> list[Row]:
        return [(USAGE, labels, values) for labels, values in self._metrics.usage.told()]


def add(metrics: Metrics, rows: Iterable[Row]) -> None:
    """Add the counts of a worker."""
    counted = metrics.counted
    for number, labels, values in rows:
        if number == FAILURES:
            metrics.failures.add(labels, values)
        elif number == TIMES:
            metrics.times.add(labels, values)
        elif number == USAGE:
            metrics.usage.add(labels, values)
        elif (series := counted.get(number)) is not None:
            series.add(tuple(labels), values)
