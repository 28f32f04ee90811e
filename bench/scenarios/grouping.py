"""The gain of cached prefixes in the queue (waiting for the endpoint, going first in a flow), and its cost to tenants.

Many tenants with a few shared documents on four engines, which are asked for more than they can serve.

Half of the tenants ask about documents of 8,000 tokens that they all share, some more in demand than others; the other
half ask about texts of their own, of half that length. All documents together are several times what one engine's cache
holds beside its running requests. A fixed number of requests per tenant is under way, so a gain is a gain for all.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import accumulate
from random import Random

from msgspec import structs

from bench.report import Measure, RunResult, at_least, at_most, service_between, ttfts
from bench.scenarios.base import ENGINE, Run, Setup, Variant
from bench.scenarios.bound import BoundWatch
from bench.workload import Lognormal
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import PASSED_MAX, Prices, RoutingSettings
from penstock.sim.world.report import jain, percentile
from penstock.sim.world.workload import ArrivalSource, Constant, InFlight, Job, Stream
from penstock.sim.world.world import World
from penstock.sim.world.world_values import EngineSpec, WorldSettings

WARM_S, WINDOW_S = 30.0, 60.0
TENANTS, REQUESTS = 12, 8  # of each kind, and how many of its requests are under way
DOCUMENTS, DOCUMENT_TOKENS, OWN_TOKENS = 24, 8_192, 4_096
BLOCK_TOKENS = 512
SLOTS = 16
OUTPUT = Lognormal(100, 300, 1_000)
FULL = Prices(prompt=1.0, cached_prompt=1.0, completion=2.0)


class Readers(ArrivalSource):
    """A stream whose prompts begin with one of a few documents (or each with one of its own), and go on a little."""

    def __init__(self, stream: Stream, number: int, random: Random, *, shared: bool) -> None:
        super().__init__(stream, number, random)
        self._documents = random.getrandbits(40) << 20
        self._shared = shared
        self._weights = list(accumulate(1.0 / (rank + 1) for rank in range(DOCUMENTS)))

    def job(self, at_s: float) -> Job:
        plain = super().job(at_s)
        if self._shared:
            (document,) = self._random.choices(range(DOCUMENTS), cum_weights=self._weights)
            first, tokens = document * 1_000, DOCUMENT_TOKENS
        else:
            first, tokens = self._documents + self._made * 1_000, OWN_TOKENS
        blocks = tuple(range(first, first + tokens // BLOCK_TOKENS))
        grown = plain.prompt_tokens + tokens
        size = round(plain.body_bytes * grown / plain.prompt_tokens)
        return structs.replace(plain, prompt_tokens=grown, body_bytes=size, blocks=blocks, block_tokens=BLOCK_TOKENS)


def grouping(setup: Setup) -> RunResult:
    """With waits for a cached prefix and without; priced as usual, and with cached tokens at full price to check the
    bound.
    """
    measures: list[Measure] = []
    runs: list[Run] = []
    for prices, suffix in ((Prices(), ""), (FULL, ", cached at full price")):
        for kind, wait_s, group in (("none", 0.0, 0), ("waits", None, 0), ("waits, warm first", None, PASSED_MAX)):
            watch = BoundWatch() if suffix else None
            name = kind + suffix
            if name in setup.without:
                continue
            done = _run(setup, name, RoutingSettings(affinity_wait_s=wait_s, prefix_group=group), prices, watch)
            runs.append(done)
            measures += _measures(done, setup, name, watch)
    before, after = (
        next(m.value for m in measures if m.name == f"mean TTFT s: {n}") for n in ("none", "waits, warm first")
    )
    measures.insert(0, Measure("mean TTFT: waits, warm first / none", after / before, at_most(0.95)))
    lines = [
        done.line(group, lambda tenant, group=group: tenant.startswith(group))  # type: ignore[misc]
        for done in runs
        for group in ("sharing", "alone")
    ]
    return RunResult("grouping", setup.seed, setup.duration_s, tuple(measures), tuple(lines))


def _measures(done: Run, setup: Setup, name: str, watch: BoundWatch | None) -> list[Measure]:
    world = done.world
    gauges = [node.engine.gauges() for node in world.nodes.values()]
    hits = sum(g.prefix_cache_hits_total for g in gauges) / sum(g.prefix_cache_queries_total for g in gauges)
    completed = sum(journey.outcome == "completed" for journey in done.journeys())
    waits = ttfts(done.journeys(), done.end_s)
    measures = [
        Measure(f"token hit rate: {name}", hits),
        Measure(f"mean TTFT s: {name}", sum(waits) / len(waits) if waits else math.nan),
        Measure(f"p99 TTFT s: {name}", percentile(waits, 0.99)),
        Measure(f"completed per s: {name}", completed / (done.end_s - WARM_S)),
    ]
    if watch is None:
        return measures
    shares = []
    for window in range(max(1, int((setup.duration_s - WARM_S) // WINDOW_S))):
        start_s = WARM_S + window * WINDOW_S
        shares.append(jain(list(service_between(world.samples, start_s, start_s + WINDOW_S).values())))
    return [
        *measures,
        Measure(f"Jain over 60 s, worst window: {name}", min(shares), at_least(0.99)),
        Measure(f"pair checks of the bound: {name}", watch.checks),
        Measure(f"failed, bound as stated: {name}", watch.failed["stated"], at_most(0)),
        Measure(f"failed, without K * c_max of overtaking: {name}", watch.failed["strict"]),
        Measure(f"widest gap / strict bound: {name}", watch.widest["strict"]),
    ]


def _run(setup: Setup, name: str, router: RoutingSettings, prices: Prices, watch: BoundWatch | None) -> Run:
    config = replace(ENGINE, max_num_seqs=SLOTS, block_size=BLOCK_TOKENS, kv_blocks=131_072 // BLOCK_TOKENS)
    settings = WorldSettings(
        scheduler=SchedulerSettings(
            routing="predicted_ttft",
            router=router,
            prices=prices,
            wait_s_max=600.0,
        ),
        engines=tuple(EngineSpec(f"engine-{number}", config, SLOTS) for number in range(4)),
        seed=setup.seed,
        duration_s=setup.duration_s,
        checked=setup.checked,
    )
    random = Random(setup.seed)
    sources = []
    for number in range(2 * TENANTS):
        kind = "sharing" if number % 2 else "alone"
        stream = Stream(f"{kind}-{number // 2}", InFlight(REQUESTS), Constant(200), OUTPUT)
        sources.append(Readers(stream, number, Random(random.getrandbits(64)), shared=kind == "sharing"))
    world = World(settings, sources, watch=watch, progress=partial(setup.progress, name) if setup.progress else None)
    world.run()
    return Run(Variant(name), world, WARM_S)
