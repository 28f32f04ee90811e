"""`python -m bench slots`: does a gateway find the size of an engine that reports none, in each of some fresh starts?

Virtual time. Each scenario runs with the size untold and told, once per seed, and each start counts by itself: a limit
that is found in four starts of five loses half of an engine in the fifth. An engine's HTTP server may be slow (a time
per request, one after the other, as vLLM's beside a busy engine), and the gateway's loop may stall.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import msgspec

from bench.lab.matrix import default_settings
from bench.lab.pages import FROZEN_IDLE, MISSING
from bench.report import done_per_s
from bench.workload import Lognormal
from penstock.sim import command
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.engine.strange import PLAIN, Strange
from penstock.sim.engine.values import Progress
from penstock.sim.world.workload import ArrivalSource, Constant, InFlight, Lengths, Stream, sources
from penstock.sim.world.world import World
from penstock.sim.world.world_values import EngineNode, EngineSpec, SimulatedJourney, WorldSettings

LOOK_S = 0.1
CONSTANT = Constant(100)
BUSY = Strange(speeds=tuple((0.7 * n, Random(n).choice((1.0, 1.0, 2.0, 3.0))) for n in range(60)))  # by neighbours
BUSY_SILENT = replace(BUSY, page=MISSING)
SETTLED_S = 8.0  # the time that the gateway has to find out


@dataclass(frozen=True)
class Situation:
    """One engine (or more of the same kind), its callers, and the machine below the gateway."""

    name: str
    slots: int
    step_s: float = 0.03
    tokens: Lengths = CONSTANT
    clients: int = 0  #: 0: half more than slots
    streamed: float = 1.0  #: the share of clients that ask for a stream
    engines: int = 1
    duration_s: float = 20.0
    strange: Strange = PLAIN
    start_s: float = 0.0
    before: int = 0  #: clients of whole answers of one step before `start_s`
    hang_up_share: float = 0.0
    serve_s: float = 0.0
    answer_s: float = 0.0  #: the same server needs so long for each answer, and readings of the page wait behind them
    running_s: float = 0.0  #: a step is so much longer with each request that runs
    stalls_s: float = 0.0  #: the gateway's loop stands still for up to so long, half of the time

    @property
    def asking(self) -> int:
        return self.clients or round(1.5 * self.slots * self.engines)


class Start(msgspec.Struct, frozen=True):
    """The figures of one fresh start."""

    situation: str
    seed: int
    of_told: float  #: output tokens per second after `SETTLED_S`
    queue_mean: float  #: requests in an engine's own queue, after `SETTLED_S`
    queue_most: float  #: the same, the most at any look after the first second
    slots_least: int  #: the limit while requests wait, after `SETTLED_S`
    slots_most: int
    ends_second_s: float  #: answers per second in the second second after `start_s`

    def line(self) -> str:
        return (
            f"{self.situation:28} {self.seed:4} {self.of_told:8.3f} {self.queue_mean:7.1f} {self.queue_most:7.0f} "
            f"{self.slots_least:6} {self.slots_most:6} {self.ends_second_s:8.0f}"
        )


HEAD = f"{'situation':28} {'seed':>4} {'of told':>8} {'queue':>7} {'most':>7} {'slots':>6} {'to':>6} {'ends/s':>8}"


def _situations() -> list[Situation]:
    short = Constant(8)
    server: dict[str, Any] = {"serve_s": 0.003, "answer_s": 0.003, "running_s": 0.00025, "duration_s": 30.0}
    then: dict[str, Any] = {
        "clients": 128,
        "engines": 2,
        "before": 64,
        "start_s": 5.0,
        "duration_s": 12.0,
        "stalls_s": 0.05,
    }
    made = [
        Situation("queue64", 64, tokens=Constant(16), clients=96, duration_s=30.0),
        Situation("queue64/lengths", 64, tokens=Lognormal(16, 60), clients=96, duration_s=30.0),
        Situation("mix256", 256, step_s=0.04, tokens=short, clients=384, streamed=0.5, serve_s=0.0012),
        Situation("mix256/quick", 256, step_s=0.04, tokens=short, clients=384, streamed=0.5, serve_s=0.0006),
        Situation("stream256", 256, step_s=0.04, tokens=short, clients=384, serve_s=0.0012),
        Situation("whole256", 256, step_s=0.04, tokens=short, clients=384, streamed=0.0, serve_s=0.0012),
        Situation("busy256", 256, 0.015, Constant(16), streamed=0.0, strange=BUSY, **server),
        Situation("busy256/short", 256, 0.015, short, streamed=0.0, strange=BUSY, **server),
        Situation("busy64", 64, 0.015, Constant(16), streamed=0.0, strange=BUSY, **server),
        Situation("busy64/no-page", 64, 0.015, Constant(16), streamed=0.0, strange=BUSY_SILENT, **server),
        Situation("whole-then-streams", 512, 0.01, Constant(50), strange=Strange(page=FROZEN_IDLE), **then),
        Situation("whole-then-streams/page", 512, 0.01, Constant(50), **then),
        Situation("flood1000", 64, tokens=Constant(100), clients=1000),
        Situation("flood1000/idle", 64, tokens=Constant(100), clients=1000, before=96, start_s=10.0, duration_s=30.0),
        Situation("hang-ups", 8, tokens=Constant(60), clients=12, hang_up_share=0.3),
        Situation("hang-ups/64", 64, tokens=Constant(60), clients=96, hang_up_share=0.3),
        Situation("starved", 64, tokens=Constant(60), clients=96, stalls_s=0.2, streamed=0.5),
        Situation("starved/streams", 64, tokens=Constant(60), clients=96, stalls_s=0.2),
    ]
    made += [Situation(f"size/{n}", n, tokens=Lognormal(60, 150)) for n in (4, 16, 64, 256, 1024)]
    made += [Situation(f"half/{n}", n, tokens=Lognormal(60, 150), streamed=0.5) for n in (4, 64, 256)]
    made += [Situation(f"none/{n}", n, tokens=Lognormal(60, 150), streamed=0.0) for n in (4, 64, 256)]
    return made


SITUATIONS = {situation.name: situation for situation in _situations()}


class _Machine(World):
    """A world in which the engine's HTTP server and the gateway's loop take their time."""

    def __init__(self, settings: WorldSettings, made: list[ArrivalSource], situation: Situation) -> None:
        self._serve_s, self._stalls_s, self._answer_s = situation.serve_s, situation.stalls_s, situation.answer_s
        self._random = Random(settings.seed)
        self._free_s: dict[str, float] = {}
        self._stalled_until_s = 0.0
        super().__init__(settings, made)

    def _reaches_s(self, node: EngineNode, when: float) -> float:
        return max(when, self._free_s.get(node.spec.name, 0.0)) if self._answer_s else when

    def _deliver(self, node: EngineNode, heard: list[tuple[SimulatedJourney, int, int, Progress]]) -> None:
        if not self._answer_s:
            super()._deliver(node, heard)
            return
        for one in heard:
            served_s = max(self.now, self._free_s.get(node.spec.name, 0.0)) + self._answer_s
            self._free_s[node.spec.name] = served_s
            self.at(served_s + self.settings.network_s, partial(self._hear, [one]))

    def _send(self, journey: SimulatedJourney, node: EngineNode, life: int, lease: int) -> None:
        served_s = max(self.now, self._free_s.get(node.spec.name, 0.0)) + self._serve_s
        self._free_s[node.spec.name] = served_s
        self.at(served_s + self.settings.network_s, lambda: self._submit(journey, node, life, lease))

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Schedule an event; a stalled gateway hears it later."""
        heard = getattr(event, "func", None) in (self._hear, self._heard_gauges)
        super().at(max(when, self._stalled_until_s) if heard and self._stalls_s else when, event)

    def stall(self) -> None:
        self._stalled_until_s = self.now + self._random.uniform(0.0, self._stalls_s)
        super().at(self.now + 2.0 * self._stalls_s * self._random.random() + 0.01, self.stall)


