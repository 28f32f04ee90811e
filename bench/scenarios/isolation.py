"""Does a heavy neighbour hurt? Floods of long answers and of long prompts, small engines, and stale gauges.

The measure is the 99th percentile of the light tenants' time to first token beside the flood, over the same without
it (*alone*: same arrivals, same lengths), and what isolation costs: the engines' work done a second over that of
*pass-through*, where requests go to the least loaded engine at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.report import Goal, Measure, RunResult, at_least, at_most
from bench.scenarios.base import (
    CHAT,
    LONG_ANSWERS,
    LONG_PROMPTS,
    Kind,
    Run,
    Setup,
    Variant,
    capacity_per_s,
    engines,
    load,
    run,
)
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.workload import Poisson, Stream
from penstock.sim.world.world import World, WorldObserver

FLOOD = "flood"
LIGHT_TENANTS = 8
FLOOD_TIMES = 3.5  # of total capacity
WARM_S = 40.0  # until the flood's own backlog and the batch of long answers are in steady state


def is_light(tenant: str) -> bool:
    return tenant != FLOOD


def is_flood(tenant: str) -> bool:
    return tenant == FLOOD


def flooded(kind: Kind, *, slots: int, light_share: float) -> tuple[Stream, ...]:
    """Returns the streams of eight light tenants, and of one that offers far more than all engines can do."""
    pool = engines(slots=slots)
    light_per_s = light_share * capacity_per_s(pool, CHAT) / LIGHT_TENANTS
    light = tuple(load(f"light-{number}", CHAT, light_per_s) for number in range(LIGHT_TENANTS))
    return (*light, load(FLOOD, kind, FLOOD_TIMES * capacity_per_s(pool, kind)))


def compare(
    setup: Setup,
    kind: Kind,
    *,
    slots: int,
    light_share: float,
    variants: tuple[Variant, ...],
    watches: Mapping[str, WorldObserver] | None = None,
) -> list[Run]:
    """Run the light tenants alone, beside the flood without a queue, and beside the flood in these `variants`."""
    watches = watches or {}
    streams = flooded(kind, slots=slots, light_share=light_share)
    alone = Variant("alone", engines=engines(slots=slots), without=frozenset({FLOOD}))
    through = Variant("pass-through", engines=engines(slots=slots), queue=False)
    return [
        run(setup, variant, streams, warm_s=min(WARM_S, setup.duration_s / 4), watch=watches.get(variant.name))
        for variant in (alone, through, *variants)
        if variant.name not in setup.without
    ]


def _isolation(alone: Run, beside: Run) -> float:
    return ratio(beside.ttft_p99_s(is_light), alone.ttft_p99_s(is_light))


def _measures(runs: list[Run], goals: Mapping[str, tuple[Goal | None, Goal | None]]) -> tuple[Measure, ...]:
    alone, through, *others = runs
    measures = [Measure("light p99 TTFT / alone: pass-through", _isolation(alone, through))]
    for other in others:
        name = other.variant.name
        isolation, throughput = goals.get(name, (None, None))
        measures.append(Measure(f"light p99 TTFT / alone: {name}", _isolation(alone, other), isolation))
        kept = ratio(other.utilisation(), through.utilisation())
        measures.append(Measure(f"throughput / pass-through: {name}", kept, throughput))
    return tuple(measures)


def _result(name: str, setup: Setup, runs: list[Run], measures: tuple[Measure, ...]) -> RunResult:
    lines = [run.line(group, keep) for run in runs for group, keep in (("light", is_light), (FLOOD, is_flood))]
    return RunResult(name, setup.seed, setup.duration_s, measures, tuple(line for line in lines if line.requests))


class SlotsWatch(WorldObserver):
    """Notes once a second what the scheduler believes the engines' size to be."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def second(self, world: World) -> None:
        self.seen += [endpoint.slots for endpoint in world.scheduler.snapshot(now=world.now).endpoints]


def _flood(name: str, kind: Kind, setup: Setup, *others: Variant, routing: str = "least_loaded") -> RunResult:
    known = Variant("penstock", engines=engines(), routing=routing)
    unknown = Variant("slots unknown", engines=engines(tell=False), routing=routing)
    watch = SlotsWatch()
    runs = compare(
        setup, kind, slots=64, light_share=0.2, variants=(known, unknown, *others), watches={unknown.name: watch}
    )
    goals: dict[str, tuple[Goal | None, Goal | None]] = {
        "penstock": (at_most(1.25), at_least(0.98)),
        "slots unknown": (at_most(2.0), at_least(0.98)),
    }
    half = len(watch.seen) // 2
    found = (
        Measure("slots found, p10 of the second half (64)", percentile(watch.seen[half:], 0.1)),
        Measure("slots found, p90 of the second half (64)", percentile(watch.seen[half:], 0.9)),
    )
    return _result(name, setup, runs, _measures(runs, goals) + found)


