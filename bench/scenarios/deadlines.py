"""Are deadlines kept that can be kept, and is no request refused that would have been in time?

The oracle is the same workload on the same engines with no request refused: a request that has its first token by its
deadline there could be served in time. If it is refused for its deadline all the same, it was refused wrongly.
"""

from __future__ import annotations

from dataclasses import replace

from bench.report import Measure, ReportLine, RunResult, at_most
from bench.scenarios.base import CHAT, LONG_PROMPTS, Run, Setup, Variant, capacity_per_s, engines, load, run
from penstock.sim.world.report import ratio
from penstock.sim.world.workload import Stream
from penstock.sim.world.world_values import SimulatedJourney, Spell

DEADLINES_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # for the first token, which takes 0.03 to 0.5 s on an idle engine
LOADS = (0.3, 0.7, 0.95)
LONG_SHARE = 0.08  # of the requests: documents, which keep the prompts behind them waiting
JUMP_EVERY_S = 30.0
JUMP_S = 1.0
JUMP_FACTOR = 10.0  # steps of a tenth to two seconds: an engine that compiles, or whose host does something else
WRONG_MAX = 0.01


def deadlines(setup: Setup) -> RunResult:
    """Chats with deadlines of 0.2 to 5 s, one request in twelve a document, and engines that stall now and then."""
    measures: list[Measure] = []
    lines: list[ReportLine] = []
    jumps = tuple(
        Spell(JUMP_EVERY_S * (number + 1), JUMP_S, JUMP_FACTOR)
        for number in range(int(setup.duration_s // JUMP_EVERY_S))
    )
    for part in LOADS:
        for spells, how in (((), ""), (jumps, ", with jumps")):
            name = f"load {part:g}{how}"
            streams = _streams(part)
            done = run(setup, Variant(name, spells=spells), streams, warm_s=0.0)
            free = tuple(replace(stream, deadline_s=None) for stream in streams)
            oracle = run(setup, Variant(f"{name}, nobody refused", spells=spells), free, warm_s=0.0)
            measures += _judged(name, done, oracle)
            lines += [each.line("all") for each in (oracle, done)]
    return RunResult("deadlines", setup.seed, setup.duration_s, tuple(measures), tuple(lines))


def _streams(part: float) -> tuple[Stream, ...]:
    chats_per_s, documents_per_s = capacity_per_s(engines(), CHAT), capacity_per_s(engines(), LONG_PROMPTS)
    capacity = 1.0 / ((1 - LONG_SHARE) / chats_per_s + LONG_SHARE / documents_per_s)
    per_s = part * capacity / len(DEADLINES_S)
    made: list[Stream] = []
    for deadline_s in DEADLINES_S:
        chats = load(f"chat {deadline_s:g} s", CHAT, (1 - LONG_SHARE) * per_s)
        documents = load(f"document {deadline_s:g} s", LONG_PROMPTS, LONG_SHARE * per_s)
        made += [replace(stream, deadline_s=deadline_s) for stream in (chats, documents)]
    return tuple(made)


def _judged(name: str, done: Run, oracle: Run) -> list[Measure]:
    allowed_s = {f"{kind} {s:g} s": s for kind in ("chat", "document") for s in DEADLINES_S}
    could = {j.job.id for j in oracle.world.done if _in_time(j, allowed_s[j.job.stream.tenant])}
    end_s = done.end_s - max(DEADLINES_S)
    judged = [j for j in done.world.done if j.job.at_s < end_s]
    refused = [j for j in judged if j.outcome in ("rejected", "evicted")]
    wrong = [j for j in refused if j.job.id in could]
    feasible = sum(j.job.id in could for j in judged)
    kept = sum(_in_time(j, j.job.stream.deadline_s or 0.0) for j in judged)
    late = sum(not _in_time(j, j.job.stream.deadline_s or 0.0) for j in judged if j.first_s is not None)
    return [
        Measure(f"{name}: refused although it could be met", ratio(len(wrong), feasible), at_most(WRONG_MAX)),
        Measure(f"{name}: kept / could be kept", ratio(kept, feasible)),
        Measure(f"{name}: refused, of what could not be met", ratio(len(refused) - len(wrong), len(judged) - feasible)),
        Measure(f"{name}: sent and late", ratio(late, len(judged))),
    ]


def _in_time(journey: SimulatedJourney, within_s: float) -> bool:
    return journey.first_s is not None and journey.first_s - journey.job.at_s <= within_s
