"""How many engines? `endpoints_wanted` against what autoscalers usually go by, on loads that change.

Three loads: a ramp up and down, a flash crowd, and bursts after silence from no engine at all. An engine serves 60 s
after it was asked for. All scalers stand behind the same gateway and the same controller, which looks every 15 s; each
usual signal is tried with several targets, and held against the rule by the cheapest of them that is no slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random

from bench.capacity import requests_per_s
from bench.report import Measure, ReportLine, RunResult, at_most, ttfts
from bench.scenarios.base import STANDARD, Setup, Variant
from bench.scenarios.scaling import Cluster, Scaler, ScalingWorld, Sight
from bench.workload import Lognormal
from penstock.core.explain.endpoints_wanted import EndpointsWanted, ScalingTargets
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.workload import Stream, sources
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import WorldSettings

MODEL = "sim"
START_S = 60.0
MOST = 12
AS_FAST = 1.1  # times our p99: no slower than that counts as fast
TURNS_PLAY = 3  # of noise: with a handful of slots one engine more or less is a matter of chance
WAIT_S_MAX = 600.0  # nobody is refused: who waits for an engine to start counts with that wait
# A large model: 100 ms a token with 8 slots, some 8 s an answer.
ENGINE = EngineConfig(
    step_base_s=0.08, prefill_s_per_token=0.000_2, decode_s_per_running=0.002, max_num_seqs=8, step_jitter=0.05
)
KIND = (Lognormal(500, 2000), Lognormal(80, 250, 1000))


@dataclass(frozen=True)
class Changing:
    """Poisson, at a rate that follows lines between points (a second, and how many come in it)."""

    points: tuple[tuple[float, float], ...]

    def times(self, start_s: float, random: Random, /) -> Iterator[float]:
        highest = max(rate for _, rate in self.points)
        at_s = start_s
        while at_s < start_s + self.points[-1][0]:
            at_s += random.expovariate(highest)
            if random.random() * highest < self.rate(at_s - start_s):
                yield at_s

    def rate(self, at_s: float) -> float:
        """How many come per second then."""
        for (from_s, low), (to_s, high) in pairwise(self.points):
            if from_s <= at_s < to_s:
                return low + (high - low) * (at_s - from_s) / (to_s - from_s)
        return self.points[-1][1]


class Look(WorldObserver):
    """Tells the rule how it stands, once a second, as the gateway does."""

    def __init__(self) -> None:
        self.rule = EndpointsWanted(ScalingTargets(start_s=START_S))

    def second(self, world: World) -> None:
        load = world.scheduler.loads(now=world.now).get(MODEL)
        if load is not None:
            self.rule.note(load, world.now)


@dataclass(frozen=True)
class Signal:
    """What a scaler goes by, with its targets."""

    name: str
    stabilize_s: float
    targets: tuple[float, ...]
    scaler: Callable[[float, Look], Scaler]


def _by_rule(_: float, look: Look) -> Scaler:
    return lambda _: look.rule.wanted


def _by_queue(target: float, _: Look) -> Scaler:
    """HPA on what waits, an average value over replicas: as production-stack's chart sets KEDA up, with 5."""
    return lambda sight: sight.waiting / target


def _by_requests(target: float, _: Look) -> Scaler:
    """HPA on all requests under way, those that wait included, per replica."""
    return lambda sight: (sight.waiting + sight.running) / target


def _by_utilisation(target: float, _: Look) -> Scaler:
    """HPA on a card's utilisation."""

    def replicas(sight: Sight) -> float:
        if not sight.replicas:
            return 1.0 if sight.waiting else 0.0
        return sight.replicas * sight.busy / target

    return replicas


RULE = Signal("endpoints_wanted", 0.0, (1.0,), _by_rule)
RIVALS = (
    Signal("HPA, queue length", 300.0, (1.0, 5.0, 20.0), _by_queue),
    Signal("HPA, utilisation", 300.0, (0.5, 0.8), _by_utilisation),
)
# Nobody's default, but the best that can be had of a plain number: what the gateway itself has under way.
NEAREST = Signal("HPA, requests under way", 300.0, (0.85 * ENGINE.max_num_seqs,), _by_requests)


@dataclass(frozen=True)
class Shape:
    """A load, in engines' worth of requests."""

    name: str
    least: int
    turns: int  #: of the load itself
    points: tuple[tuple[float, float], ...]


