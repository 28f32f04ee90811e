"""Bands. They are served in strict order, and batch work runs only in idle slots."""

from __future__ import annotations

from msgspec import structs

from bench.report import Measure, ReportLine, RunResult, at_least, at_most, service_between
from bench.scenarios.base import (
    BANDS,
    BATCH,
    CHAT,
    INTERACTIVE,
    LONG_ANSWERS,
    STANDARD,
    Kind,
    Setup,
    Variant,
    capacity_per_s,
    engines,
    load,
    run,
)
from bench.workload import Bursts, Lognormal
from penstock.core.values.actions import Dispatch
from penstock.sim.world.report import ratio
from penstock.sim.world.workload import Constant, InFlight, Stream
from penstock.sim.world.world import World, WorldObserver
from penstock.sim.world.world_values import SimulatedJourney


def priorities(setup: Setup) -> RunResult:
    """30 low ones wait, then 5 high ones come: these are the next five served. And a day of both."""
    low = Stream("low", Bursts(38, 1e9), Constant(300), Constant(300), band=STANDARD)
    high = Stream("high", Bursts(5, 1e9), Constant(300), Constant(300), band=INTERACTIVE, start_s=1.0)
    short = Setup(setup.seed, 60.0, setup.checked, setup.progress)
    burst = run(short, Variant("30 low, then 5 high", engines=engines(1, slots=8)), (low, high), warm_s=0.0)
    sent = [j for j in burst.world.done if (j.dispatched_s or 0.0) > 1.0]
    sent.sort(key=lambda journey: (journey.dispatched_s or 0.0, journey.lease))
    waited = sum(j.job.stream.tenant == "low" for j in sent)
    next_five = sum(journey.job.stream.tenant == "high" for journey in sent[:5])

    pool = engines()
    interactive = load("high", CHAT, 0.3 * capacity_per_s(pool, CHAT), band=INTERACTIVE)
    standard = load("low", LONG_ANSWERS, 2.0 * capacity_per_s(pool, LONG_ANSWERS), band=STANDARD)
    warm_s = setup.duration_s / 4
    alone = run(setup, Variant("high alone", without=frozenset({"low"})), (interactive, standard), warm_s=warm_s)
    both = run(setup, Variant("high at 30 %, low at 200 %"), (interactive, standard), warm_s=warm_s)
    is_high = "high".__eq__
    measures = (
        Measure("low ones waiting when the high ones came", waited, at_least(30)),
        Measure("high ones among the next five served", next_five, at_least(5)),
        Measure("p99 TTFT of high beside low / alone", ratio(both.ttft_p99_s(is_high), alone.ttft_p99_s(is_high))),
    )
    lines = tuple(each.line(who, who.__eq__) for each in (alone, both) for who in ("high", "low"))
    return RunResult(
        "priorities", setup.seed, setup.duration_s, measures, tuple(line for line in lines if line.requests)
    )


class BatchWatch(WorldObserver):
    """Looks at the engine each time a batch request is sent, and once a second at all idle slots."""

    def __init__(self, warm_s: float) -> None:
        self._warm_s = warm_s
        self.sent = 0
        self.projected = 0  # requests sent while the scheduler believed that others wait in the engine
        self.truly = 0  # requests sent while others did wait there: gauges are up to half a second old
        self.slots = 0
        self.idle = 0

    def dispatched(self, world: World, journey: SimulatedJourney, action: Dispatch) -> None:
        if journey.job.stream.band != BATCH:
            return
        self.sent += 1
        self.truly += world.nodes[action.endpoint].engine.gauges().waiting > 0
        endpoint = world.scheduler.inspect().pool[action.endpoint]
        base = endpoint.ledger.page.base
        # The request itself is in the projection by now: it counts for one where no slot is known to be free.
        own = 1 if base is not None and base.waiting > 0 else 0
        self.projected += endpoint.ledger.engine_queue(world.now) > own

    def second(self, world: World) -> None:
        if world.now >= self._warm_s:
            for node in world.nodes.values():
                self.slots += node.spec.config.max_num_seqs
                self.idle += max(0, node.spec.config.max_num_seqs - node.engine.in_engine)


PROMISED = 0.2
SHARE_PLAY = 0.02  # the difference that one long answer makes in a minute
SHORT: Kind = (Lognormal(50, 100), Lognormal(20, 40))


