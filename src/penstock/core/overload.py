"""How long would a caller wait: the estimate behind Retry-After.

Little's law backwards: what is ahead in the queue, divided by the rate at which the queue has been drained lately.
The rate is an average over about `RATE_WINDOW_S` with exponential forgetting, so it follows a change of load and
does not jump.
"""

from __future__ import annotations

import math

RATE_WINDOW_S = 10.0  # some tens of requests on a small pool; median error 3-10 % in measurements with 10 s
RETRY_AFTER_UNKNOWN_S = 5.0  # nothing was ever dispatched: an engine that loads, or one that is gone
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0  # SDKs ignore longer ones


class DrainRate:
    """Dispatches per second, forgetting exponentially."""

    __slots__ = ("_at", "_count", "_since")

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0
        self._since: float | None = None

    def dispatched(self, now: float) -> None:
        if self._since is None:
            self._since = self._at = now
        self._count = self._decayed(now) + 1.0
        self._at = now

    def per_s(self, now: float) -> float | None:
        """The rate, None as long as it is unknown."""
        if self._since is None:
            return None
        # Over a window that has only just begun, the count is compared with what has elapsed of it.
        elapsed_s = max(now - self._since, 1.0)
        window_s = RATE_WINDOW_S * -math.expm1(-elapsed_s / RATE_WINDOW_S)
        rate = self._decayed(now) / window_s
        return rate if rate > 1e-3 else None

    def _decayed(self, now: float) -> float:
        return self._count * math.exp((self._at - now) / RATE_WINDOW_S)


def estimated_wait_s(ahead: int, rate_per_s: float | None) -> float:
    """Seconds until `ahead` requests are gone."""
    return RETRY_AFTER_UNKNOWN_S if rate_per_s is None else ahead / rate_per_s


def retry_after_s(wait_s: float, jitter: float) -> float:
    """What to tell a refused caller. `jitter` in 0..1 spreads those who were refused together."""
    return min(max(wait_s * (1.0 + 0.25 * jitter), RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)
