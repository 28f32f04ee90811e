"""What chat of single turns meets beside agents' sessions: alone, beside sessions without a gate, and with the gate.

Four engines, chat of another tenant at so many requests a second (600 tokens, 200 to answer, Poisson), sessions with
think times of up to 10 s. The first five minutes do not count. What chat asks is the same in each run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import SessionSettings
from penstock.sim import command
from penstock.sim.command import EXIT_OK, ProgressLine
from penstock.sim.engine.profiles import AGENTS_PROFILE
from penstock.sim.traces.session_cli import CONTEXT_MAX, engine
from penstock.sim.traces.session_source import SessionLoad, SessionSource
from penstock.sim.traces.sessions import RecordedSession, read
from penstock.sim.traces.trace_run import BOUNDS, PATIENCE_S
from penstock.sim.world.report import percentile
from penstock.sim.world.workload import ArrivalSource, Constant, Poisson, Stream
from penstock.sim.world.world import World
from penstock.sim.world.world_values import EngineSpec, SimulatedJourney, WorldSettings

ENDPOINTS = 4
GAP_CAP_S = 10.0
WARM_UP_S, DURATION_S = 300.0, 1200.0
PROMPT_TOKENS, ANSWER_TOKENS = 600, 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `python -m bench chat`."""
    parser.add_argument("--trace", metavar="FILE", type=Path, required=True, help="recorded sessions of coding agents")
    parser.add_argument("--sessions", metavar="N,N,…", default="48,128", help="open at a time (default %(default)s)")
    parser.add_argument("--per-s", metavar="X", type=float, default=8.0, help="chats a second (default %(default)s)")
    parser.add_argument("--seeds", metavar="N,N,…", default="1,2,3", help="one run each (default %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="show no progress (shown only on a terminal)")


def main(args: argparse.Namespace) -> int:
    """Run it and print a table."""
    line = ProgressLine("chat", shown=command.shown(args))
    sessions = read(args.trace, CONTEXT_MAX)
    table = Table(title="chat beside sessions, times in seconds", title_justify="left")
    for name in ("sessions", "gate", "seed", "chats", "TTFT p50", "p99", "whole p50", "p99", "p99 ÷ alone"):
        table.add_column(name, justify="right")
    for seed in (int(word) for word in args.seeds.split(",")):
        alone_s = 0.0
        ways = [(0, "off"), *((int(word), gate) for word in args.sessions.split(",") for gate in ("off", "memory"))]
        for count, gate in ways:
            line.tell(f"{count} sessions, gate {gate}", seed, len(ways))
            firsts, wholes = chats(sessions, count, args.per_s, seed, memory=gate == "memory")
            first_s, whole_s = percentile(firsts, 0.99), percentile(wholes, 0.99)
            alone_s = alone_s or first_s
            figures = (percentile(firsts, 0.5), first_s, percentile(wholes, 0.5), whole_s, first_s / alone_s)
            table.add_row(str(count), gate, str(seed), str(len(firsts)), *(f"{value:.3f}" for value in figures))
    line.clear()
    Console(width=120).print(table)
    return EXIT_OK


def chats(
    sessions: list[RecordedSession], count: int, per_s: float, seed: int, *, memory: bool
) -> tuple[list[float], list[float]]:
    """Returns what chats took to the first token and to the last, sorted."""
    chat = Stream("chat", Poisson(per_s), Constant(PROMPT_TOKENS), Constant(ANSWER_TOKENS))
    sources: list[ArrivalSource] = [ArrivalSource(chat, 1, Random(seed))]
    if count:
        sources.append(SessionSource(sessions, SessionLoad((count,), gap_cap_s=GAP_CAP_S), seed=seed, bypass=False))
    firsts: list[float] = []
    wholes: list[float] = []

    def take(journey: SimulatedJourney) -> None:
        asked_s = journey.job.at_s
        if journey.job.stream is chat and asked_s >= WARM_UP_S and journey.first_s and journey.ended_s:
            firsts.append(journey.first_s - asked_s)
            wholes.append(journey.ended_s - asked_s)

    config = engine(AGENTS_PROFILE)
    scheduler = SchedulerSettings(
        bounds=BOUNDS,
        wait_s_max=PATIENCE_S,
        routing="predicted_ttft",
        sessions=SessionSettings(memory=memory),
    )
    engines = tuple(EngineSpec(f"engine-{n}", config, config.max_num_seqs) for n in range(ENDPOINTS))
    settings = WorldSettings(scheduler=scheduler, engines=engines, seed=seed, duration_s=DURATION_S, checked=False)
    World(settings, sources, sink=take).run()
    return sorted(firsts), sorted(wholes)
