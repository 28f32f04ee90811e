"""One cell of the lab, run in three ways: how well does a gateway without configuration do?

*Untold* is the gateway with default settings and `slots: auto`; *told* the same with the engines' slots in its
settings; *through* the same with queueing off, so that the engines queue. Every run has the same engines, clients and
seed. Throughput is output tokens per second after ten seconds, of all clients together: an answer longer than the run
counts with the tokens that were made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from random import Random

import msgspec
from msgspec import structs

from bench.lab.cells import LIGHT_ANSWER, LONG_PROMPT, QUEUE_MAX, WARM_S, Cell, CellLoad
from bench.report import done_per_s, ttfts
from bench.scenarios.base import STANDARD
from bench.workload import Lognormal
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import BandSettings, SessionSettings
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.workload import ArrivalSource, Constant, InFlight, Job, Lengths, Poisson, Stream
from penstock.sim.world.world import World
from penstock.sim.world.world_values import EngineSpec, SimulatedJourney, WorldSettings

OF_TOLD_MIN, OF_THROUGH_MIN = 0.95, 0.93
AT_ODDS_MIN = 0.95  # of what is possible with a short queue, if that is less
LIGHT_MAX = 1.5  # p99 of the light tenant's time to first token, as a multiple of the told gateway's
WRONG_SHARE_MAX = 0.01  # of the deadlines that pass-through met: a forecast may err now and then
LATE_S = 3.0
IN_TIME_S = 60.0  # without a deadline: the gateway's own `queue.max_wait`
LOOK_S = 0.05  # between two looks at how many requests an engine holds
PICTURE_SHARE = 0.5  # of requests: the others are texts, which must not suffer
PICTURE_TOKENS = 1_000  # a large picture in a large model
BLOCK_TOKENS, DOCUMENT_BLOCKS = 512, 8
LIGHT, HEAVY, FOREIGN = "light", "heavy", "others"


class Way(StrEnum):
    """How a cell is run."""

    UNTOLD = "untold"
    TOLD = "told"
    THROUGH = "through"


class CellRun(msgspec.Struct, frozen=True):
    """The figures of one way to run a cell."""

    tokens_per_s: float
    queue_p99: float
    light_p99_s: float
    late_share: float
    slots: int
    refused: frozenset[str]  #: ids of requests that were refused, timed out or failed
    in_time: frozenset[str]  #: ids of requests that had their first token in time
    outside: int  #: how many requests did not have it in time
    reasons: dict[str, int]


class CellRow(msgspec.Struct, frozen=True):
    """The figures of a cell. Ratios are of the untold gateway to the others; NaN if there is nothing to compare."""

    cell: str
    seed: int
    tokens_per_s: float
    of_told: float
    of_through: float
    told_of_through: float
    queue_p99: float
    light_p99_s: float
    light_of_told: float
    late_share: float
    wrong: int  #: requests refused or timed out though pass-through served them in time
    slots: int  #: how many the untold gateway believed the engines to have together, at the end
    reasons: dict[str, int]  #: of those it refused
    missed: tuple[str, ...]
    cpu_s: float


def run_cell(cell: Cell, seed: int, *, checked: bool = False) -> CellRow:
    """Run a cell in all three ways. Returns the comparison."""
    began_s = time.process_time()
    untold, told, through = (run_way(cell, way, seed, checked=checked) for way in Way)
    of_told = ratio(untold.tokens_per_s, told.tokens_per_s)
    of_through = ratio(untold.tokens_per_s, through.tokens_per_s)
    light_of_told = ratio(untold.light_p99_s, told.light_p99_s)
    wrong = len(untold.refused & through.in_time)
    if (
        cell.load is not CellLoad.OPEN
    ):  # the n-th request of a closed loop differs between ways: only the number of requests compares
        wrong = max(0, len(untold.refused) - through.outside)
    in_time = len(through.in_time)
    at_odds = cell.turnover_max < OF_THROUGH_MIN
    of_through_min = cell.turnover_max * AT_ODDS_MIN if at_odds else OF_THROUGH_MIN
    held = {
        "told": cell.deadline_s is not None or not of_told < OF_TOLD_MIN,
        "through": cell.load is CellLoad.FLOOD or cell.deadline_s is not None or not of_through < of_through_min,
        "queue": at_odds or untold.queue_p99 <= QUEUE_MAX,
        "light": not light_of_told > LIGHT_MAX,
        "wrong": wrong <= (WRONG_SHARE_MAX * in_time if cell.deadline_s is not None else 0),
        "late": cell.late_share_max is None or untold.late_share <= cell.late_share_max,
    }
    return CellRow(
        cell=cell.name,
        seed=seed,
        tokens_per_s=untold.tokens_per_s,
        of_told=of_told,
        of_through=of_through,
        told_of_through=ratio(told.tokens_per_s, through.tokens_per_s),
        queue_p99=untold.queue_p99,
        light_p99_s=untold.light_p99_s,
        light_of_told=light_of_told,
        late_share=untold.late_share,
        wrong=wrong,
        slots=untold.slots,
        reasons=untold.reasons,
        missed=tuple(name for name, met in held.items() if not met),
        cpu_s=time.process_time() - began_s,
    )


def run_way(cell: Cell, way: Way, seed: int, *, checked: bool = False) -> CellRun:
    """Run a cell in one way. Returns its figures."""
    end_s = WARM_S + cell.measured_s
    told = cell.slots if way is Way.TOLD else None
    settings = WorldSettings(
        scheduler=default_settings(queue_enabled=way is not Way.THROUGH),
        engines=tuple(
            EngineSpec(f"engine-{number}", cell.config, told, strange=strange)
            for number, strange in enumerate(cell.engines)
        ),
        seed=seed,
        duration_s=end_s,
        checked=checked,
    )
    world = World(settings, _sources(cell, seed))
    beyond: list[float] = []
    _look_from(world, WARM_S, lambda: _note_beyond(world, cell.slots, beyond))
    world.run()
    return _figures(world, cell, beyond, end_s)


def default_settings(*, queue_enabled: bool = True) -> SchedulerSettings:
    """Returns the settings of a gateway whose configuration names nothing but endpoints."""
    return SchedulerSettings(
        bands=(
            BandSettings("interactive", engine_waiting_max=3),
            BandSettings("standard", engine_waiting_max=2),
            BandSettings("batch", engine_waiting_max=0, preemptible=True),
        ),
        queue_enabled=queue_enabled,
        routing="predicted_ttft",
        stale_after_s=3.0,
        sessions=SessionSettings(memory=True),
    )


# --- load -------------------------------------------------------------------------------------------------------


class _Prompts(ArrivalSource):
    """Requests of a cell: some have long prompts, carry a picture, or begin with one of a few documents."""

    def __init__(self, stream: Stream, number: int, random: Random, cell: Cell) -> None:
        super().__init__(stream, number, random)
        self._cell = cell

    def job(self, at_s: float) -> Job:
        job, cell = super().job(at_s), self._cell
        more, blocks = 0, job.blocks
        if cell.long_share and self._random.random() < cell.long_share:
            more = LONG_PROMPT
        if cell.documents:
            document = self._random.randrange(cell.documents)
            blocks = tuple(document * 1_000 + block for block in range(DOCUMENT_BLOCKS))
            more = BLOCK_TOKENS * DOCUMENT_BLOCKS
        if more:
            size = round(job.body_bytes * (job.prompt_tokens + more) / job.prompt_tokens)
            job = structs.replace(
                job, prompt_tokens=job.prompt_tokens + more, body_bytes=size, blocks=blocks, block_tokens=BLOCK_TOKENS
            )
        if cell.picture_bytes and self._random.random() < PICTURE_SHARE:
            tokens = job.prompt_tokens + PICTURE_TOKENS
            size = job.body_bytes + cell.picture_bytes
            job = structs.replace(job, prompt_tokens=tokens, body_bytes=size, picture_bytes=cell.picture_bytes)
        return job


def _sources(cell: Cell, seed: int) -> list[ArrivalSource]:
    random = Random(seed)
    engines = len(cell.engines)
    clients = engines * cell.clients_each
    heavy = Stream(
        HEAVY,
        Poisson(cell.share * engines * cell.capacity_per_s) if cell.load is CellLoad.OPEN else InFlight(clients),
        _lengths(cell.prompt),
        _lengths(cell.answer),
        band=STANDARD,
        streamed=cell.streamed,
        deadline_s=cell.deadline_s,
    )
    made: list[ArrivalSource] = [_Prompts(heavy, 0, Random(random.getrandbits(64)), cell)]
    if cell.half_whole:
        halves = [replace(heavy, arrivals=InFlight(clients - clients // 2))]
        halves += [replace(heavy, arrivals=InFlight(clients // 2), streamed=False)]
        made = [_Prompts(half, n, Random(random.getrandbits(64)), cell) for n, half in enumerate(halves)]
    if cell.load is CellLoad.FLOOD:
        light = Stream(
            LIGHT,
            Poisson(engines * cell.light_per_s),
            Constant(cell.prompt),
            Constant(LIGHT_ANSWER),
            band=STANDARD,
            streamed=cell.streamed,
            start_s=WARM_S / 2,
        )
        made.append(ArrivalSource(light, 1, Random(random.getrandbits(64))))
    if cell.foreign:
        foreign = InFlight(max(1, round(engines * cell.slots * cell.foreign)))
        past = Stream(FOREIGN, foreign, Constant(cell.prompt), _lengths(cell.answer), bypass=True)
        made.append(ArrivalSource(past, 2, Random(random.getrandbits(64))))
    return made


def _lengths(mean: int) -> Lengths:
    return Constant(mean) if mean < 10 else Lognormal(mean, 2.5 * mean)


# --- results ----------------------------------------------------------------------------------------------------


def _look_from(world: World, at_s: float, look: Callable[[], None]) -> None:
    def again() -> None:
        look()
        world.at(world.now + LOOK_S, again)

    world.at(at_s, again)


def _note_beyond(world: World, slots: int, into: list[float]) -> None:
    into += [float(max(0, node.engine.in_engine - slots)) for node in world.nodes.values()]


def _figures(world: World, cell: Cell, beyond: list[float], end_s: float) -> CellRun:
    done = [journey for journey in world.done if journey.job.stream.tenant != FOREIGN]
    light = [j for j in done if j.job.stream.tenant == LIGHT and j.job.at_s >= WARM_S]
    refused = [j for j in done if j.outcome in ("rejected", "evicted", "failed")]
    in_time = frozenset(j.job.id for j in done if _in_time(j))
    reasons: dict[str, int] = {}
    for journey in refused:
        reasons[journey.reason] = reasons.get(journey.reason, 0) + 1
    waits = ttfts((j for j in done if j.job.at_s >= WARM_S), end_s) if cell.late_share_max is not None else []
    tokens = partial(done_per_s, world.samples, WARM_S, end_s, keep=lambda _: True)
    late = [j for j in done if j.outcome and not _in_time(j)]
    return CellRun(
        tokens_per_s=tokens(worth=lambda prompt, output: output),  # noqa: ARG005
        queue_p99=percentile(beyond, 0.99),
        light_p99_s=percentile(ttfts(light, end_s), 0.99),
        late_share=ratio(sum(wait > LATE_S for wait in waits), len(waits)),
        slots=sum(endpoint.slots for endpoint in world.scheduler.snapshot(now=world.now).endpoints),
        refused=frozenset(j.job.id for j in refused),
        in_time=in_time,
        outside=len(late),
        reasons=reasons,
    )


def _in_time(journey: SimulatedJourney) -> bool:
    """True if the request had its first token in time, and has not ended badly since."""
    if journey.first_s is None or journey.outcome not in ("", "completed"):
        return False
    deadline_s = journey.job.deadline_s
    return journey.first_s <= (journey.job.at_s + IN_TIME_S if deadline_s is None else deadline_s)
