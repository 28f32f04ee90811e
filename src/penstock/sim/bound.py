"""Does the stated bound of fairness hold? Checked for each pair of tenants, whenever something changed.

For two tenants that have been backlogged together since t0, let D be the difference of their dispatched service per
weight, counted by what each request truly costs. The bound of DESIGN §4.2 says how far D may be from balance:
B = (c_max + E_f) / w_f + (c_max + E_g) / w_g, with c_max the largest single charge and E what the estimates of the
requests in flight are off by. So over any interval within, D moves by at most B at its start plus B at its end. All
intervals are checked at once: it suffices to remember the tightest limits that any start left behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

from penstock.core.actions import Dispatch
from penstock.sim.report import priced
from penstock.sim.world import Journey, Watch, World


@dataclass
class _Tenant:
    weight: float
    service: float = 0.0  # true cost of what was dispatched
    error: float = 0.0  # of the estimates of what is in flight
    charge_max: float = 0.0


@dataclass
class _Pair:
    """What has been seen since both are backlogged."""

    start: float
    highest: float = math.inf  # D may not be above this, but for B now
    lowest: float = -math.inf


class BoundWatch(Watch):
    """Counts pair checks, and those that fail."""

    def __init__(self) -> None:
        self.checks = 0
        self.violations = 0
        self.worst = 0.0  #: the largest distance D moved since both were backlogged, as a multiple of B
        self._tenants: dict[str, _Tenant] = {}
        self._errors: dict[str, float] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._changed = False

    def dispatched(self, world: World, journey: Journey, action: Dispatch) -> None:
        job = journey.job
        tenant = self._tenants.setdefault(job.stream.tenant, _Tenant(job.stream.weight))
        cost = priced(job.prompt_tokens, job.output_tokens)
        estimate = _estimate(world, action)
        tenant.service += cost
        tenant.charge_max = max(tenant.charge_max, estimate, cost)
        tenant.error += abs(cost - estimate)
        self._errors[job.id] = abs(cost - estimate)
        self._changed = True

    def ended(self, world: World, journey: Journey) -> None:  # noqa: ARG002
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
        charge = max(one.charge_max, other.charge_max)
        bound = (charge + one.error) / one.weight + (charge + other.error) / other.weight
        pair = self._pairs.setdefault(names, _Pair(difference))
        self.checks += 1
        self.worst = max(self.worst, abs(difference - pair.start) / bound)
        self.violations += not pair.lowest - bound <= difference <= pair.highest + bound
        pair.highest = min(pair.highest, difference + bound)
        pair.lowest = max(pair.lowest, difference - bound)


def _estimate(world: World, action: Dispatch) -> float:
    """What was charged for a dispatch."""
    lease = world.scheduler._leases[action.lease].lease
    assert lease is not None
    return priced(lease.prompt_tokens, lease.output_tokens)
