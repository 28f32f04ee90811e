"""An exponentially decaying amount, and its rate.

An amount added `window_s` ago counts 1/e. There is nothing to sweep, and nothing grows: one number and its time stand
for all that was ever added. The rate is unbiased from its first seconds on: in a window that has just begun, the amount
is divided by the elapsed part.
"""

from __future__ import annotations

import math
from typing import Final

WINDOW_S: Final = 10.0  # tens of requests on a small pool; drain rates had median errors of 3-10 % with it
SEEN_S_MIN: Final = 2.0  # a rate over less would take one burst for a habit


class Decaying:
    """An amount that is forgotten over a window of time."""

    __slots__ = ("_asked", "_asked_s", "_value", "at_s", "window_s")

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.at_s = 0.0  #: when it was last raised or added to
        self._value = 0.0  # then
        self._asked, self._asked_s = 0.0, 0.0  # the remainder at the last query: many are of one moment

    def at(self, now: float) -> float:
        """Returns the remainder."""
        if now != self._asked_s:
            self._asked = self._value * math.exp((self.at_s - now) / self.window_s)
            self._asked_s = now
        return self._asked

    def add(self, amount: float, now: float) -> None:
        """Add `amount` to the remainder."""
        if now != self._asked_s:
            amount += self._value * math.exp((self.at_s - now) / self.window_s)
        else:
            amount += self._asked
        self._value = self._asked = amount
        self.at_s = self._asked_s = now

    def raise_to(self, value: float, now: float) -> None:
        """Set the amount to `value` now, unless more of it remains."""
        left = self._value * math.exp((self.at_s - now) / self.window_s) if now != self._asked_s else self._asked
        self._value = self._asked = value if value > left else left
        self.at_s = self._asked_s = now


class DecayingRate:
    """How often something happens: events, or work, per second, recently."""

    __slots__ = ("_amount", "since_s")

    def __init__(self) -> None:
        self._amount = Decaying(WINDOW_S)
        self.since_s: float | None = None  #: when the first was noted; None: nothing yet

    def note(self, now: float, amount: float = 1.0) -> None:
        """Count an event, or so much work as `amount`."""
        if self.since_s is None:
            self.since_s = now
        self._amount.add(amount, now)

    def elapsed_s(self, now: float) -> float:
        """Returns for how long the rate has been measured; 0 before anything was noted."""
        return now - self.since_s if self.since_s is not None else 0.0

    def per_s(self, now: float) -> float:
        """Returns the recent rate: 0 before anything was noted, and close to 0 long after."""
        if self.since_s is None:
            return 0.0
        seen_s = max(now - self.since_s, SEEN_S_MIN)
        return self._amount.at(now) / (WINDOW_S * -math.expm1(-seen_s / WINDOW_S))
