"""Losses when the leader dies, or gateways can't reach each other, or the store.

Four gateways elect who decides. Four tenants with equal weights, each at two of the gateways, want more than two
engines of 100 slots can do: 200 streams, and 100 requests that wait. Beside them comes a light tenant, whose requests
wait for nothing but a slot: what one waits longer than the same request where nothing happens is what the harm costs.
Counted is what clients see (answers that break, begin again or never end) and engines (requests beyond their slots).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bench.many.elected_world import ALONE_AFTER_S, ElectedWorld, Harm, What
from bench.many.link import LAN
from bench.many.many_world import GATEWAY_DIED, Fleet
from bench.report import Measure, ReportLine, RunResult, at_most, service_between
from bench.scenarios.base import STANDARD, Run, Setup, Variant, engines, run
from bench.workload import Lognormal
from penstock.sim.world.report import jain
from penstock.sim.world.workload import Constant, InFlight, Poisson, Stream

TENANTS = "abcd"
LIGHT = "light"
PLACEMENT = {"a": (0, 1), "b": (1, 2), "c": (2, 3), "d": (3, 0)}
SLOTS = 100
BACKLOG = 75  # requests of each tenant under way: 300 at 200 slots
KIND = (Constant(512), Lognormal(300, 800))
LIGHT_KIND = (Constant(512), Lognormal(100, 300))
LIGHT_PER_S = 1.0
WARM_S = 20.0
QUIET_S = 45.0
EVERY_S = 15.0  # between two deaths of deciders: 20 of them
BACK_S = 5.0  # until a process that died is there again
SETTLED_S = 5.0
CUT_S = 20.0
SERVED_OUT_S = 120.0  # longer than any answer takes


def harmed(setup: Setup, name: str, harms: Iterable[Harm]) -> Run:
    """Run it with these harms. Returns what became of it; its world is an `ElectedWorld`."""
    streams = (
        *(Stream(tenant, InFlight(BACKLOG), *KIND, band=STANDARD) for tenant in TENANTS),
        Stream(LIGHT, Poisson(LIGHT_PER_S), *LIGHT_KIND, band=STANDARD),
    )
    variant = Variant(name, engines=engines(2, slots=SLOTS), wait_s_max=600.0)
    kind = partial(ElectedWorld, fleet=Fleet(4, LAN, placement=PLACEMENT), harms=tuple(harms))
    return run(setup, variant, streams, warm_s=min(WARM_S, setup.duration_s / 6), kind=kind)


def _jain(done: Run, from_s: float, to_s: float) -> float:
    service = service_between(done.world.samples, from_s, to_s)
    return jain([service.get((tenant, ""), 0.0) for tenant in TENANTS])


def _waits_s(done: Run) -> dict[str, float]:
    """How long each light request waited until it was sent to an engine."""
    light = done.journeys(LIGHT.__eq__)
    return {j.job.id: j.dispatched_s - j.job.at_s for j in light if j.dispatched_s is not None}


def _extra_wait_s(done: Run, calm: Run, gateways: frozenset[int]) -> float:
    """The longest time that a light request at these gateways waited longer than the same one where nothing happens."""
    usual, came_to = _waits_s(calm), _world(done).came_to
    waits = {name: waited_s for name, waited_s in _waits_s(done).items() if came_to[name] in gateways}
    return max((waited_s - usual[name] for name, waited_s in waits.items() if name in usual), default=0.0)


def _world(done: Run) -> ElectedWorld:
    assert isinstance(done.world, ElectedWorld)
    return done.world


def _silence_s(done: Run) -> float:
    """The longest time from a death until a request was sent to an engine again."""
    world = _world(done)
    deaths = [harm.at_s for harm in world.harms if harm.what is What.DIES]
    return max(next((at_s for at_s in world.sent_s if at_s > died_s), done.end_s) - died_s for died_s in deaths)


def _kept_whole(world: ElectedWorld) -> list[Measure]:
    """What clients must not see. The world is at its end after this."""
    failed = sum(j.outcome == "failed" and j.reason != GATEWAY_DIED for j in world.done)
    refused = sum(j.outcome in ("rejected", "evicted") for j in world.done)
    return [
        Measure("requests that failed at a gateway that lives", failed, at_most(0)),
        Measure("requests that were refused", refused, at_most(0)),
        Measure("answers that began twice", world.begun_twice, at_most(0)),
        Measure("requests without an end", world.serve_out(SERVED_OUT_S), at_most(0)),
        Measure("held by nobody at the end", world.left_behind(), at_most(0)),
    ]


ALL = frozenset(range(4))


def decider_death(setup: Setup) -> RunResult:
    """The decider dies every 15 s, and between its deaths another gateway does, by turns."""
    quiet_s = min(QUIET_S, setup.duration_s / 4)  # before the first death, and after the last
    last_s = setup.duration_s - quiet_s
    harms: list[Harm] = []
    for number in range(int((last_s - quiet_s) / EVERY_S)):
        at_s = quiet_s + number * EVERY_S
        harms.append(Harm(What.DIES, at_s, BACK_S))
        harms.append(Harm(What.DIES, at_s + EVERY_S / 2, BACK_S, number % 4))
    calm = harmed(setup, "nobody dies", ())
    done = harmed(setup, "deaths", harms)
    world = _world(done)
    lines = _lines(calm, done)
    measures = [
        Measure("elections", len(world.elections)),
        Measure("requests that ended with their gateway", sum(j.reason == GATEWAY_DIED for j in world.done)),
        Measure("longest extra wait of a light request, s", _extra_wait_s(done, calm, ALL), at_most(4.0)),
        Measure("longest time from a death until a request was sent, s", _silence_s(done), at_most(4.0)),
        Measure("requests in an engine beyond its slots", world.most_over_slots, at_most(0)),
        Measure("Jain, before", _jain(done, done.warm_s, quiet_s)),
        Measure("Jain, while they die", _jain(done, quiet_s, last_s)),
        Measure("Jain, after", _jain(done, last_s, setup.duration_s)),
        *_kept_whole(world),
    ]
    return RunResult("decider_death", setup.seed, setup.duration_s, tuple(measures), lines)


def cases(setup: Setup) -> dict[str, tuple[Harm, ...]]:
    """Returns what is cut off from what, for the same time each."""
    at_s, for_s = setup.duration_s / 3, CUT_S
    edge, decider = Harm(What.CUT_OFF, at_s, for_s, 3), Harm(What.CUT_OFF, at_s, for_s)
    return {
        "an edge cut off": (edge,),
        "the decider cut off": (decider,),
        "the store gone": (Harm(What.STORE_GONE, at_s, for_s),),
        "the store back empty": (Harm(What.STORE_FORGETS, at_s, for_s),),
        "all three": (Harm(What.STORE_GONE, at_s, for_s), decider, edge),
    }


def partition(setup: Setup) -> RunResult:
    """A gateway is cut off from the others and the store, or the decider is, or all lose the store; then all of it."""
    calm = harmed(setup, "nothing happens", ())
    measures: list[Measure] = []
    lines = _lines(calm)
    for name, harms in cases(setup).items():
        done = harmed(setup, name, harms)
        lines += _lines(done)
        measures += cut_measures(setup, name, done, calm)
    return RunResult("partition", setup.seed, setup.duration_s, tuple(measures), lines)


def cut_measures(setup: Setup, name: str, done: Run, calm: Run) -> list[Measure]:
    """Returns what a cut cost, for as long as it held and until all is one queue again."""
    world = _world(done)
    cut_s, mended_s = setup.duration_s / 3, setup.duration_s / 3 + CUT_S
    cut_off = frozenset(world.were_cut_off)
    goal = at_most(4.0) if name != "all three" else None  # there all wait for `alone_after`
    measures = [
        Measure(f"deciders at a time: {name}", max(deciders for _, deciders in world.deciders_followed)),
        Measure(f"longest extra wait of a light request, s: {name}", _extra_wait_s(done, calm, ALL - cut_off), goal),
    ]
    if cut_off:
        there = f"the same where cut off (alone after {ALONE_AFTER_S:g} s): {name}"
        measures.append(Measure(there, _extra_wait_s(done, calm, cut_off)))
    wrong = sum(measure.value for measure in _kept_whole(world))
    return [
        *measures,
        Measure(f"requests in an engine beyond its {SLOTS} slots: {name}", world.most_over_slots),
        Measure(f"one queue again, s after the end: {name}", _one_queue_s(world, mended_s), at_most(6.0)),
        Measure(f"Jain before: {name}", _jain(done, done.warm_s, cut_s)),
        Measure(f"Jain meanwhile: {name}", _jain(done, cut_s, mended_s)),
        Measure(f"Jain after: {name}", _jain(done, mended_s + SETTLED_S, setup.duration_s)),
        Measure(f"failed, refused, begun twice, endless or left behind: {name}", wrong, at_most(0)),
    ]


def _one_queue_s(world: ElectedWorld, mended_s: float) -> float:
    """How long after the end of all harm it took until all gateways followed one decider."""
    apart = [at_s for at_s, deciders in world.deciders_followed if at_s > mended_s and deciders != 1]
    return max(apart) - mended_s if apart else 0.0


def _lines(*runs: Run) -> tuple[ReportLine, ...]:
    return tuple(
        done.line(group, keep)
        for done in runs
        for group, keep in ((LIGHT, LIGHT.__eq__), ("the four", lambda tenant: tenant != LIGHT))
    )
