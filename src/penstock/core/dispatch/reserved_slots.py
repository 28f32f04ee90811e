"""How many slots are reserved for flows under their fair share, so that their requests need not wait for one?

A flow over its share takes each slot the moment it frees; a request that comes now and then would always wait for the
next. Reserved slots are a stock: a request of a flow under its share takes one, the next slot that frees refills it. It
has to last until then. In the time t_k until the k-th next slot frees, a*t_k such requests are expected, give or take
their square root; k-1 slots have freed before. So max over k of a*t_k + 3*sqrt(a*t_k) - (k-1) slots are reserved
(square-root staffing over the time to replenishment): many when the answers in flight have long to go, none when
several are about to end, and none when no such requests come.

Reserved slots cost throughput, so `SHARE_MAX` bounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.core.queueing.fair_tree import Node
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.util.decaying import WINDOW_S, Decaying, DecayingRate

DEVIATIONS = 3.0  # of a Poisson stream: few arrivals in a hundred may miss, and small means have long tails
UNDER_SHARE_MIN = 0.5  # of a request within the window: less is none
FREES_MAX = 8  # slots about to free that are looked ahead to
WEIGHT_FADES_S = 30.0
REVIEW_S = 0.05  # rates over ten seconds change by less than a hundredth in that time
SHARE_MAX = 0.25
MODELS_MAX = 1_000  # with remembered rates: an endpoint that serves any name lets clients choose them


def slots_reserved(arrivals_per_s: float, frees_s: Sequence[float], slots: int) -> int:
    """Returns how many of `slots` to reserve. `frees_s`: in how many seconds the next slots will free, in order."""
    if arrivals_per_s * WINDOW_S < UNDER_SHARE_MIN:
        return 0
    wanted = 0.0
    for freed_before, after_s in enumerate(frees_s):
        expected = arrivals_per_s * after_s
        wanted = max(wanted, expected + DEVIATIONS * math.sqrt(expected) - freed_before)
    return min(math.ceil(wanted), int(slots * SHARE_MAX))


class ReservedSlots:
    """Measures, per model, the rates of under-share requests and of freed slots, and returns the slots to reserve."""

    def __init__(self, share: float | None) -> None:
        self.share = share  # None: measured
        self._arrivals: BoundedMap[str, DecayingRate] = BoundedMap(MODELS_MAX)
        self._freed: BoundedMap[str, DecayingRate] = BoundedMap(MODELS_MAX)
        self._counts: dict[str, tuple[int, int, float]] = {}  # how many, computed for so many slots, good until
        self._weights: dict[Node, Decaying] = {}  # by the parent of the flows
        self.may_count = share is not None  #: False: no slot is reserved, because no request needed one yet

    def reconfigured(self, share: float | None) -> None:
        """Reserve this `share` of the slots from now on; None: as measured."""
        self.share = share
        self.may_count = self.may_count or share is not None
        self._weights = {}  # trees may be others

    def weight_seen(self, parent: Node, weight: float, now: float) -> None:
        """Note that flows of so much `weight` are active below a `parent`.

        One that came recently counts as about to come again.
        """
        seen = self._weights.get(parent)
        if seen is None:
            seen = self._weights[parent] = Decaying(WEIGHT_FADES_S)
        seen.raise_to(weight, now)

    def weight(self, parent: Node, now: float) -> float:
        """Returns the active weight of recent flows below a `parent`, fading."""
        seen = self._weights.get(parent)
        return 0.0 if seen is None else seen.at(now)

    def arrived(self, model: str, now: float) -> None:
        """Note that a request of an under-share flow for `model` came while others waited."""
        self._arrivals.renewed_or(model, DecayingRate).note(now)
        self.may_count = True

    def freed(self, model: str, now: float) -> None:
        """Note that a lease of `model` ended."""
        self._freed.renewed_or(model, DecayingRate).note(now)

    def under_share_come(self, model: str, now: float) -> bool:
        """True if requests of under-share flows came recently, while others waited; never if a fixed share is set."""
        if self.share is not None:
            return False
        arrivals = self._arrivals.get(model)
        return arrivals is not None and arrivals.per_s(now) * WINDOW_S >= UNDER_SHARE_MIN

    def freed_per_s(self, model: str, now: float) -> float:
        """Returns how many slots recently freed per second."""
        freed = self._freed.get(model)
        return freed.per_s(now) if freed is not None else 0.0

    def count(self, model: str, slots: int, frees_s: Callable[[str, float], Sequence[float]], now: float) -> int:
        """Returns how many of the model's `slots` only flows under their fair share may use."""
        if self.share is not None:
            return int(slots * self.share)
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            return 0
        count, of_slots, until_s = self._counts.get(model, (0, -1, 0.0))
        if now >= until_s or slots != of_slots:
            count = slots_reserved(arrivals.per_s(now), frees_s(model, now), slots)
            if len(self._counts) >= MODELS_MAX:
                self._counts.clear()
            self._counts[model] = (count, slots, now + REVIEW_S)
        return count

    def last_count(self, model: str) -> int:
        """Returns how many slots were reserved when that was last asked."""
        return self._counts.get(model, (0, 0, 0.0))[0]
