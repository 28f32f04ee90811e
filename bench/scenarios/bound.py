"""Does the stated bound of fairness hold? Checked for each pair of tenants, whenever something changed.

For two tenants that have been backlogged together since t0, let D be the difference of their dispatched service per
weight, counted by what each request truly costs. The bound (docs/design.md#fairness) on how far D is from balance:
B = (c_max + E_f) / w_f + (c_max + E_g) / w_g, with c_max the largest single charge and E what the estimates of the
requests in flight are off by. Over any interval within, D moves by at most B at its start plus B at its end. All
intervals are checked at once: it suffices to remember the tightest limits that any start left behind.

Three readings of the bound are counted. *Stated* adds K * c_max: K requests may pass one that does not fit, or waits
for a better endpoint. *Strict* does not. *Peak* is strict, with the most that was in flight since t0 for E: a
settlement takes its error out of E at once, while the dispatches that make up for it are still to come. What is cached
is not known here: this is for worlds where cached tokens cost as much as others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

from penstock.core.values.actions import Dispatch
from penstock.core.values.settings import PASSED_MAX
from penstock.sim.world.report import priced
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import SimulatedJourney


@dataclass
class _Tenant:
    weight: float
    service: float = 0.0  # true cost of what was dispatched
    error: float = 0.0  # of the estimates of what is in flight
    error_peak: float = 0.0
    charge_max: float = 0.0


@dataclass
class _Limits:
    """How far D may be, by all that was seen since both tenants are backlogged."""

    highest: float = math.inf
    lowest: float = -math.inf

    def broken(self, difference: float, bound: float) -> bool:
        """Returns True if D is outside of the limits, and lets D and its `bound` narrow them."""
        broken = not self.lowest - bound <= difference <= self.highest + bound
        self.highest = min(self.highest, difference + bound)
        self.lowest = max(self.lowest, difference - bound)
        return broken


@dataclass
class _Pair:
    start: float
    limits: dict[str, _Limits]


READINGS = ("stated", "strict", "peak")


class BoundWatch(WorldObserver):
    """Counts checks of pairs of tenants, and those that fail."""

    def __init__(self) -> None:
        self.checks = 0
        self.failed = dict.fromkeys(READINGS, 0)
        self.widest = dict.fromkeys(READINGS, 0.0)  #: how far D moved since both were backlogged, over B
        self._tenants: dict[str, _Tenant] = {}
        self._errors: dict[str, float] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._changed = False

    def dispatched(self, world: World, journey: SimulatedJourney, action: Dispatch) -> None:
        job = journey.job
        tenant = self._tenants.setdefault(job.stream.tenant, _Tenant(job.stream.weight))
        cost = priced(job.prompt_tokens, job.output_tokens)
        estimate = _estimate(world, action)
        tenant.service += cost
        tenant.charge_max = max(tenant.charge_max, estimate, cost)
        tenant.error += abs(cost - estimate)
        tenant.error_peak = max(tenant.error_peak, tenant.error)
        self._errors[job.id] = abs(cost - estimate)
        self._changed = True

    def ended(self, world: World, journey: SimulatedJourney) -> None:  # noqa: ARG002
        error = self._errors.pop(journey.job.id, None)
        if error is not None:
            self._tenants[journey.job.stream.tenant].error -= error
            self._changed = True

    def settled(self, world: World) -> None:
        if not self._changed:
            return
        self._changed = False
        backlogged = [name for name in self._tenants if world.waiting[name] > 0]
        together = set(combinations(backlogged, 2))
        for names in [names for names in self._pairs if names not in together]:
            del self._pairs[names]
        for names in combinations(backlogged, 2):
            self._check(names)

    def _check(self, names: tuple[str, str]) -> None:
        one, other = (self._tenants[name] for name in names)
        difference = one.service / one.weight - other.service / other.weight
        pair = self._pairs.get(names)
        if pair is None:
            pair = self._pairs[names] = _Pair(difference, {reading: _Limits() for reading in READINGS})
        charge = max(one.charge_max, other.charge_max)
        weights = 1 / one.weight + 1 / other.weight
        strict = charge * weights + one.error / one.weight + other.error / other.weight
        peak = charge * weights + one.error_peak / one.weight + other.error_peak / other.weight
        bounds = {
            "stated": strict + PASSED_MAX * charge * weights,
            "strict": strict,
            "peak": peak,
        }
        self.checks += 1
        for reading, bound in bounds.items():
            self.widest[reading] = max(self.widest[reading], abs(difference - pair.start) / bound)
            self.failed[reading] += pair.limits[reading].broken(difference, bound)


def _estimate(world: World, action: Dispatch) -> float:
    """Returns what was charged for a dispatch."""
    entry = world.scheduler.inspect().leases[action.lease]
    return priced(entry.prompt_tokens, entry.output_tokens)
