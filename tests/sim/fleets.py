"""Gateways that elect who decides, and are treated badly: worlds drawn from a seed, and what must hold in each.

Four gateways, small engines, clients that hang up and deadlines that pass; processes die, gateways are cut off, the
store vanishes and forgets, several of it at once. The world is looked at after every event, and every scheduler proves
itself after every fact (`CheckedScheduler`).
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from bench.many.elected_world import ElectedWorld, Harm, What
from bench.many.link import LAN, WAN, Wire
from bench.many.many_world import GATEWAY_DIED, Fleet
from bench.scenarios.base import BANDS
from bench.workload import Lognormal
from penstock.core.scheduler import SchedulerSettings
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.world.workload import InFlight, Poisson, Stream, sources
from penstock.sim.world.world_values import EngineSpec, WorldSettings

GATEWAYS = 4
QUIET_S = 20.0  # at the end nothing more goes wrong: then all is one queue again
SETTLED_S = 12.0  # after the last cut: leases that outlived their links are given back, who was alone is not any more
FORGOT_S = 3.0  # a store that lost the very write that elected one lets another be elected: until the first looks again
SERVED_OUT_S = 60.0
LINES = (LAN, WAN, Wire(0.0, 0.3, lost=0.02))


def _harms(random: Random, until_s: float) -> Iterable[Harm]:
    at_s = 4.0
    while at_s < until_s:
        what = random.choice([What.DIES, What.DIES, What.CUT_OFF, What.CUT_OFF, What.STORE_GONE, What.STORE_FORGETS])
        for_s = min(random.choice([0.2, 2.0, 4.0, 9.0]), until_s - at_s)
        yield Harm(what, at_s, for_s, random.choice([None, *range(GATEWAYS)]))
        at_s += random.expovariate(0.3)


class WatchedWorld(ElectedWorld):
    """It is looked at after every event."""

    looks = 0
    uncertain_s = 0.0  #: when a cut, or what followed from one, was last seen

    def _let_time_pass(self, until: float) -> None:
        super()._let_time_pass(until)
        self.look()

    def look(self) -> None:
        """Assert what must hold at any time."""
        self.looks += 1
        carried = [name for member in self.members for name in member.carried]
        assert len(carried) == len(self.journeys), "each request is at one gateway"
        assert self.journeys.keys() == set(carried)
        for member in self.members:
            held = {each.request.id for each in member.edge.requests.values()} if member.alive else set()
            assert held == member.carried.keys(), f"{member.name}'s edge holds what its clients wait for"
        alone = any(member.alone for member in self.members if member.alive)
        forgot = self.now < self.forgot_s + FORGOT_S
        if alone or forgot or any(member.cut_off for member in self.members):
            self.uncertain_s = self.now
        if self.now > self.uncertain_s + SETTLED_S:
            for node in self.nodes.values():
                assert len(node.journeys) <= (node.spec.slots or 0), f"{node.spec.name} runs {len(node.journeys)}"
        leads = [
            member.deciding.decider.epoch
            for member in self.members
            if member.alive and not member.alone and member.deciding.decider.phase == "deciding"
        ]
        assert forgot or len(leads) == len(set(leads)), f"two decide for all in one epoch of {leads}"
        assert self.begun_twice == 0, "an answer began again"


def fleet(seed: int, *, duration_s: float = 60.0, checked: bool = True) -> WatchedWorld:
    """Returns a world that has not begun; what is decided in it does not depend on `checked`."""
    random = Random(seed)
    config = EngineConfig(step_s=0.05, max_num_seqs=random.choice([4, 8]), kv_blocks=4096)
    engines = tuple(
        EngineSpec(f"engine-{number}", config, config.max_num_seqs) for number in range(random.choice([1, 2]))
    )
    slots = len(engines) * config.max_num_seqs
    per_s = slots / 1.0  # an answer of twenty tokens takes a second
    kind = (Lognormal(200, 800), Lognormal(20, 80, 200))
    streams = [
        Stream(
            f"t{number}",
            Poisson(random.choice([0.2, 0.5]) * per_s),
            *kind,
            band=random.randrange(3),
            streamed=random.random() < 0.7,
            deadline_s=random.choice([None, None, 3.0, 8.0]),
            hang_up_share=random.choice([0.0, 0.2]),
            hang_up_s=2.0,
        )
        for number in range(3)
    ]
    streams.append(Stream("closed", InFlight(slots), *kind, band=1))
    settings = WorldSettings(
        scheduler=SchedulerSettings(bands=BANDS, wait_s_max=20.0, stale_after_s=2.0),
        engines=engines,
        seed=seed,
        duration_s=duration_s,
        checked=checked,
    )
    harms = tuple(_harms(random, duration_s - QUIET_S))
    return WatchedWorld(
        settings, sources(tuple(streams), seed), fleet=Fleet(GATEWAYS, random.choice(LINES)), harms=harms
    )


def prove(world: WatchedWorld) -> None:
    """Run it to its end, and assert that nothing was lost, done twice or left behind."""
    world.run()
    assert world.deciders_followed[-1][1] == 1, "it is one queue again"
    world.done = [journey for journey in world.done if journey.outcome]  # those under way are given at their ends
    assert world.serve_out(SERVED_OUT_S) == 0, f"{list(world.journeys)} have no end"
    ends = [journey.job.id for journey in world.done]
    assert len(ends) == len(set(ends)), "a request ended twice"
    failed = {journey.reason for journey in world.done if journey.outcome == "failed"}
    assert failed <= {GATEWAY_DIED}, failed
    assert world.left_behind() == 0


__all__ = ["GATEWAYS", "WatchedWorld", "fleet", "prove"]
