"""One run of a recorded workload in virtual time, and its figures.

Penstock's policies run the real scheduler with its queue in front of the engine models; rivals send on arrival, and the
engines queue. Waits are unlimited, so all serve the same work.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import QueueBounds, RoutingSettings
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.traces.trace import Trace
from penstock.sim.traces.trace_source import TraceSource
from penstock.sim.traces.trace_tenants import TenantFigures, TenantWatch
from penstock.sim.world.passthrough import RIVALS, MakeRival, RoundRobinPassthrough
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.world import World
from penstock.sim.world.world_values import EngineSpec, SimulatedJourney, WorldSettings

END_S_MAX = 360_000.0  # a hundred hours: a trace that takes longer was meant to be sped up
LATE_S_MAX = 36_000.0  # after the last arrival; a request not done by then counts with its wait so far
PATIENCE_S = 1e6  # no request is refused: figures of the remaining ones would be worthless
BOUNDS = QueueBounds(10_000_000, 1 << 50, 1 << 50)
BUCKET_S = 30.0  # of plots over time
CURVE_POINTS = 400


@dataclass(frozen=True)
class Options:
    """Options of a run, common to all routings."""

    endpoints: int = 8
    speed: float = 1.0
    engine: EngineConfig = field(default_factory=EngineConfig)
    queue: bool = True  #: Penstock's; rivals have none
    fairness: str = "weighted_tokens"
    router: RoutingSettings = field(default_factory=RoutingSettings)
    duration_s: float | None = None  #: simulated; requests that come later are left out
    checked: bool = False
    rivals: Mapping[str, MakeRival] = field(default_factory=lambda: RIVALS)  #: by name, beside Penstock's policies


class Figures(msgspec.Struct, frozen=True):
    """One run's row. Times in seconds; NaN (null in JSON) if unknown."""

    routing: str
    seed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    token_hit_rate: float  #: of all prompt tokens, found in an engine's cache
    imbalance: float  #: requests in the fullest engine over the mean, both over time; 1 is even
    token_hit_rate_endless: float | None  #: the hit rate of a cache without bound
    queue_mean_s: float  #: of the time to first token, in the gateway's queue
    requests: int
    completed: int
    end_s: float  #: when the last one was done
    tenants: TenantFigures | None = None


@dataclass
class Curves:
    """The values of a run that plots show."""

    ttft_s: list[float] = field(default_factory=list)  #: CURVE_POINTS quantiles
    at_s: list[float] = field(default_factory=list)
    hit_rate: list[float] = field(default_factory=list)  #: of each BUCKET_S
    imbalance: list[float] = field(default_factory=list)


Tell = Callable[[float, float], None]


def run(trace: Trace, routing: str, seed: int, options: Options, tell: Tell | None = None) -> tuple[Figures, Curves]:
    """Run a trace once. Returns its row and its curves."""
    rival = options.rivals.get(routing)
    end_s = options.duration_s if options.duration_s is not None else END_S_MAX
    source = TraceSource(trace, seed=seed, speed=options.speed, end_s=end_s, bypass=rival is not None)
    watch = _Watch()
    outcome = _Outcomes()
    world = World(
        WorldSettings(
            scheduler=_scheduler("round_robin" if rival else routing, options),
            engines=tuple(
                EngineSpec(f"engine-{n}", options.engine, options.engine.max_num_seqs) for n in range(options.endpoints)
            ),
            seed=seed,
            duration_s=end_s + LATE_S_MAX,
            ends_idle=True,
            checked=options.checked,
        ),
        [source],
        sink=outcome.take,
        watch=watch,
        progress=tell,
        rival=rival or RoundRobinPassthrough,
    )
    world.run()
    outcome.still_waiting(world.now)
    figures = _figures((routing, seed), source, outcome, watch, world)
    return figures, watch.curves(outcome.ttft_s)


def _scheduler(routing: str, options: Options) -> SchedulerSettings:
    return SchedulerSettings(
        bounds=BOUNDS,
        wait_s_max=PATIENCE_S,
        queue_enabled=options.queue,
        fairness=options.fairness,
        routing=routing,
        router=options.router,
    )