SHAPES = (
    Shape("ramp", 1, 1, ((0, 0.6), (200, 0.6), (700, 6.0), (900, 6.0), (1300, 0.6), (1800, 0.6))),
    Shape("flash crowd", 1, 1, ((0, 1.5), (400, 1.5), (401, 6.0), (900, 6.0), (901, 1.5), (1800, 1.5))),
    Shape("from zero", 0, 3, ((0, 0), (200, 0), (201, 2.0), (700, 2.0), (701, 0), (1300, 0), (1301, 2.0), (1800, 2.0))),
)


@dataclass(frozen=True)
class Scaled:
    """What a scaler led to on one load."""

    name: str
    p50_s: float
    p99_s: float
    engine_hours: float
    turns: int  #: how often it went from more to fewer, or back
    line: ReportLine


def scaled(setup: Setup, shape: Shape, signal: Signal, target: float) -> Scaled:
    """One scaler on one load."""
    per_engine = requests_per_s(ENGINE, KIND[0].mean, KIND[1].mean)
    stretch = setup.duration_s / shape.points[-1][0]
    points = tuple((at_s * stretch, rate * per_engine) for at_s, rate in shape.points)
    stream = Stream("people", Changing(points), *KIND, band=STANDARD, end_s=setup.duration_s)
    name = signal.name if signal is RULE else f"{signal.name}, {target:g}"
    variant = Variant(f"{shape.name}: {name}", wait_s_max=WAIT_S_MAX)
    settings = WorldSettings(
        scheduler=variant.scheduler(),
        engines=(),
        seed=setup.seed,
        duration_s=setup.duration_s,
        checked=setup.checked,
    )
    look = Look()
    progress = partial(setup.progress, variant.name) if setup.progress is not None else None
    world = ScalingWorld(settings, sources((stream,), setup.seed), watch=look, progress=progress)
    first = max(shape.least, math.ceil(shape.points[0][1] / 0.85))
    stabilize_s = signal.stabilize_s
    cluster = Cluster(ENGINE, shape.least, MOST, START_S, first, stabilize_s=stabilize_s)
    if signal is RULE:
        cluster = replace(cluster, tolerance=0.0)
    world.begin_scaling(cluster, signal.scaler(target, look))
    world.run()
    waits = ttfts(world.done, setup.duration_s)
    steps = [after - before for (_, before), (_, after) in pairwise(world.replicas)]
    turns = sum((one > 0) is not (other > 0) for one, other in pairwise(steps))
    line = ReportLine(
        variant=variant.name,
        group=f"{world.engine_s / 3600:.2f} engine-hours",
        requests=len(world.done),
        ttft_p50_s=percentile(waits, 0.5),
        ttft_p99_s=percentile(waits, 0.99),
        completed=sum(j.outcome == "completed" for j in world.done),
        refused=sum(j.outcome in ("rejected", "evicted") for j in world.done),
        failed=sum(j.outcome == "failed" for j in world.done),
        priced_tokens_per_s=0.0,
    )
    return Scaled(name, line.ttft_p50_s, line.ttft_p99_s, world.engine_s / 3600, turns, line)


def autoscale(setup: Setup) -> RunResult:
    """The rule and its rivals, on each load."""
    measures: list[Measure] = []
    lines: list[ReportLine] = []
    for shape in SHAPES:
        ours = scaled(setup, shape, RULE, 1.0)
        rivals = [scaled(setup, shape, rival, target) for rival in RIVALS for target in rival.targets]
        nearest = scaled(setup, shape, NEAREST, *NEAREST.targets)
        lines += [outcome.line for outcome in (ours, *rivals, nearest)]
        no_slower = [rival for rival in rivals if rival.p99_s <= AS_FAST * ours.p99_s]
        better = sum(rival.engine_hours <= ours.engine_hours for rival in no_slower)
        measures.append(Measure(f"{shape.name}: p99 TTFT, s", ours.p99_s))
        measures.append(Measure(f"{shape.name}: engine-hours", ours.engine_hours))
        measures.append(Measure(f"{shape.name}: rivals as fast for no more engine-hours", better, at_most(0)))
        if no_slower:
            cheapest = min(rival.engine_hours for rival in no_slower)
            name = f"{shape.name}: engine-hours / cheapest rival as fast"
            measures.append(Measure(name, ratio(ours.engine_hours, cheapest), at_most(0.8)))
        hours = ratio(ours.engine_hours, nearest.engine_hours)
        measures.append(Measure(f"{shape.name}: engine-hours / by requests under way", hours))
        measures.append(Measure(f"{shape.name}: p99 TTFT / by requests under way", ratio(ours.p99_s, nearest.p99_s)))
        measures.append(Measure(f"{shape.name}: changes of direction", ours.turns, at_most(shape.turns + TURNS_PLAY)))
    return RunResult("autoscale", setup.seed, setup.duration_s, tuple(measures), tuple(lines))
