"""Fairness of a run between the tenants of a trace.

Measures of service (a prompt token 1, an output token 2): *service gap*, the most by which two tenants drifted apart
while both had requests queued; *Jain's index* over each minute, of the tenants that waited throughout; and the TTFT of
the lighter half.
"""

from __future__ import annotations

import math
from array import array
from itertools import combinations

import msgspec

from penstock.sim.world.report import jain, percentile, priced
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import SimulatedJourney

WINDOW_S = 60
COMPARED_MAX = 64  # tenants: pairs grow with their square


class TenantFigures(msgspec.Struct, frozen=True):
    """The figures of a run about its tenants."""

    count: int
    service_gap_tokens: float
    jain_worst: float  #: NaN if no two tenants waited through one minute
    jain_mean: float
    light_ttft_p50_s: float
    light_ttft_p99_s: float
    priced_tokens_per_s: float


class TenantWatch(WorldObserver):
    """Samples waiting tenants and their service every second."""

    def __init__(self) -> None:
        self._ttft_s: dict[str, array[float]] = {}
        self._pairs: dict[tuple[str, str], tuple[float, float]] = {}  # lowest and highest difference while both wait
        self._gap = 0.0
        self._since: dict[str, int] = {}  # waits in every sample since this one
        self._window: dict[str, float] = {}  # service at the window's start
        self._samples = 0
        self._jains: list[float] = []
        self._priced = 0.0

    def ended(self, world: World, journey: SimulatedJourney) -> None:  # noqa: ARG002
        if journey.first_s is not None:
            self._ttft_s.setdefault(journey.job.stream.tenant, array("d")).append(journey.first_s - journey.job.at_s)

    def second(self, world: World) -> None:
        self._samples += 1
        service = {tenant: priced(*done) for (tenant, _), done in world.samples[-1][1].items()}
        self._priced = sum(service.values())
        waiting = sorted(tenant for tenant, count in world.waiting.items() if count)[:COMPARED_MAX]
        for tenant in [x for x in self._since if x not in waiting]:
            del self._since[tenant]
        for tenant in waiting:
            self._since.setdefault(tenant, self._samples)
        self._compare(waiting, service)
        if self._samples % WINDOW_S == 0:
            self._end_window(service)

    def _compare(self, waiting: list[str], service: dict[str, float]) -> None:
        pairs, self._pairs = self._pairs, {}
        for pair in combinations(waiting, 2):
            apart = service.get(pair[0], 0.0) - service.get(pair[1], 0.0)
            low, high = pairs.get(pair, (apart, apart))
            self._gap = max(self._gap, apart - low, high - apart)
            self._pairs[pair] = (min(low, apart), max(high, apart))

    def _end_window(self, service: dict[str, float]) -> None:
        started = self._samples - WINDOW_S
        done = [
            service.get(tenant, 0.0) - self._window.get(tenant, 0.0)
            for tenant, since in self._since.items()
            if since <= max(1, started)
        ]
        if len(done) > 1 and started:
            self._jains.append(jain(done))
        self._window = service

    def tenants(self, now: float) -> TenantFigures | None:
        """Returns the figures; None if there is only one tenant."""
        if len(self._ttft_s) < 2:
            return None
        by_requests = sorted(self._ttft_s, key=lambda tenant: (len(self._ttft_s[tenant]), tenant))
        light = [x for tenant in by_requests[: len(by_requests) // 2] for x in self._ttft_s[tenant]]
        return TenantFigures(
            count=len(by_requests),
            service_gap_tokens=self._gap,
            jain_worst=min(self._jains, default=math.nan),
            jain_mean=sum(self._jains) / len(self._jains) if self._jains else math.nan,
            light_ttft_p50_s=percentile(light, 0.5),
            light_ttft_p99_s=percentile(light, 0.99),
            priced_tokens_per_s=self._priced / now if now else math.nan,
        )
