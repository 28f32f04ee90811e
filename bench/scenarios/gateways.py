"""Is it still one queue when many processes carry the requests? Workers of one machine, gateways of several.

One decides for all; what is between them and it takes the time that it takes: a socket of one machine 50 µs, a network
of one room 0.1 to 0.3 ms, one between rooms 5 ms. Beside it, for comparison, the same gateways as they are without
sharing, configured as is usual: *each alone*, with its part of every engine's slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from bench.many.link import LAN, UNIX, WAN
from bench.many.many_world import GATEWAY_DIED, Fleet, Kill, ManyWorld
from bench.report import Measure, ReportLine, RunResult, at_least, at_most, service_between
from bench.scenarios.base import LONG_ANSWERS, STANDARD, Run, Setup, Variant, engines, run
from bench.scenarios.isolation import FLOOD, flooded, is_flood, is_light
from bench.workload import Lognormal
from penstock.sim.world.report import jain, ratio
from penstock.sim.world.workload import Constant, InFlight, Stream

WARM_S = 40.0
SHARES_WARM_S = 20.0
PLACEMENT_S = 80.0  # each of the many placements, warm-up included
BACKLOG = 150  # requests of each tenant under way: more than all slots
RESTART_S = 0.5  # until a worker that was killed is there again
KIND = (Constant(512), Lognormal(128, 400))  # prompts as in Dynamo's table


def _fleet_run(setup: Setup, variant: Variant, streams: tuple[Stream, ...], fleet: Fleet, warm_s: float) -> Run:
    return run(setup, variant, streams, warm_s=warm_s, kind=partial(ManyWorld, fleet=fleet))


def _many(done: Run) -> ManyWorld:
    """The world of a run with several gateways."""
    assert isinstance(done.world, ManyWorld)
    return done.world


# --- a flood, by one gateway or by many ---------------------------------------------------------------------------


def _flood_runs(setup: Setup, one: str, fleets: Mapping[str, Fleet]) -> dict[str, Run]:
    """Light tenants alone; then beside the flood, at one gateway, and at these fleets."""
    streams = flooded(LONG_ANSWERS, slots=64, light_share=0.2)
    warm_s = min(WARM_S, setup.duration_s / 4)
    alone = Variant("alone", engines=engines(), without=frozenset({FLOOD}))
    runs = {"alone": run(setup, alone, streams, warm_s=warm_s)}
    runs[one] = run(setup, Variant(one, engines=engines()), streams, warm_s=warm_s)
    for name, fleet in fleets.items():
        runs[name] = _fleet_run(setup, Variant(name, engines=engines()), streams, fleet, warm_s)
    return runs


def _flood_measures(runs: dict[str, Run], one: str, held: tuple[str, ...]) -> list[Measure]:
    measures: list[Measure] = []
    for name, done in runs.items():
        if name == "alone":
            continue
        isolation = ratio(done.ttft_p99_s(is_light), runs["alone"].ttft_p99_s(is_light))
        goal = at_most(1.25) if name in held else None
        measures.append(Measure(f"light p99 TTFT / alone: {name}", isolation, goal))
        if name != one:
            kept = ratio(done.utilisation(), runs[one].utilisation())
            measures.append(Measure(f"throughput / {one}: {name}", kept, at_least(0.98) if name in held else None))
    return measures


def _flood_lines(runs: dict[str, Run]) -> tuple[ReportLine, ...]:
    groups = (("light", is_light), (FLOOD, is_flood))
    lines = [done.line(group, keep) for done in runs.values() for group, keep in groups]
    return tuple(line for line in lines if line.requests)


def workers(setup: Setup) -> RunResult:
    """A flood at a gateway of four workers; and again while each of them is killed once."""
    one, killed = "one process", "4 workers, each killed once"
    kills = tuple(Kill(number, (number + 1) * setup.duration_s / 5, RESTART_S) for number in range(4))
    fleets = {
        "4 workers": Fleet(4, UNIX, apart=True),
        killed: Fleet(4, UNIX, apart=True, kills=kills),
    }
    runs = _flood_runs(setup, one, fleets)
    measures = _flood_measures(runs, one, ("4 workers",))
    for name in fleets:
        beyond = _many(runs[name]).most_over_slots
        measures.append(Measure(f"requests in an engine beyond its slots: {name}", beyond, at_most(0)))
    died = [j for j in runs[killed].world.done if j.outcome == "failed"]
    others = sum(j.reason != GATEWAY_DIED for j in died)
    measures += [
        Measure(f"requests that failed with their worker: {killed}", len(died) - others),
        Measure(f"requests that failed at another: {killed}", others, at_most(0)),
        Measure(f"held by nobody at the end: {killed}", _many(runs[killed]).left_behind(), at_most(0)),
    ]
    return RunResult("workers", setup.seed, setup.duration_s, tuple(measures), _flood_lines(runs))


# --- shares, wherever requests come in ----------------------------------------------------------------------------

Placement = Mapping[str, tuple[int, ...]]

INGRESS: dict[str, Placement] = {
    "balanced": {"a": (0, 1), "b": (0, 1)},
    "skewed": {"a": (0,), "b": (1,)},
    "swapped": {"a": (1,), "b": (0,)},
}
PLACEMENTS: dict[str, tuple[int, Placement]] = {
    "A|BCD on 2": (2, {"a": (0,), "b": (1,), "c": (1,), "d": (1,)}),
    "ABD|BCD on 2": (2, {"a": (0,), "b": (0, 1), "c": (1,), "d": (0, 1)}),
    "ABC|CD on 2": (2, {"a": (0,), "b": (0,), "c": (0, 1), "d": (1,)}),
    "A|BCD on 4": (4, {"a": (0, 1), "b": (2, 3), "c": (2, 3), "d": (2, 3)}),
    "ABD|BCD on 4": (4, {"a": (0, 1), "b": (0, 1, 2, 3), "c": (2, 3), "d": (0, 1, 2, 3)}),
    "ABC|CD on 4": (4, {"a": (0, 1), "b": (0, 1), "c": (0, 1, 2, 3), "d": (2, 3)}),
    "A|B|C|C+D on 4": (4, {"a": (0,), "b": (1,), "c": (2, 3), "d": (3,)}),
}


def tokens_got(
    setup: Setup, name: str, weights: Mapping[str, float], placement: Placement, gateways: int, *, one_queue: bool
) -> dict[str, float]:
    """Priced tokens of each tenant, on one engine, when all want more than there is."""
    streams = tuple(
        Stream(tenant, InFlight(BACKLOG), *KIND, weight=weight, band=STANDARD) for tenant, weight in weights.items()
    )
    variant = Variant(name, engines=engines(1), wait_s_max=600.0)
    fleet = Fleet(gateways, LAN, one_queue=one_queue, placement=placement)
    done = _fleet_run(setup, variant, streams, fleet, min(SHARES_WARM_S, setup.duration_s / 3))
    service = service_between(done.world.samples, done.warm_s, setup.duration_s)
    return {tenant: service.get((tenant, ""), 0.0) for tenant in weights}


def gateways(setup: Setup) -> RunResult:
    """Dynamo's table, four tenants in seven placements, and a flood at four gateways."""
    measures: list[Measure] = []
    each_way = ((True, ""), (False, ", each alone"))
    for ingress, placement in INGRESS.items():
        for one_queue, how in each_way:
            got = tokens_got(setup, f"4:1 {ingress}{how}", {"a": 4.0, "b": 1.0}, placement, 2, one_queue=one_queue)
            goal = at_most(0.02) if one_queue else None
            off = abs(ratio(got["a"], 4.0 * got["b"]) - 1.0)
            measures.append(Measure(f"distance from 4:1, ingress {ingress}{how}", off, goal))
    short = Setup(setup.seed, min(PLACEMENT_S, setup.duration_s), setup.checked, setup.progress)
    for name, (count, placement) in PLACEMENTS.items():
        for one_queue, how in each_way:
            got = tokens_got(short, f"{name}{how}", dict.fromkeys("abcd", 1.0), placement, count, one_queue=one_queue)
            goal = at_least(0.995) if one_queue else None
            measures.append(Measure(f"Jain, {name}{how}", jain(list(got.values())), goal))
    one = "one gateway"
    runs = _flood_runs(
        setup,
        one,
        {
            "4 gateways": Fleet(4, LAN),
            "4 gateways, 5 ms apart, 0.1 % lost": Fleet(4, WAN),
            "4 gateways, each alone": Fleet(4, one_queue=False),
        },
    )
    measures += _flood_measures(runs, one, ("4 gateways",))
    return RunResult("gateways", setup.seed, setup.duration_s, tuple(measures), _flood_lines(runs))
