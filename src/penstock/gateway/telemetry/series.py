"""How is something counted for as little as an addition? Counters and histograms, read when they are asked for.

prometheus_client's own take a lock, check labels and turn them into text at each count: two microseconds a time, seven
times a request. All of Penstock counts on one thread, so here a count is a dict look-up and an addition; the families
that prometheus_client prints are made per scrape. A series exists from the first time that its labels are named.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from typing import TypeVar

from prometheus_client.utils import floatToGoString

from penstock.gateway.telemetry.exposition import head, labels_of, number, sample

SERIES_MAX = 20_000  # of one counter; further ones count as `other`, in all labels
ENDPOINTS_MAX = 1_000  # with series of their own: each has some twenty; discovery may find thousands
HISTOGRAMS_MAX = 5_000  # of one histogram: each has some twenty lines
OTHER = "other"
Series = TypeVar("Series")


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        assert amount >= 0, "counters only grow"
        self.value += amount


class Counter:
    """Series that only grow, by their labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, most: int = SERIES_MAX) -> None:
        self._name = name
        self._text = text
        self._names = labels
        self._most = most
        self._series: dict[tuple[str, ...], Count] = {}

    def labels(self, *values: str) -> Count:
        found = self._series.get(values)
        if found is None:
            assert len(values) == len(self._names)
            if len(self._series) >= self._most:
                values = (OTHER,) * len(values)
            found = self._series.setdefault(values, Count())
        return found

    def remove(self, *values: str) -> None:
        """The series is no longer drawn; named again, it starts at zero."""
        self._series.pop(values, None)

    def values(self) -> Iterator[tuple[tuple[str, ...], list[float]]]:
        """Each series' labels and count."""
        for labels, count in self._series.items():
            yield labels, [count.value]

    def add(self, labels: tuple[str, ...], values: Sequence[float]) -> None:
        """Add another process's counts."""
        if len(labels) == len(self._names) and len(values) == 1:
            self.labels(*labels).inc(values[0])

    def forget(self, firsts: Set[str]) -> None:
        """Remove all series whose first label is one of these."""
        _forget(self._series, firsts)

    def lines(self) -> Iterator[str]:
        name = f"{self._name}_total"
        yield head(name, self._text, "counter")
        for values, count in list(self._series.items()):
            yield sample(name, labels_of(self._names, values), count.value)


class HistogramSeries:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # one above all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.observe_all((value,))

    def observe_all(self, values: Sequence[float]) -> None:
        bounds, counts, total = self._bounds, self.counts, self.sum
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.sum = total


class Histogram:
    """How often a value was at most so much, by its labels."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float], most: int = HISTOGRAMS_MAX
    ) -> None:
        self._name = name
        self._text = text
        self._names = labels
        self._bounds = bounds
        self._most = most
        self._le = [str(floatToGoString(bound)) for bound in (*bounds, math.inf)]  # type: ignore[no-untyped-call]
        self._series: dict[tuple[str, ...], HistogramSeries] = {}

    def labels(self, *values: str) -> HistogramSeries:
        found = self._series.get(values)
        if found is None:
            assert len(values) == len(self._names)
            if len(self._series) >= self._most:
                values = (OTHER,) * len(values)
            found = self._series.setdefault(values, HistogramSeries(self._bounds))
        return found

    def values(self) -> Iterator[tuple[tuple[str, ...], list[float]]]:
        """Each series' labels, how often each bucket was met, and the sum."""
        for labels, times in self._series.items():
            yield labels, [*times.counts, times.sum]

    def add(self, labels: tuple[str, ...], values: Sequence[float]) -> None:
        """Add another process's observations."""
        if len(labels) == len(self._names) and len(values) == len(self._bounds) + 2:
            times = self.labels(*labels)
            times.counts = [have + int(more) for have, more in zip(times.counts, values, strict=False)]
            times.sum += values[-1]

    def forget(self, firsts: Set[str]) -> None:
        """Remove all series whose first label is one of these."""
        _forget(self._series, firsts)

    def lines(self) -> Iterator[str]:
        yield head(self._name, self._text, "histogram")
        for values, times in list(self._series.items()):
            yield from self._lines(self._name, self._names, values, times)

    def in_all(self, name: str) -> Iterator[str]:
        """The lines of all series together, under another name."""
        whole = HistogramSeries(self._bounds)
        for times in self._series.values():
            whole.counts = [have + more for have, more in zip(whole.counts, times.counts, strict=True)]
            whole.sum += times.sum
        yield head(name, self._text, "histogram")
        yield from self._lines(name, (), (), whole)

    def _lines(self, name: str, names: Sequence[str], values: Sequence[str], times: HistogramSeries) -> Iterator[str]:
        pairs, total = list(zip(names, values, strict=True)), 0  # `le` stands among the other labels, by its name
        before = "".join([labels_of([pair[0]], [pair[1]]) + "," for pair in sorted(pairs) if pair[0] < "le"])
        after = "".join(["," + labels_of([pair[0]], [pair[1]]) for pair in sorted(pairs) if pair[0] > "le"])
        for le, count in zip(self._le, times.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{before}le="{le}"{after}}} {number(total)}\n'
        labels = labels_of(names, values)
        yield sample(f"{name}_count", labels, total)
        yield sample(f"{name}_sum", labels, times.sum)


def _forget(series: dict[tuple[str, ...], Series], firsts: Set[str]) -> None:
    for values in [values for values in series if values[0] in firsts]:
        del series[values]
