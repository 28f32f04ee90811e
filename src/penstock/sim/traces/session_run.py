"""One run of recorded sessions in virtual time, and its figures.

The window of the figures begins after a warm-up: turns whose answers end in it count. A turn that still waits for its
first token at the end counts with its wait so far, because the longest waits would otherwise be missing.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import RoutingSettings, SessionSettings
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.traces.session_source import SessionLoad, SessionSource
from penstock.sim.traces.sessions import RecordedSession
from penstock.sim.traces.trace_run import BOUNDS, PATIENCE_S
from penstock.sim.world.passthrough import RIVALS, MakeRival, RoundRobinPassthrough
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import EngineSpec, SimulatedJourney, WorldSettings

DURATION_S = 3600.0
HELD_EVERY = 15  # seconds between two looks at the blocks in memory
WARM_UP_S = 600.0


@dataclass(frozen=True)
class SessionOptions:
    """Options of a run, common to all rows."""

    load: SessionLoad
    endpoints: int
    engine: EngineConfig
    duration_s: float = DURATION_S
    warm_up_s: float = WARM_UP_S
    router: RoutingSettings = field(default_factory=RoutingSettings)
    checked: bool = False
    gate: SessionSettings = field(default_factory=SessionSettings)
    rivals: Mapping[str, MakeRival] = field(default_factory=lambda: RIVALS)  #: by name, beside Penstock's policies


class TurnFigures(msgspec.Struct, frozen=True):
    """Figures of the turns of one tenant, or of all. Times in seconds; NaN (null in JSON) if unknown."""

    tenant: str
    turns: int
    output_tokens_per_s: float
    prefill_tokens_per_s: float  #: computed, not found in a cache
    hit_rate: float  #: of all prompt tokens, found in an engine's cache
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_longest_s: float
    unanswered: int  #: turns without a first token at the end
    prompt_tokens_mean: float
    kv_held_tokens: float  #: prompt tokens in all engines' memory, in use or cached, over time


class SessionFigures(TurnFigures, frozen=True):
    """One run's row."""

    routing: str
    seed: int
    sessions_begun: int
    sessions_finished: int
    preemptions: int
    kv_usage: float  #: of all engines, by running requests, over time
    inside: float  #: requests in all engines, over time
    waiting: float  #: of these, those that wait in an engine
    tenants: tuple[TurnFigures, ...] = ()


Tell = Callable[[float, float], None]


def run(
    sessions: Sequence[RecordedSession], routing: str, seed: int, options: SessionOptions, tell: Tell | None = None
) -> SessionFigures:
    """Play sessions once, under a routing policy of Penstock or a rival. Returns the row."""
    rival = options.rivals.get(routing)
    source = SessionSource(sessions, options.load, seed=seed, bypass=rival is not None)
    watch = _EngineWatch(options.warm_up_s, source)
    outcome = _Window(options.warm_up_s, options.duration_s)
    world = World(
        WorldSettings(
            scheduler=SchedulerSettings(
                bounds=BOUNDS,
                wait_s_max=PATIENCE_S,
                routing="round_robin" if rival else routing,
                router=options.router,
                sessions=options.gate,
            ),
            engines=tuple(
                EngineSpec(f"engine-{n}", options.engine, options.engine.max_num_seqs) for n in range(options.endpoints)
            ),
            seed=seed,
            duration_s=options.duration_s,
            checked=options.checked,
        ),
        [source],
        sink=outcome.take,
        watch=watch,
        progress=tell,
        rival=rival or RoundRobinPassthrough,
    )
    world.run()
    tenants = [stream.tenant for stream in source.streams]
    whole = outcome.figures("all", tenants, watch)
    return SessionFigures(
        **msgspec.structs.asdict(whole),
        routing=routing,
        seed=seed,
        sessions_begun=source.begun,
        sessions_finished=source.finished,
        preemptions=sum(node.engine.gauges().preemptions_total for node in world.nodes.values()),
        kv_usage=ratio(watch.kv_usage, watch.seconds),
        inside=ratio(watch.inside, watch.seconds),
        waiting=ratio(watch.waiting, watch.seconds),
        tenants=tuple(outcome.figures(tenant, [tenant], watch) for tenant in tenants) if len(tenants) > 1 else (),
    )


@dataclass
class _Turns:
    """The turns of one tenant in the window."""

    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    unanswered: int = 0


class _Window:
    """Adds up finished turns by tenant."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self._from_s = from_s
        self._until_s = until_s
        self._tenants: dict[str, _Turns] = {}

    def take(self, journey: SimulatedJourney) -> None:
        turns = self._tenants.setdefault(journey.job.stream.tenant, _Turns())
        if journey.first_s is None:
            if not journey.outcome:
                turns.unanswered += 1
                turns.ttft_s.append(self._until_s - journey.job.at_s)
        elif journey.first_s >= self._from_s:
            turns.ttft_s.append(journey.first_s - journey.job.at_s)
        if journey.outcome == "completed" and journey.ended_s is not None and journey.ended_s >= self._from_s:
            turns.turns += 1
            turns.prompt_tokens += journey.job.prompt_tokens
            turns.cached_tokens += journey.cached_tokens
            turns.output_tokens += journey.output_tokens

    def figures(self, name: str, tenants: Sequence[str], watch: _EngineWatch) -> TurnFigures:
        """Returns the figures of some tenants together."""
        several = [self._tenants[tenant] for tenant in tenants if tenant in self._tenants]
        span_s = self._until_s - self._from_s
        prompt_tokens = sum(turns.prompt_tokens for turns in several)
        cached_tokens = sum(turns.cached_tokens for turns in several)
        count = sum(turns.turns for turns in several)
        ttft_s = sorted(value for turns in several for value in turns.ttft_s)
        return TurnFigures(
            tenant=name,
            turns=count,
            output_tokens_per_s=sum(turns.output_tokens for turns in several) / span_s,
            prefill_tokens_per_s=(prompt_tokens - cached_tokens) / span_s,
            hit_rate=ratio(cached_tokens, prompt_tokens),
            ttft_p50_s=percentile(ttft_s, 0.5),
            ttft_p90_s=percentile(ttft_s, 0.9),
            ttft_p99_s=percentile(ttft_s, 0.99),
            ttft_longest_s=ttft_s[-1] if ttft_s else math.nan,
            unanswered=sum(turns.unanswered for turns in several),
            prompt_tokens_mean=ratio(prompt_tokens, count),
            kv_held_tokens=ratio(sum(watch.held[tenant] for tenant in tenants), watch.looks),
        )


class _EngineWatch(WorldObserver):
    """Adds up, second by second after the warm-up, how full the engines are."""

    def __init__(self, from_s: float, source: SessionSource) -> None:
        self._from_s = from_s
        self._source = source
        self.seconds = self.looks = 0
        self.held: Counter[str] = Counter()  # by tenant, tokens added up over the looks
        self.kv_usage = self.inside = self.waiting = 0.0

    def second(self, world: World) -> None:
        if world.now < self._from_s:
            return
        self.seconds += 1
        engines = [node.engine for node in world.nodes.values()]
        self.kv_usage += sum(engine.pool.used / engine.pool.total for engine in engines) / len(engines)
        self.inside += sum(engine.in_engine for engine in engines)
        self.waiting += sum(engine.waiting_now for engine in engines)
        if self.seconds % HELD_EVERY == 1:
            self.looks += 1
            for engine in engines:
                for block in engine.pool.hashes():
                    self.held[self._source.tenant_of(block)] += engine.config.block_size
