"""Trouble: too much work, an engine that dies or freezes, clients that hang up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import eq

from msgspec import structs

from bench.report import Measure, RunResult, at_least, at_most
from bench.scenarios.base import (
    BANDS,
    BATCH,
    CHAT,
    LONG_PROMPTS,
    STANDARD,
    Run,
    Setup,
    Variant,
    capacity_per_s,
    engines,
    load,
    run,
)
from bench.workload import Lognormal
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.workload import Poisson, Stream
from penstock.sim.world.world_values import Death, Freeze, FreezeKind, SimulatedJourney

OVERLOAD_TIMES = 1.75
SHED_TARGET_S = 5.0
FROZEN_S = 5.0
DEADLINE_S = 5.0  # for the first token; the p99 at 85 % load is near 1 s
SHORT = (Lognormal(100, 300), Lognormal(40, 100))  # answers that are there long before a freeze is over
ESTIMATES_S = (5.0, 60.0)  # waits that Retry-After is judged by


def overload(setup: Setup) -> RunResult:
    """1.75 times what the engines can do, each request with a deadline for its first token; then without."""
    per_s = OVERLOAD_TIMES * capacity_per_s(engines(), CHAT)
    tenants = [load(f"tenant-{number}", CHAT, per_s / 4) for number in range(4)]
    with_deadline = tuple(replace(stream, deadline_s=DEADLINE_S) for stream in tenants)
    warm_s = min(40.0, setup.duration_s / 4)
    through = run(setup, Variant("pass-through", queue=False), with_deadline, warm_s=warm_s)
    ours = run(setup, Variant("penstock, deadline 5 s"), with_deadline, warm_s=warm_s)
    plain = run(setup, Variant("penstock, no deadline"), tuple(tenants), warm_s=warm_s)
    # A request that waits longer than `max_wait` leaves, which shortens the wait behind it: no estimate foresees that.
    patient = run(setup, Variant("the same, max_wait 600 s", wait_s_max=600.0), tuple(tenants), warm_s=warm_s)
    errors, unlimited = _estimate_errors(plain), _estimate_errors(patient)
    measures = (
        Measure("goodput / capacity: pass-through", ratio(_on_time(through), _served(through))),
        Measure("goodput / capacity: penstock", ratio(_on_time(ours), _served(through)), at_least(0.95)),
        Measure("late / served: penstock", 1.0 - ratio(_on_time(ours), _served(ours)), at_most(0.02)),
        Measure("Retry-After, median relative error", percentile(errors, 0.5), at_most(0.15)),
        Measure("Retry-After, p90 relative error", percentile(errors, 0.9)),
        Measure("Retry-After, estimates judged", len(errors)),
        Measure("Retry-After, median relative error, max_wait 600 s", percentile(unlimited, 0.5)),
        Measure("Retry-After, p90 relative error, max_wait 600 s", percentile(unlimited, 0.9)),
    )
    lines = tuple(each.line("all") for each in (through, ours, plain, patient))
    return RunResult("overload", setup.seed, setup.duration_s, measures, lines)


def _first_tokens(done: Run) -> list[SimulatedJourney]:
    return [j for j in done.world.done if j.first_s is not None and done.warm_s <= j.first_s < done.end_s]


def _served(done: Run) -> float:
    """First tokens per second: what the engines did."""
    return len(_first_tokens(done)) / (done.end_s - done.warm_s)


def _on_time(done: Run) -> float:
    on_time = [j for j in _first_tokens(done) if j.first_s is not None and j.first_s <= (j.job.deadline_s or j.first_s)]
    return len(on_time) / (done.end_s - done.warm_s)


def _estimate_errors(done: Run) -> list[float]:
    """Relative errors of the waits estimated at arrival, for waits between 5 and 60 s."""
    low_s, high_s = ESTIMATES_S
    return [
        abs(j.estimate_s - j.queue_s) / j.queue_s
        for j in done.journeys()
        if j.estimate_s is not None and j.dispatched_s is not None and low_s <= j.queue_s <= high_s
    ]


def shedding(setup: Setup) -> RunResult:
    """A flood of best-effort work at 1.5 times capacity, beside a light tenant in its band and people above it."""
    capacity = capacity_per_s(engines(), CHAT)
    streams = (
        load("flood", CHAT, 1.5 * capacity, band=BATCH),
        load("light", CHAT, 0.1 * capacity, band=BATCH),
        load("people", CHAT, 0.15 * capacity),
    )
    warm_s = min(60.0, setup.duration_s / 3)
    sheds = (*BANDS[:BATCH], structs.replace(BANDS[BATCH], shed_target_s=SHED_TARGET_S))
    plain = run(setup, Variant("nothing is shed"), streams, warm_s=warm_s)
    shed = run(setup, Variant("shed_target 5 s", bands=sheds), streams, warm_s=warm_s)
    waits = {done: _waits_s(done, "flood") for done in (plain, shed)}
    refused = [j for j in shed.journeys(lambda tenant: tenant == "flood") if j.outcome in ("rejected", "evicted")]
    others = [j for j in shed.journeys(lambda tenant: tenant != "flood") if j.outcome in ("rejected", "evicted")]
    measures = (
        Measure("flood's wait / target, p50: nothing is shed", percentile(waits[plain], 0.5) / SHED_TARGET_S),
        Measure("flood's wait / target, p50: shed", percentile(waits[shed], 0.5) / SHED_TARGET_S, at_most(2.0)),
        Measure("flood's wait / target, p99: shed", percentile(waits[shed], 0.99) / SHED_TARGET_S, at_most(2.0)),
        Measure("goodput: shed / nothing is shed", ratio(shed.utilisation(), plain.utilisation()), at_least(0.98)),
        Measure(
            "refused of the flood, share at the door",
            ratio(sum(j.outcome == "rejected" for j in refused), len(refused)),
        ),
        Measure("refused of the light tenant and the people", len(others), at_most(0)),
    )
    groups = ("flood", "light", "people")
    lines = tuple(done.line(name, partial(eq, name)) for done in (plain, shed) for name in groups)
    return RunResult("shedding", setup.seed, setup.duration_s, measures, lines)


def _waits_s(done: Run, tenant: str) -> list[float]:
    return [j.queue_s for j in done.journeys(lambda name: name == tenant) if j.dispatched_s is not None]


def engine_death(setup: Setup) -> RunResult:
    """Three engines at 60 % load; one dies for 20 s. A client without a byte yet may notice nothing but a wait."""
    pool = engines(3)
    streams = (load("chat", CHAT, 0.6 * capacity_per_s(pool, CHAT)),)
    dies_s = setup.duration_s / 3
    calm = run(setup, Variant("nobody dies", engines=pool), streams, warm_s=0.0)
    death = Variant("one dies for 20 s", engines=pool, deaths=(Death("engine-0", dies_s, 20.0),))
    done = run(setup, death, streams, warm_s=0.0)
    lost = [j for j in done.world.done if j.outcome == "failed"]
    early = [j for j in lost if j.first_s is None]
    after = [j for j in done.world.done if j.job.at_s > dies_s + 30.0 and j.dispatched_s is not None]
    to_it = sum(j.lease > 0 and j.requeues == 0 for j in after)
    measures = (
        Measure("failed before their first byte", len(early), at_most(0)),
        Measure("broken streams", len(lost) - len(early)),
        Measure("sent again, unnoticed", sum(j.requeues > 0 for j in done.world.done)),
        Measure("sent without trouble once it was back", ratio(to_it, len(after)), at_least(1.0)),
        Measure("leases that nobody holds", leaked(done), at_most(0)),
        Measure("p99 TTFT / nobody dies", ratio(done.ttft_p99_s(), calm.ttft_p99_s())),
    )
    return RunResult("engine_death", setup.seed, setup.duration_s, measures, tuple(x.line("all") for x in (calm, done)))


def frozen_engine(setup: Setup) -> RunResult:
    """Two engines at 40 % load; one stands still for 5 s while its gauges answer, and goes on. The same with short
    answers that do not stream, in each way to stand still. Then an engine that is only silent over long prompts, which
    must not count as frozen.
    """
    pool = engines(2)
    streams = (load("chat", CHAT, 0.4 * capacity_per_s(pool, CHAT)),)
    at_s = setup.duration_s / 2
    calm = run(setup, Variant("nothing happens", engines=pool), streams, warm_s=0.0)
    freeze = Variant("one stands still for 5 s", engines=pool, freezes=(Freeze("engine-0", at_s, FROZEN_S),))
    done = run(setup, freeze, streams, warm_s=0.0)
    short = (replace(load("short", SHORT, 0.3 * capacity_per_s(pool, SHORT)), streamed=False),)
    kinds = {
        kind: run(
            setup,
            Variant(
                f"not streamed, one {kind}",
                engines=pool,
                freezes=(Freeze("engine-0", at_s, FROZEN_S, kind),),
                scrape_s=1.0,
            ),
            short,
            warm_s=0.0,
        )
        for kind in FreezeKind
    }
    whole = run(setup, Variant("not streamed, nothing happens", engines=pool, scrape_s=1.0), short, warm_s=0.0)
    documents = (load("documents", LONG_PROMPTS, 0.6 * capacity_per_s(pool, LONG_PROMPTS)),)
    long = run(setup, Variant("long prompts, nothing happens", engines=pool), documents, warm_s=0.0)
    near = [j for j in done.journeys() if at_s - 1.0 <= j.job.at_s <= at_s + FROZEN_S]
    measures = (
        Measure("later than 3 s, of those that came in the freeze or just before", _later(near, 3.0), at_most(0.02)),
        Measure("later than 3 s, of all", _later(done.journeys(), 3.0), at_most(0.02)),
        Measure("taken back", _taken_back(done), at_least(1)),
        *[
            Measure(
                f"the same, not streamed, one {kind}",
                _answered_later([j for j in each.journeys() if at_s <= j.job.at_s < at_s + FROZEN_S], 3.0),
                at_most(0.05 if kind == "hangs" else 0.02),  # it is found by its page, read once a second here
            )
            for kind, each in kinds.items()
        ],
        Measure("failed", sum(j.outcome == "failed" for j in done.world.done), at_most(0)),
        Measure("taken back where nothing happens", _taken_back(calm), at_most(0)),
        Measure("taken back of whole answers where nothing happens", _taken_back(whole), at_most(0)),
        Measure("taken back of long prompts", _taken_back(long), at_most(0)),
        Measure("leases that nobody holds", leaked(done), at_most(0)),
    )
    lines = tuple(each.line("all") for each in (calm, done, *kinds.values(), whole, long))
    return RunResult("frozen_engine", setup.seed, setup.duration_s, measures, lines)


def _later(journeys: list[SimulatedJourney], than_s: float) -> float:
    """The share of requests whose first token took longer."""
    return ratio(sum(j.first_s is None or j.first_s - j.job.at_s > than_s for j in journeys), len(journeys))


def _answered_later(journeys: list[SimulatedJourney], than_s: float) -> float:
    """The share of requests whose whole answer took longer."""
    return ratio(sum(j.ended_s is None or j.ended_s - j.job.at_s > than_s for j in journeys), len(journeys))


def _taken_back(done: Run) -> int:
    return sum(j.requeues > 0 for j in done.world.done)


def cancel_storm(setup: Setup) -> RunResult:
    """Twice the capacity, and half of all clients hang up: while waiting, on the way, and while they are served."""
    per_s = 2.0 * capacity_per_s(engines(), CHAT)
    arrivals = Poisson(per_s / 2)
    storm = Stream("storm", arrivals, *CHAT, band=STANDARD, hang_up_share=0.7, hang_up_s=4.0)
    calm = Stream("calm", arrivals, *CHAT, band=STANDARD, hang_up_share=0.3, hang_up_s=10.0)
    done = run(setup, Variant("penstock"), (storm, calm), warm_s=min(20.0, setup.duration_s / 4))
    through = run(setup, Variant("pass-through", queue=False), (storm, calm), warm_s=done.warm_s)
    gone = [j for j in done.world.done if j.outcome == "cancelled"]
    measures = (
        Measure("hung up", len(gone)),
        Measure("hung up before being sent", sum(j.dispatched_s is None for j in gone)),
        Measure("leases that nobody holds", leaked(done), at_most(0)),
        Measure("requests in engines that nobody waits for", _orphans(done), at_most(0)),
        Measure("throughput / pass-through", ratio(done.utilisation(), through.utilisation())),
    )
    return RunResult(
        "cancel_storm", setup.seed, setup.duration_s, measures, tuple(x.line("all") for x in (through, done))
    )


def leaked(done: Run) -> float:
    """Leases in the scheduler's books beyond the requests under way."""
    held = sum(j.node is not None and not j.job.stream.bypass for j in done.world.journeys.values())
    return abs(done.world.scheduler.snapshot(now=done.end_s).running - held)


def _orphans(done: Run) -> float:
    """Requests in engines whose clients are gone, except those whose abort is on its way."""
    nodes = done.world.nodes.values()
    inside = sum(node.engine.in_engine for node in nodes)
    return max(0, inside - sum(j.node is not None for j in done.world.journeys.values()) - len(nodes))
