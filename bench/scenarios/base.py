"""The common parts of scenarios. Engines, kinds of requests, running one variant and describing it.

Chosen once, for plausibility, and kept:

- *engine*: the profile `default` (an 8-billion-parameter model on one data-centre card: 14 ms a step with 64
  running, 10,000 prompt tokens a second, 131,072 tokens of KV), steps jittered by 5 %.
- *chat*: lengths of the Azure 2023 conversation trace (prompt mean 1155, p99 4142; answer mean 211, p99 601).
- *long answers*: short prompts (mean 300), answers of 600 tokens on average, p99 1500.
- *long prompts*: documents of 6000 tokens on average, p99 16000, and answers of 100.

Bodies hold four bytes a token, give or take 15 %. Settings are the defaults unless a scenario changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from bench.capacity import requests_per_s, work_s
from bench.report import ReportLine, RunResult, done_per_s, journeys_between, ttfts
from bench.workload import Lognormal
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import AdmissionSettings, BandSettings
from penstock.sim.engine.profiles import PROFILES
from penstock.sim.world.report import percentile
from penstock.sim.world.workload import Poisson, Stream, sources
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import Death, EngineSpec, Freeze, SimulatedJourney, Spell, WorldSettings

ENGINE = replace(PROFILES["default"], step_jitter=0.05)
CHAT = (Lognormal(1155, 4142), Lognormal(211, 601, 4000))
LONG_ANSWERS = (Lognormal(300, 1500), Lognormal(600, 1500, 6000))
LONG_PROMPTS = (Lognormal(6000, 16_000, 24_000), Lognormal(100, 300, 2000))
KV_BLOCKS_PER_SLOT = 128  # of 16 tokens
INTERACTIVE, STANDARD, BATCH = 0, 1, 2
BANDS = (
    BandSettings("interactive", engine_waiting_max=3),
    BandSettings("standard", engine_waiting_max=2),
    BandSettings("batch", engine_waiting_max=0),
)
Kind = tuple[Lognormal, Lognormal]


@dataclass(frozen=True)
class Setup:
    """How a scenario is to be run."""

    seed: int
    duration_s: float
    checked: bool = False
    progress: Callable[[str, float, float], None] | None = None  #: variant, simulated seconds, of how many
    without: frozenset[str] = frozenset()  #: variants that are left out, of those that are there for comparison only


@dataclass(frozen=True)
class Scenario:
    """A named situation and its claim."""

    name: str
    about: str
    duration_s: float  #: simulated, unless another duration is asked for
    run: Callable[[Setup], RunResult]


@dataclass(frozen=True)
class Variant:
    """One way to run the same workload: its changes of the defaults."""

    name: str
    queue: bool = True
    fairness: str = "weighted_tokens"
    routing: str = "least_loaded"  #: plainer than the gateway's own default, which is `predicted_ttft`
    reserved_share: float | None = None  #: share of reserved slots; None: measured
    prefill_tokens_max: int = 16_384
    wait_s_max: float = 60.0
    bands: tuple[BandSettings, ...] = BANDS
    engines: tuple[EngineSpec, ...] = ()
    without: frozenset[str] = frozenset()  #: tenants that stay away
    scrape_s: float = 0.5
    deaths: tuple[Death, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    spells: tuple[Spell, ...] = ()

    def scheduler(self) -> SchedulerSettings:
        return SchedulerSettings(
            bands=self.bands,
            queue_enabled=self.queue,
            wait_s_max=self.wait_s_max,
            stale_after_s=max(3 * self.scrape_s, 2.0),  # as the gateway sets it
            fairness=self.fairness,
            routing=self.routing,
            admission=AdmissionSettings(reserved_share=self.reserved_share, prefill_tokens_max=self.prefill_tokens_max),
        )


@dataclass(frozen=True)
class Run:
    """The result of one variant. Figures are taken after the warm-up."""

    variant: Variant
    world: World
    warm_s: float

    @property
    def end_s(self) -> float:
        return self.world.settings.duration_s

    def journeys(self, keep: Callable[[str], bool] = lambda _: True) -> list[SimulatedJourney]:
        """Returns the requests that came after the warm-up, of the tenants that `keep` selects."""
        return journeys_between(self.world.done, self.warm_s, self.end_s, lambda j: keep(j.job.stream.tenant))

    def ttft_p99_s(self, keep: Callable[[str], bool] = lambda _: True) -> float:
        return percentile(ttfts(self.journeys(keep), self.end_s), 0.99)

    def tokens_per_s(self, keep: Callable[[str], bool]) -> float:
        """Returns priced tokens per second, as fairness counts them, of the tenants that `keep` selects."""
        return done_per_s(self.world.samples, self.warm_s, self.end_s, keep=keep)

    def utilisation(self) -> float:
        """The used share of the engines' capacity, for any mix: the measure of throughput."""
        specs = self.world.settings.engines
        worth = partial(work_s, specs[0].config)
        return done_per_s(self.world.samples, self.warm_s, self.end_s, keep=lambda _: True, worth=worth) / len(specs)

    def line(self, group: str, keep: Callable[[str], bool] = lambda _: True) -> ReportLine:
        journeys = self.journeys(keep)
        waits = ttfts(journeys, self.end_s)
        return ReportLine(
            variant=self.variant.name,
            group=group,
            requests=len(journeys),
            ttft_p50_s=percentile(waits, 0.5),
            ttft_p99_s=percentile(waits, 0.99),
            completed=sum(j.outcome == "completed" for j in journeys),
            refused=sum(j.outcome in ("rejected", "evicted") for j in journeys),
            failed=sum(j.outcome == "failed" for j in journeys),
            priced_tokens_per_s=self.tokens_per_s(keep),
        )


def engines(count: int = 2, *, slots: int = 64, tell: bool = True) -> tuple[EngineSpec, ...]:
    """Returns equal engines, with memory for full slots; `tell` is True if the scheduler is told their size."""
    sized = replace(ENGINE, max_num_seqs=slots, kv_blocks=max(ENGINE.kv_blocks, KV_BLOCKS_PER_SLOT * slots))
    return tuple(EngineSpec(f"engine-{number}", sized, slots if tell else None) for number in range(count))


def capacity_per_s(specs: tuple[EngineSpec, ...], kind: Kind) -> float:
    """Returns how many requests of a kind all the engines together can do per second."""
    prompt, output = kind
    return sum(requests_per_s(spec.config, prompt.mean, output.mean) for spec in specs)


def load(tenant: str, kind: Kind, per_s: float, *, band: int = STANDARD) -> Stream:
    """Returns a Poisson stream of requests of one kind."""
    return Stream(tenant, Poisson(per_s), *kind, band=band)


def run(
    setup: Setup,
    variant: Variant,
    streams: tuple[Stream, ...],
    *,
    warm_s: float,
    watch: WorldObserver | None = None,
    kind: Callable[..., World] = World,
) -> Run:
    """Run one variant to the end, in a world of this `kind`. Returns what became of it."""
    world_settings = WorldSettings(
        scheduler=variant.scheduler(),
        engines=variant.engines or engines(),
        seed=setup.seed,
        duration_s=setup.duration_s,
        scrape_s=variant.scrape_s,
        deaths=variant.deaths,
        freezes=variant.freezes,
        spells=variant.spells,
        checked=setup.checked,
    )

    world = kind(
        world_settings,
        sources(streams, setup.seed, without=variant.without),
        watch=watch or WorldObserver(),
        progress=partial(setup.progress, variant.name) if setup.progress is not None else None,
    )
    world.run()
    return Run(variant, world, warm_s)