def promised_share(setup: Setup) -> RunResult:
    """Batch work with a promised share of a fifth, from the first minute on, beside people who take all they can."""
    pool = engines(1, slots=8)
    bands = (*BANDS[:BATCH], structs.replace(BANDS[BATCH], min_share=PROMISED))
    measures: list[Measure] = []
    lines: list[ReportLine] = []
    for name, people, batch in (
        ("short batch beside long", LONG_ANSWERS, SHORT),
        ("long batch beside short", SHORT, LONG_ANSWERS),
        ("alike", CHAT, CHAT),
    ):
        streams = (
            Stream("people", InFlight(64), *people, band=INTERACTIVE),
            Stream("batch", InFlight(64), *batch, band=BATCH),
        )
        done = run(
            Setup(setup.seed, 62.0, setup.checked, setup.progress),
            Variant(name, bands=bands, engines=pool),
            streams,
            warm_s=0.0,
        )
        got = service_between(done.world.samples, 1.0, 61.0)
        share = ratio(sum(value for (who, _), value in got.items() if who == "batch"), sum(got.values()))
        measures.append(
            Measure(
                f"{name}: distance from the promised share in the first 60 s",
                abs(share - PROMISED),
                at_most(SHARE_PLAY),
            )
        )
        lines += [done.line(who, who.__eq__) for who in ("people", "batch")]
    return RunResult("promised_share", setup.seed, 62.0, tuple(measures), tuple(lines))


def batch_band(setup: Setup) -> RunResult:
    """Interactive work at 40 % of capacity, and more batch work than there is room for."""
    pool = engines()
    interactive = load("people", CHAT, 0.4 * capacity_per_s(pool, CHAT), band=INTERACTIVE)
    batch = Stream("batch", InFlight(400), *LONG_ANSWERS, band=BATCH)
    warm_s = min(30.0, setup.duration_s / 4)
    watch = BatchWatch(warm_s)
    alone = run(setup, Variant("people alone", without=frozenset({"batch"})), (interactive, batch), warm_s=warm_s)
    variant = Variant("people at 40 %, batch")
    both = run(setup, variant, (interactive, batch), warm_s=warm_s, watch=watch)
    is_people = "people".__eq__
    measures = (
        Measure("batch requests sent into a projected engine queue", watch.projected, at_most(0)),
        Measure("batch requests sent into a true one", watch.truly),
        Measure("batch requests sent", watch.sent),
        Measure("share of slots in use", 1.0 - ratio(watch.idle, watch.slots), at_least(0.97)),
        Measure(
            "p99 TTFT of people beside batch / alone",
            ratio(both.ttft_p99_s(is_people), alone.ttft_p99_s(is_people)),
        ),
    )
    lines = tuple(each.line(who, who.__eq__) for each in (alone, both) for who in ("people", "batch"))
    return RunResult(
        "batch_band", setup.seed, setup.duration_s, measures, tuple(line for line in lines if line.requests)
    )


def preemption(setup: Setup) -> RunResult:
    """People at a fifth of capacity beside a preemptible batch of whole answers that fills all idle slots.

    Two engines of 8, 32 and 64 slots. Lost: the slot time of preempted answers, of all slot time.
    """
    bands = (*BANDS[:BATCH], structs.replace(BANDS[BATCH], preemptible=True))
    warm_s = min(10.0, setup.duration_s / 4)
    is_people = "people".__eq__
    measures: list[Measure] = []
    lines: list[ReportLine] = []
    for slots in (8, 32, 64):
        pool = engines(slots=slots)
        people = load("people", CHAT, 0.2 * capacity_per_s(pool, CHAT), band=INTERACTIVE)
        batch = Stream("batch", InFlight(6 * slots), *LONG_ANSWERS, band=BATCH, streamed=False)
        watch = BatchWatch(warm_s)
        alone = run(
            setup,
            Variant(f"{slots} slots, people alone", engines=pool, without=frozenset({"batch"})),
            (people, batch),
            warm_s=warm_s,
        )
        variant = Variant(f"{slots} slots, with a batch", bands=bands, engines=pool)
        both = run(setup, variant, (people, batch), warm_s=warm_s, watch=watch)
        lost_s = both.world.scheduler.inspect().preemption.lost_s_total
        slower = ratio(both.ttft_p99_s(is_people), alone.ttft_p99_s(is_people))
        measures += [
            Measure(f"{slots} slots: p99 TTFT of people beside a batch / alone", slower, at_most(1.3)),
            Measure(f"{slots} slots: share of slots in use", 1.0 - ratio(watch.idle, watch.slots), at_least(0.95)),
            Measure(f"{slots} slots: share of slot time lost", lost_s / (2 * slots * setup.duration_s), at_most(0.03)),
        ]
        lines += [each.line(who, who.__eq__) for each in (alone, both) for who in ("people", "batch")]
    return RunResult(
        "preemption", setup.seed, setup.duration_s, tuple(measures), tuple(line for line in lines if line.requests)
    )
