"""Which of the requests that an engine's page shows are others', and how many are there while no page tells.

What a page shows beyond those of ours that had been sent when it was asked for is others'. Two things make that too
simple. A page may be seconds late and show ours that have gone (docs/decisions/0082): where the slots are told no more
of ours are sent than fit, so that matters little; where they are not, nothing would be sent until the page shows the
end of it. And gauges move only at the end of an engine's step: what others sent since stands at its door, where nothing
but a count of all that came in shows it.
"""

from __future__ import annotations

import math

FADES_S = 30.0  # a neighbour's load is forgotten over about a long answer's time
LEARN = 0.3  # of the difference: some three readings show what is usual
MOST_KEPT_S = 10.0  # up to twice that: engines' pages are seconds late, and stood still for 11 s


class OthersLoad:
    """Others' requests on one endpoint, as its readings show them."""

    __slots__ = ("_most", "_most_before", "_most_since_s", "_usual", "at_the_door", "none", "shown", "tries_sizes")

    def __init__(self) -> None:
        self.tries_sizes = False  #: nobody told the endpoint's slots: at times more of ours is sent than fits
        self.shown = 0.0  #: by the last reading
        self.none = False  #: all that it showed may be ours
        self.at_the_door = 0.0  #: that the last reading's gauges did not show yet
        self._usual = 0.0  # shown recently, on average
        self._most = self._most_before = 0  # of ours that were there at once in this while, and in the one before
        self._most_since_s = -math.inf  # when this while began

    def sent(self, ours: int, now: float) -> int:
        """Note that `ours` are there now. Returns the most that were there at once recently."""
        if now >= self._most_since_s + MOST_KEPT_S:
            self._most_before, self._most, self._most_since_s = self._most, 0, now
        self._most = max(self._most, ours)
        return max(self._most, self._most_before)

    def read(self, shown: float, asked_s: float, *, sent: int, ours: int, only_ours_s: float) -> None:
        """Take in how many requests a reading shows that was asked for at `asked_s`.

        `sent` of ours had been sent then, and `ours` are there now. `only_ours_s` is when a page last showed no more
        than were there of ours just then: what may have been ours, so soon after, is.
        """
        recently = only_ours_s >= asked_s - 2.0 * MOST_KEPT_S
        self.none = self.tries_sizes and recently and shown <= self.sent(ours, asked_s)
        self.shown = 0.0 if self.none else max(0.0, shown - sent)
        self._usual += LEARN * (self.shown - self._usual)

    def taken_on(self) -> None:
        """One of them is ours from now on."""
        self._usual = max(0.0, self._usual - 1.0)

    def forget(self) -> None:
        """What the readings showed is believed no longer."""
        self._usual = self.at_the_door = 0.0

    def usual(self, for_s: float) -> float:
        """Returns how many are believed to be there when nothing was read `for_s`."""
        return self._usual * math.exp(-max(0.0, for_s) / FADES_S)
