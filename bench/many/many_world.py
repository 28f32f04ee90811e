"""A world of several gateways. The world of `sim/world`, with an edge between each client and the scheduler.

Clients, engines and journeys are those of any world. A request comes to one of several gateways, whose edge tells the
decider over a link; what is decided comes back the same way, and the gateway sends the request to the engine. Messages
are really written and read. Beside it, for comparison, gateways that know nothing of each other: each decides alone,
with its part of every engine's slots.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from msgspec.structs import replace

from bench.many.link import IN_PROCESS, LAN, Wire
from bench.many.processes import Deciding, EdgeLink, SimulatedGateway
from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Action
from penstock.core.values.observation import Observation
from penstock.sim.world import translate
from penstock.sim.world.workload import ArrivalSource, Job
from penstock.sim.world.world import EXPIRIES_MAX, World, WorldObserver, scheduler_for
from penstock.sim.world.world_values import EngineNode, SimulatedJourney, WorldSettings

CLOCKS_APART_S = 1e5  # monotonic clocks begin with their machine: days apart
NOTICED_S = 0.001  # until the other end sees that a process has died, beyond the line's delay
GATEWAY_DIED = "gateway_died"  # the reason for the client
SETTLES_S = 4.0  # longer than any message on any line, and than leases outlive a link


@dataclass(frozen=True)
class Kill:
    """A gateway's process dies and is restarted later."""

    gateway: int
    at_s: float
    for_s: float


@dataclass(frozen=True)
class Fleet:
    """The gateways, their lines, and the placement of requests."""

    gateways: int
    wire: Wire = LAN
    one_queue: bool = True  #: False: each decides alone, with its part of the slots
    apart: bool = False  #: the decider has no clients of its own, as with workers; else the first gateway decides
    placement: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  #: of tenants; others come to all in turn
    kills: tuple[Kill, ...] = ()


