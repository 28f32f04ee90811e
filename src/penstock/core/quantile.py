"""A high quantile of the last few hundred values, looked at again every few values: exact enough, and cheap."""

from __future__ import annotations

from collections import deque

WINDOW = 256
RECOMPUTE_EVERY = 16


class RecentQuantile:
    """The `share` quantile of the last `WINDOW` values; `default` until there are some."""

    __slots__ = ("_new", "_share", "_value", "_values")

    def __init__(self, share: float, default: float) -> None:
        self._share = share
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._value = default
        self._new = 0

    def add(self, value: float) -> None:
        self._values.append(value)
        self._new += 1
        if self._new >= RECOMPUTE_EVERY or len(self._values) < RECOMPUTE_EVERY:
            self._new = 0
            ordered = sorted(self._values)
            self._value = ordered[min(len(ordered) - 1, int(self._share * len(ordered)))]

    @property
    def value(self) -> float:
        return self._value