class _Outcomes:
    """Keeps three numbers of each finished journey."""

    def __init__(self) -> None:
        self.ttft_s = array("d")
        self.tpot_s = array("d")
        self.queue_s = 0.0
        self.requests = self.completed = 0
        self._waiting: list[float] = []  # since when, of those that are not done at the end

    def take(self, journey: SimulatedJourney) -> None:
        self.requests += 1
        self.completed += journey.outcome == "completed"
        if journey.first_s is None:
            if not journey.outcome:
                self._waiting.append(journey.job.at_s)
            return
        self.ttft_s.append(journey.first_s - journey.job.at_s)
        self.queue_s += journey.queue_s
        if journey.outcome == "completed" and journey.output_tokens > 1 and journey.ended_s is not None:
            self.tpot_s.append((journey.ended_s - journey.first_s) / (journey.output_tokens - 1))

    def still_waiting(self, now: float) -> None:
        self.ttft_s.extend(now - since_s for since_s in self._waiting)


class _Watch(TenantWatch):
    """Adds up, second by second, how full the engines are and how often their caches hit."""

    def __init__(self) -> None:
        super().__init__()
        self._fullest = self._mean = 0.0
        self._bucket = (0.0, 0.0)  # fullest and mean, in all at the bucket's start
        self._counts = (0, 0)  # asked and hit, likewise
        self._curves = Curves()

    def second(self, world: World) -> None:
        super().second(world)
        inside = [node.engine.in_engine for node in world.nodes.values()]
        self._fullest += max(inside)
        self._mean += sum(inside) / len(inside)
        if world.now >= BUCKET_S * (len(self._curves.at_s) + 1):
            self._end_bucket(world)

    def _end_bucket(self, world: World) -> None:
        asked, hit = counts = cached(world)
        curves, (asked_before, hit_before) = self._curves, self._counts
        curves.at_s.append(world.now)
        curves.hit_rate.append(ratio(hit - hit_before, asked - asked_before))
        curves.imbalance.append(ratio(self._fullest - self._bucket[0], self._mean - self._bucket[1]))
        self._counts, self._bucket = counts, (self._fullest, self._mean)

    @property
    def imbalance(self) -> float:
        return ratio(self._fullest, self._mean)

    def curves(self, ttft_s: array[float]) -> Curves:
        ordered = sorted(ttft_s)
        last = len(ordered) - 1
        if ordered:
            self._curves.ttft_s = [ordered[round(n * last / (CURVE_POINTS - 1))] for n in range(CURVE_POINTS)]
        return self._curves


def cached(world: World) -> tuple[int, int]:
    """Prompt tokens looked up in the engines' caches so far, and those found there."""
    gauges = [node.engine.gauges() for node in world.nodes.values()]
    return sum(g.prefix_cache_queries_total for g in gauges), sum(g.prefix_cache_hits_total for g in gauges)


def _figures(named: tuple[str, int], source: TraceSource, outcome: _Outcomes, watch: _Watch, world: World) -> Figures:
    asked, hit = cached(world)
    return Figures(
        routing=named[0],
        seed=named[1],
        ttft_mean_s=_mean(outcome.ttft_s),
        ttft_p50_s=percentile(outcome.ttft_s, 0.5),
        ttft_p99_s=percentile(outcome.ttft_s, 0.99),
        tpot_mean_s=_mean(outcome.tpot_s),
        tpot_p99_s=percentile(outcome.tpot_s, 0.99),
        token_hit_rate=ratio(hit, asked),
        imbalance=watch.imbalance,
        token_hit_rate_endless=source.repeated_share(),
        queue_mean_s=ratio(outcome.queue_s, len(outcome.ttft_s)),
        requests=outcome.requests,
        completed=outcome.completed,
        end_s=world.now,
        tenants=watch.tenants(world.now),
    )


def _mean(values: array[float]) -> float:
    return ratio(sum(values), len(values))