class ManyWorld(World):
    """One run with several gateways."""

    def __init__(
        self,
        settings: WorldSettings,
        sources: Iterable[ArrivalSource],
        *,
        fleet: Fleet,
        sink: Callable[[SimulatedJourney], None] | None = None,
        watch: WorldObserver | None = None,
        progress: Callable[[float, float], None] | None = None,
    ) -> None:
        super().__init__(settings, sources, sink=sink, watch=watch, progress=progress)
        self.fleet = fleet
        self._sources_closed = False
        self.most_over_slots = 0  #: the most requests that any engine ever had beyond its slots, as the engine counts
        self._random = Random(settings.seed * 7919 + 1)  # apart from the load's: that is the same for any fleet
        self.bands = [band.name for band in settings.scheduler.bands]
        self._turns: Counter[str] = Counter()
        self._carriers: dict[str, SimulatedGateway] = {}
        self.gateways = [
            SimulatedGateway(number, self, self.carry_out, skew_s=self.skew_s(), bands=self.bands)
            for number in range(fleet.gateways)
        ]
        self.deciders: list[Deciding] = []

    def skew_s(self) -> float:
        """Returns how far another process's clock is from the world's."""
        return CLOCKS_APART_S * self._random.random()

    def carry_out(self, actions: list[Action]) -> None:
        """Do what was decided about requests that a gateway carries."""
        self._tell(actions)

    # --- who decides ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._set_up()
        super()._begin()

    def _set_up(self) -> None:
        """Let those begin who decide."""
        fleet = self.fleet
        if fleet.one_queue:
            decider = self._decide("decider", self.scheduler, skew_s=self.skew_s())
            for gateway in self.gateways:
                own = gateway.number == 0 and not fleet.apart
                self._dial(gateway, decider, IN_PROCESS if own else fleet.wire)
        else:
            for gateway in self.gateways:
                scheduler = scheduler_for(self.settings)
                alone = self._decide(gateway.name, scheduler, skew_s=gateway.skew_s, part=fleet.gateways)
                self._dial(gateway, alone, IN_PROCESS)
        for kill in fleet.kills:
            self.at(kill.at_s, partial(self._kill, self.gateways[kill.gateway], kill.for_s))

    def _dial(self, gateway: SimulatedGateway, decider: Deciding, wire: Wire) -> EdgeLink:
        """Let an edge look for its decider, which takes whoever comes."""
        return EdgeLink(
            self, wire, self._random, gateway, decider, greeted=lambda _link, _hello: None, refused=lambda _link: None
        )

    def _decide(self, name: str, scheduler: Scheduler, *, skew_s: float, part: int = 1, leads: bool = True) -> Deciding:
        """Let a decider begin, with one of so many parts of every engine's slots."""
        decider = Deciding(name, self, scheduler, self.settings.scheduler, skew_s=skew_s, leads=leads)
        for node in self.nodes.values():
            spec = translate.endpoint_spec(node.spec)
            decider.serve(replace(spec, slots=max(1, spec.slots // part)))
        self.deciders.append(decider)
        return decider

    def _introduce(self, node: EngineNode, number: int) -> None:
        # A decider with a part of the slots can't go by gauges: they show what all gateways have there.
        if self.fleet.one_queue:
            self.at(self.settings.scrape_s * (number + 1) / len(self.nodes), partial(self._ask_gauges, node))

    def _heard_gauges(self, node: EngineNode, reading: Observation | None) -> None:
        for decider in self.deciders:
            if decider.decider.phase != "idle":
                decider.observed(node.spec.name, reading)

    def _probe(self, node: EngineNode) -> None:
        for decider in self.deciders:
            decider.probed(node.spec.name, alive=node.alive)
        self.at(self.now + self.settings.probe_s, partial(self._probe, node))

    def _let_time_pass(self, until: float) -> None:
        for _ in range(EXPIRIES_MAX):
            first, first_s = None, math.inf
            for decider in self.deciders:
                due_s = decider.due_s()
                if due_s is not None and due_s < first_s:
                    first, first_s = decider, due_s
            if first is None or first_s > until:
                return
            self.now = max(self.now, first_s)
            first.expire()
        raise AssertionError(f"asked to expire again and again at {self.now}")

    # --- clients ------------------------------------------------------------------------------------------------

    def _arrive(self, job: Job, source: ArrivalSource) -> None:
        if not self._sources_closed:
            super()._arrive(job, source)

    def _hand_over(self, journey: SimulatedJourney) -> None:
        job = journey.job
        gateway = self._gateway_for(job.stream.tenant)
        if gateway is None:
            super()._end(journey, "failed", GATEWAY_DIED)
            return
        request = translate.request(job)
        if request.deadline_s is not None:
            request = request.but(deadline_s=request.deadline_s + gateway.skew_s)
        journey.told = gateway.edge
        gateway.carried[job.id] = journey
        self._carriers[job.id] = gateway
        self._wait(journey, waits=True)
        self._tell(gateway.edge.arrived(request, now=gateway.now()))

    def _gateway_for(self, tenant: str) -> SimulatedGateway | None:
        """The next of those that the tenant's requests come to; one that is dead is passed over. None: all are."""
        numbers = self.fleet.placement.get(tenant) or range(len(self.gateways))
        for _ in range(len(numbers)):
            self._turns[tenant] += 1
            gateway = self.gateways[numbers[self._turns[tenant] % len(numbers)]]
            if gateway.alive:
                return gateway
        return next((gateway for gateway in self.gateways if gateway.alive), None)

    def _end(
        self, journey: SimulatedJourney, outcome: str, reason: str = "", retry_after_s: float | None = None
    ) -> None:
        del self._carriers.pop(journey.job.id).carried[journey.job.id]
        super()._end(journey, outcome, reason, retry_after_s)

    # --- engines --------------------------------------------------------------------------------------------------

    def _submit(self, journey: SimulatedJourney, node: EngineNode, life: int, lease: int) -> None:
        super()._submit(journey, node, life, lease)
        if node.spec.slots is not None:
            self.most_over_slots = max(self.most_over_slots, len(node.journeys) - node.spec.slots)

    def _step(self, node: EngineNode, life: int) -> None:
        super()._step(node, life)
        if not self._moved:
            return
        self._moved.clear()
        for gateway in self.gateways:
            if gateway.alive and gateway.edge.wants_moved(gateway.now()):
                moved = [
                    each.spec.name
                    for each in self.nodes.values()
                    if any(self._carriers[name] is gateway for name in each.journeys if name in self._carriers)
                ]
                gateway.edge.moved(moved, now=gateway.now())

    # --- the end --------------------------------------------------------------------------------------------------

    def serve_out(self, for_s: float) -> int:
        """Let nobody come any more. Returns how many requests have no end after `for_s` at most."""
        self._sources_closed = True
        self._go_on(self.now + for_s, until_idle=True)
        return len(self.journeys)

    def left_behind(self) -> int:
        """Let all clients hang up. Returns how many requests and leases are held when all have heard of it."""
        self._sources_closed = True
        for journey in list(self.journeys.values()):
            self._hang_up(journey)
        self._go_on(self.now + SETTLES_S)
        held = sum(len(gateway.edge.requests) for gateway in self.gateways)
        for decider in self.deciders:
            seen = decider.scheduler.snapshot(now=decider.now())
            held += seen.running + seen.waiting
        return held + sum(len(node.journeys) for node in self.nodes.values())

    def _go_on(self, end_s: float, *, until_idle: bool = False) -> None:
        while self._heap and self._heap[0][0] <= end_s and not (until_idle and not self.journeys):
            when, _, event = heapq.heappop(self._heap)
            self._let_time_pass(when)
            self.now = when
            event()

    # --- deaths ---------------------------------------------------------------------------------------------------

    def _kill(self, gateway: SimulatedGateway, for_s: float) -> None:
        """Its connections close: clients see it at once, and so do engines; the decider does a moment later."""
        link = gateway.link
        self._clients_lost(gateway)
        if link is not None:
            link.close()
            self.at(self.now + NOTICED_S, partial(link.to.left, link, dead=True))
            self.at(self.now + for_s, partial(self._start_again, gateway, link.to))

    def _clients_lost(self, gateway: SimulatedGateway) -> None:
        gateway.alive, gateway.link = False, None
        for journey in list(gateway.carried.values()):
            node = journey.node
            if node is not None:
                self.at(self.now + self.settings.network_s, partial(self._abort_at, node, node.life, journey.job.id))
            self._end(journey, "failed", GATEWAY_DIED)

    def _start_again(self, gateway: SimulatedGateway, decider: Deciding) -> None:
        gateway.start_again()
        self._dial(gateway, decider, self.fleet.wire)
