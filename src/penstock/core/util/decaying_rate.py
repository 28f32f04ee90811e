"""How often does something happen: events, or work, per second, forgetting exponentially.

Fair from its first seconds on: over a window that has only just begun, what was counted is compared with what has
elapsed of it.
"""

from __future__ import annotations

import math

WINDOW_S = (
    10.0  # some tens of requests on a small pool; drain rates had median errors of 3-10 % in measurements with it
)
SEEN_S_MIN = 2.0  # a rate over less would take one burst for a habit


class DecayingRate:
    """One rate."""

    __slots__ = ("_at", "_count", "_since")

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0
        self._since: float | None = None

    def note(self, now: float, amount: float = 1.0) -> None:
        if self._since is None:
            self._since = self._at = now
        self._count = self._count * math.exp((self._at - now) / WINDOW_S) + amount
        self._at = now

    @property
    def measured(self) -> bool:
        """Whether anything was noted yet."""
        return self._since is not None

    def elapsed_s(self, now: float) -> float:
        """For how long it has been measured."""
        return now - self._since if self._since is not None else 0.0

    def per_s(self, now: float) -> float:
        """The rate of late; 0 before anything was noted, and next to it long after."""
        if self._since is None:
            return 0.0
        seen_s = max(now - self._since, SEEN_S_MIN)
        return self._count * math.exp((self._at - now) / WINDOW_S) / (WINDOW_S * -math.expm1(-seen_s / WINDOW_S))
