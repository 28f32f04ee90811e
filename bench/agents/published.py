"""Is the simulated world true? The measured curve of four engines without a gate, and with one, beside ours.

Measured: github.com/zetxqx/thunderagent-original-verification, vLLM 0.28 on two H100 each. Steps 13 (no gate: llm-d's
default scorers) and 17 (lease gate): four engines, sessions from their first turn, think times capped at 10 s, half an
hour from cold caches (the gate's hit rate: from the tenth minute on). Step 24: one engine, sessions from their middle,
an hour after a warm-up.

The engine is the profile `h100x2-30b`, whose constants come from single requests, not from these curves. The recorded
sessions at hand are others than those of the measurement, so two things are adapted: answers are `OUTPUT_FACTOR` times
as long (their mean by turn), and of sessions from their first turn, those that begin with a long prompt are left out
(their prompts by turn). One constant is fitted, with the hit rates at 96, 128 and 338 sessions: the share of the KV
memory that is left to these sessions. The measured ones had sub-agents, whose contexts fill the rest and are hardly
used again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.agents.rivals import RIVALS
from penstock.sim import command
from penstock.sim.command import EXIT_FAILED, EXIT_OK, ProgressLine
from penstock.sim.engine.profiles import AGENTS_PROFILE
from penstock.sim.traces.session_cli import engine
from penstock.sim.traces.session_run import SessionFigures, SessionOptions, run
from penstock.sim.traces.session_source import SessionLoad
from penstock.sim.traces.sessions import RecordedSession, read
from penstock.sim.traces.trace import TraceError

GAP_CAP_S = 10.0
CONTEXT_MAX = 245_000
TURNS_MAX = 400
FIRST_PROMPT_MAX = 80_000
OUTPUT_FACTOR = 1.65
MEMORY_SHARE = 0.85

# sessions: hit rate, output tokens/s, prefill tokens/s, TTFT p50, TTFT p90, turns
Point = tuple[float, float, float | None, float | None, float, int | None]
FOUR: dict[int, Point] = {
    48: (0.932, 2014, 11_787, 0.4, 1.4, 3740),
    96: (0.725, 1541, 38_157, 0.5, 14.0, 3578),
    128: (0.336, 1151, 68_157, 8.2, 32.9, 3026),
    192: (0.043, 1065, 86_055, 36.0, 81.1, 2933),
    256: (0.002, 999, 86_313, 65.8, 124.0, 3005),
    338: (0.002, 1050, 90_122, 101.5, 177.9, 3321),
}
FOUR_GATED: dict[int, Point] = {128: (0.778, 1871, 34_400, 0.5, 8.5, None)}
ONE: dict[int, Point] = {
    12: (0.933, 340, None, None, 1.33, 1361),
    16: (0.847, 288, None, None, 9.18, 1156),
    20: (0.609, 218, None, None, 48.4, 985),
    24: (0.297, 154, None, None, 74.1, 822),
    32: (0.278, 152, None, None, 154.0, 899),
}
ONE_GATED: dict[int, Point] = {
    12: (0.932, 338, None, None, 1.39, 1361),
    16: (0.903, 344, None, None, 3.38, 1296),
    20: (0.869, 322, None, None, 5.48, 1529),
    24: (0.812, 296, None, None, 14.2, 1343),
    32: (0.728, 230, None, None, 43.3, 1269),
}


@dataclass(frozen=True)
class Curve:
    """One measured curve."""

    engines: int
    rule: str
    points: Mapping[int, Point]
    begun: tuple[float, float] = (0.0, 0.0)  #: the share of a session's turns that is over at the start
    warm_up_s: float = 0.0
    measured_s: float = 1800.0


CURVES = (
    Curve(4, "pinned_by_prefix", FOUR),
    Curve(4, "lease_gate", FOUR_GATED),
    Curve(1, "no_gate", ONE, (0.25, 0.75), 900.0, 3600.0),
    Curve(1, "lease_gate", ONE_GATED, (0.25, 0.75), 900.0, 3600.0),
)
COLUMNS = ("hit rate", "output tok/s", "prefill tok/s", "TTFT p50 s", "TTFT p90 s", "turns")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--trace", metavar="FILE", type=Path, required=True, help="recorded sessions of coding agents")
    parser.add_argument("--sessions", metavar="N,N,…", help="only these points of the curve")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="seed of all randomness (default 1)")
    parser.add_argument("--quiet", action="store_true", help="show no progress (shown only on a terminal)")


def main(args: argparse.Namespace) -> int:
    """Print the measured and the simulated curve. Returns 0, or 1 if the file has no sessions."""
    try:
        sessions = read(args.trace, CONTEXT_MAX)
    except TraceError as error:
        print(f"bench published: {error}")
        return EXIT_FAILED
    only = {int(word) for word in args.sessions.split(",")} if args.sessions else None
    line = ProgressLine("published", shown=command.shown(args))
    table = Table(title="measured / simulated", title_justify="left")
    for name in ("rule", "sessions", *COLUMNS):
        table.add_column(name, justify="right")
    for curve in CURVES:
        for count, measured in curve.points.items():
            if only is not None and count not in only:
                continue
            played = sessions if curve.begun[1] else comparable(sessions)
            row = simulated(played, curve, count, args.seed, line)
            ours = (row.hit_rate, row.output_tokens_per_s, row.prefill_tokens_per_s, row.ttft_p50_s, row.ttft_p90_s)
            table.add_row(f"{curve.engines} × {curve.rule}", str(count), *map(_pair, measured, (*ours, row.turns)))
    line.clear()
    Console(width=130).print(table)
    return EXIT_OK


def comparable(sessions: list[RecordedSession]) -> list[RecordedSession]:
    """Returns the sessions whose prompts by turn are about as long as those of the measurement."""
    return [
        session
        for session in sessions
        if len(session.requests) <= TURNS_MAX and 0 < session.requests[0].prompt < FIRST_PROMPT_MAX
    ]


def simulated(
    sessions: list[RecordedSession], curve: Curve, count: int, seed: int, line: ProgressLine
) -> SessionFigures:
    """Returns one point of the simulated curve."""
    whole = engine(AGENTS_PROFILE)
    config = replace(whole, kv_blocks=round(MEMORY_SHARE * whole.kv_blocks))
    load = SessionLoad((count,), gap_cap_s=GAP_CAP_S, begun=curve.begun, output_factor=OUTPUT_FACTOR)
    options = SessionOptions(
        load,
        curve.engines,
        config,
        duration_s=curve.warm_up_s + curve.measured_s,
        warm_up_s=curve.warm_up_s,
        rivals=RIVALS,
    )
    return run(sessions, curve.rule, seed, options, partial(line.tell, f"{curve.rule} at {count}"))


def _pair(measured: float | None, ours: float) -> str:
    digits = 3 if ours < 1 and (measured or 0) < 1 else 1 if ours < 1000 else 0
    return f"{'–' if measured is None else f'{measured:,.{digits}f}'} / {ours:,.{digits}f}"
