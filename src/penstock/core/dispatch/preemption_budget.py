"""How much slot time may be lost to preemption: a token bucket in slot seconds.

It fills with `share` of the slots' time, up to that of `WINDOW_S`, and a preemption takes the time since the lease was
granted. Allowed while it is not in debt, so that a long lease can be preempted, too: the next ones wait longer.
"""

from __future__ import annotations

WINDOW_S = 60.0  # idle for that long, the bucket is full


class PreemptionBudget:
    """The bucket, the leases of preemptible bands, and what was lost so far."""

    __slots__ = ("_at_s", "_left_s", "_share", "held", "lost_s_total", "on")

    def __init__(self, share: float, *, bands: bool) -> None:
        self._share = share
        self.on = bands and share > 0  #: some band is preemptible, and something may be lost
        self.held: dict[int, str] = {}  #: leases that were granted as preemptible, and their models
        self.lost_s_total = 0.0  #: slot seconds lost so far
        self._left_s: float | None = None  # None: it was not used yet, and is full
        self._at_s = 0.0

    def follow(self, share: float, *, bands: bool) -> None:
        """Use another share from now on; the debt stays."""
        self._share = share
        self.on = bands and share > 0

    def takeable(self, model: str) -> int:
        """Returns how many slots could be taken from whole answers of preemptible bands for `model`."""
        if not self.on or not self.held or (self._left_s or 0.0) < 0.0:
            return 0
        return sum([held == model for held in self.held.values()])

    def allows(self, now: float, slots: int) -> bool:
        """True if another lease may be preempted in a pool of `slots`."""
        full_s = self._share * slots * WINDOW_S
        left_s = full_s if self._left_s is None else self._left_s + self._share * slots * (now - self._at_s)
        self._left_s, self._at_s = min(left_s, full_s), now
        return self._left_s >= 0.0

    def lost(self, slot_s: float) -> None:
        """Note that a lease was preempted after `slot_s` seconds."""
        self.lost_s_total += slot_s
        self._left_s = (self._left_s or 0.0) - slot_s
