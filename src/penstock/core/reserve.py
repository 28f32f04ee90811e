"""How many slots are kept free for flows under their fair share, so that they need not wait for one.

A heavy flow takes each slot the moment it frees; who comes now and then would always wait for the next. Kept slots
are a stock: an arrival of a light flow takes one, the next slot that frees refills it. With arrivals at rate a and
slots freeing at rate m, the stock of a base-stock system is empty with probability (a/m)^R (the birth-death chain of
an M/M/1 queue read from the other end), so R = log(miss) / log(a/m) slots keep the share of light arrivals that find
none at `miss`. That grows slowly: one in a hundred needs 2 slots at a/m = 0.1 and 4 at 0.3. No such arrivals, no
reserve. Square-root staffing (a/m + beta * sqrt(a/m)) gives nearly the same numbers for large stocks, but rounds badly
for the small ones that matter here.

What is kept free costs throughput, so `share_max` bounds it.
"""

from __future__ import annotations

import math

RATE_WINDOW_S = 10.0
MISS = 0.02  # a light arrival in fifty waits for a slot: keeps the wait out of the p99 with room for other noise
WEIGHT_KEPT_S = 30.0
KEPT_FOR_S = 0.05  # rates over ten seconds change by less than a hundredth in that time
SHARE_MAX = 0.25
MODELS_MAX = 1_000  # whose rates are remembered: an endpoint that serves any name lets callers choose them


class Rate:
    """Events per second with exponential forgetting."""

    __slots__ = ("_at", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def note(self, now: float) -> None:
        self._rate = self.per_s(now) + 1.0 / RATE_WINDOW_S
        self._at = now

    def per_s(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / RATE_WINDOW_S)


def slots_reserved(arrivals_per_s: float, freed_per_s: float, slots: int) -> int:
    """Slots to keep free out of `slots`."""
    if arrivals_per_s * RATE_WINDOW_S < 0.5:  # not even one lately
        return 0
    ratio = min(arrivals_per_s / freed_per_s if freed_per_s > 0 else 1.0, 0.9)
    wanted = math.ceil(math.log(MISS) / math.log(ratio)) if ratio > 0 else 0
    return min(wanted, int(slots * SHARE_MAX))


class Reserve:
    """Measures, per model, how often light flows come and how often slots free; says how many slots to keep."""

    def __init__(self, share: float | None) -> None:
        self._share = share  # None: measured
        self._arrivals: dict[str, Rate] = {}
        self._freed: dict[str, Rate] = {}
        self._kept: dict[str, int] = {}  # what was computed for `_slots` slots, good until `_until_s`
        self._weight = 0.0
        self._weight_at_s = 0.0
        self._slots = 0
        self._until_s = -math.inf

    def weight_seen(self, weight: float, now: float) -> None:
        """So much weight of flows is active. Flows come and go; who came lately counts as about to come again."""
        self._weight = max(weight, self.weight(now))
        self._weight_at_s = now

    def weight(self, now: float) -> float:
        """The active weight lately, fading."""
        return self._weight * math.exp((self._weight_at_s - now) / WEIGHT_KEPT_S)

    def arrived(self, model: str, now: float) -> None:
        """A request came whose flow had nothing waiting and less than its share in flight."""
        _of(self._arrivals, model).note(now)

    def freed(self, model: str, now: float) -> None:
        """A lease ended."""
        _of(self._freed, model).note(now)

    def kept(self, model: str, slots: int, now: float) -> int:
        """Slots that only flows under their fair share may use, of all the slots there are for the model."""
        if self._share is not None:
            return int(slots * self._share)
        if now >= self._until_s or slots != self._slots:
            self._until_s, self._slots = now + KEPT_FOR_S, slots
            self._kept.clear()
        kept = self._kept.get(model)
        if kept is None:
            arrivals = self._arrivals.get(model)
            freed = self._freed.get(model)
            arrivals_per_s = arrivals.per_s(now) if arrivals is not None else 0.0
            kept = slots_reserved(arrivals_per_s, freed.per_s(now) if freed is not None else 0.0, slots)
            self._kept[model] = kept
        return kept


def _of(rates: dict[str, Rate], model: str) -> Rate:
    """A model's rate; the one that was not noted for the longest time makes room for a new one."""
    rate = rates.pop(model, None) or Rate()
    rates[model] = rate
    if len(rates) > MODELS_MAX:
        del rates[next(iter(rates))]
    return rate