def run(situation: Situation, seed: int, *, checked: bool = False) -> Start:
    """Run one fresh start, untold and told. Returns its figures."""
    told, *_ = _run(situation, seed, told=True, checked=checked)
    tokens, queue, most, slots, ends = _run(situation, seed, told=False, checked=checked)
    return Start(
        situation.name,
        seed,
        of_told=tokens / told,
        queue_mean=sum(queue) / max(1, len(queue)),
        queue_most=max(most, default=0.0),
        slots_least=min(slots, default=0),
        slots_most=max(slots, default=0),
        ends_second_s=ends,
    )


def _run(
    it: Situation, seed: int, *, told: bool, checked: bool
) -> tuple[float, list[float], list[float], list[int], float]:
    config = EngineConfig(
        step_s=None if it.running_s else it.step_s, step_base_s=it.step_s, decode_s_per_running=it.running_s,
        max_num_seqs=it.slots, max_num_batched_tokens=max(8192, it.slots), kv_blocks=1 << 20,
    )  # fmt: skip
    settings = WorldSettings(
        scheduler=default_settings(),
        engines=tuple(
            EngineSpec(f"engine-{n}", config, it.slots if told else None, strange=it.strange) for n in range(it.engines)
        ),
        seed=seed,
        duration_s=it.duration_s,
        checked=checked,
    )
    whole = round(it.asking * (1.0 - it.streamed))
    asks = [(it.asking - whole, True), (whole, False)]
    phase_s = Random(seed).random()  # of the callers against the readings of the page
    streams = tuple(
        Stream(
            "t", InFlight(count), Constant(20), it.tokens, band=1, streamed=streamed, start_s=it.start_s + phase_s,
            hang_up_share=it.hang_up_share, hang_up_s=1.0,
        )
        for count, streamed in asks
        if count
    )  # fmt: skip
    if it.before:
        ends_s = it.start_s if it.name != "flood1000/idle" else it.start_s / 2
        before = Stream("t", InFlight(it.before), Constant(20), Constant(1), band=1, streamed=False, end_s=ends_s)
        streams += (before if ends_s == it.start_s else replace(before, output=it.tokens, streamed=True),)
    world = _Machine(settings, sources(streams, seed), it)
    queue: list[float] = []
    most: list[float] = []
    slots: list[int] = []

    def look() -> None:
        for node in world.nodes.values():
            beyond = float(node.engine.gauges().waiting)
            if world.now > it.start_s + 1.0:
                most.append(beyond)
            if world.now > it.start_s + SETTLED_S:
                queue.append(beyond)
                if world.waiting["t"]:
                    slots.append(world.scheduler.inspect().pool[node.spec.name].slots)
        world.at(world.now + LOOK_S, look)

    offset_s = Random(seed).random() * LOOK_S
    world.at(offset_s, look)
    if it.stalls_s:
        world.at(offset_s, world.stall)
    world.run()
    settled_s = min(it.start_s + SETTLED_S, it.duration_s - 4.0)
    tokens = done_per_s(world.samples, settled_s, it.duration_s, keep=lambda _: True, worth=lambda _, output: output)
    ended = [j.ended_s for j in world.done if j.outcome == "completed" and j.job.stream.streamed]
    second = sum(1.0 <= (at or 0.0) - it.start_s - phase_s < 2.0 for at in ended)
    return tokens, queue, most, slots, float(second)


# --- the command --------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `python -m bench slots`."""
    parser.add_argument("--only", metavar="NAME,…", help="only these situations")
    command.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run the situations and print a line per start."""
    names = args.only.split(",") if args.only else list(SITUATIONS)
    print(HEAD)
    for name in names:
        for seed in command.seeds(args):
            start = run(SITUATIONS[name], seed, checked=args.check)
            print(msgspec.json.encode(start).decode() if args.json else start.line(), flush=True)
    return 0