def flood(setup: Setup) -> RunResult:
    return _flood("flood", LONG_ANSWERS, setup)


def flood_prompts(setup: Setup) -> RunResult:
    """Routed by the time to first token, which is what prompts in an endpoint's queue cost; by load for comparison.

    With the default prefill budget, and with a smaller one.
    """
    routing = "predicted_ttft"
    others = (
        Variant("routed by load", engines=engines()),
        Variant("prefill budget 4096", engines=engines(), prefill_tokens_max=4096, routing=routing),
    )
    return _flood("flood_prompts", LONG_PROMPTS, setup, *others, routing=routing)


def flood_small(setup: Setup) -> RunResult:
    """Two engines of 8 slots, light tenants at a third of capacity: the frontier of isolation against throughput."""
    small = engines(slots=8)
    fixed = tuple(
        Variant(f"reserve {share:g}", engines=small, reserved_share=share) for share in (0.0, 0.125, 0.25, 0.5)
    )
    auto = Variant("reserve auto", engines=small)
    runs = compare(setup, LONG_ANSWERS, slots=8, light_share=1 / 3, variants=(*fixed, auto))
    return _result("flood_small", setup, runs, _measures(runs, {"reserve auto": (at_most(2.5), at_least(0.93))}))


SIZES = (4, 8, 64, 256)
LAGS_S = (0.05, 1.0, 5.0)  # between readings


def unknown_size(setup: Setup) -> RunResult:
    """The scheduler is not told how many requests the engines run: does it find out, however old the gauges are?"""
    measures: list[Measure] = []
    lines = []
    for size in SIZES:
        known = Variant(f"{size} slots, known", engines=engines(slots=size))
        unknown = [
            Variant(f"{size} slots, {lag_s:g} s", engines=engines(slots=size, tell=False), scrape_s=lag_s)
            for lag_s in LAGS_S
        ]
        watches = {variant.name: SlotsWatch() for variant in unknown}
        light_share = 0.2 if size >= 64 else 1 / 3
        runs = compare(
            setup, LONG_ANSWERS, slots=size, light_share=light_share, variants=(known, *unknown), watches=watches
        )
        goals: dict[str, tuple[Goal | None, Goal | None]] = {}
        if size == 64:
            goals = {variant.name: (at_most(2.0), at_least(0.98)) for variant in unknown}
        measures += _measures(runs, goals)[1:]  # what happens without a queue, the floods tell
        for name, watch in watches.items():
            half = len(watch.seen) // 2
            measures.append(Measure(f"slots found, p10 of the second half: {name}", percentile(watch.seen[half:], 0.1)))
            measures.append(Measure(f"slots found, p90 of the second half: {name}", percentile(watch.seen[half:], 0.9)))
        lines += [run.line("light", is_light) for run in runs]
    return RunResult("unknown_size", setup.seed, setup.duration_s, tuple(measures), tuple(lines))


STALE_LOAD = 0.85
BYPASS = 0.17


def stale_gauges(setup: Setup) -> RunResult:
    """Gauges read every 5 s against every 50 ms, at 85 % load, with and without traffic past the gateway."""
    pool = engines()
    per_s = STALE_LOAD * capacity_per_s(pool, CHAT)
    whole = (load("chat", CHAT, per_s),)
    part = (load("chat", CHAT, per_s * (1 - BYPASS)), Stream("others", Poisson(per_s * BYPASS), *CHAT, bypass=True))
    measures: list[Measure] = []
    lines = []
    for name, streams in (("all through us", whole), ("17 % bypass", part)):
        runs = [
            run(
                setup,
                Variant(f"{scrape_s:g} s, {name}", scrape_s=scrape_s),
                streams,
                warm_s=min(20.0, setup.duration_s / 4),
            )
            for scrape_s in (0.05, 5.0)
        ]
        p99s = [each.ttft_p99_s(lambda tenant: tenant == "chat") for each in runs]
        measures.append(Measure(f"p99 TTFT, 5 s / 50 ms: {name}", ratio(p99s[1], p99s[0]), at_most(1.15)))
        lines += [each.line("chat", lambda tenant: tenant == "chat") for each in runs]
    return RunResult("stale_gauges", setup.seed, setup.duration_s, tuple(measures), tuple(lines))
