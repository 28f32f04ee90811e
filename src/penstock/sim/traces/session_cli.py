"""`penstock simulate --trace FILE --format agents`: recorded sessions of coding agents as a closed loop."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.core.values.settings import RoutingSettings, SessionSettings
from penstock.sim import command
from penstock.sim.command import CLEAR, EXIT_FAILED, EXIT_OK, ProgressLine
from penstock.sim.engine.profiles import AGENTS_PROFILE, PROFILES, EngineConfig
from penstock.sim.traces.session_run import DURATION_S, WARM_UP_S, SessionFigures, SessionOptions, TurnFigures, run
from penstock.sim.traces.session_source import SessionLoad
from penstock.sim.traces.sessions import read
from penstock.sim.traces.trace import BLOCK_TOKENS, TraceError

SESSIONS = 32
SESSIONS_MAX = 10_000
CONTEXT_MAX = 200_000
ENDPOINTS = 4
DEFAULT_ROUTINGS = "predicted_ttft"
GATES = ("off", "memory")
WAIT_S = 300.0


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flags that only sessions have."""
    group.add_argument("--sessions", metavar="N", type=int, help=f"agents: open at a time (default {SESSIONS})")
    group.add_argument("--tenants", metavar="N,N,…", help="agents: open sessions of each tenant; they add up to N")
    group.add_argument("--gap-cap", metavar="S", type=float, help="agents: longest think time (default: as recorded)")
    group.add_argument(
        "--context-max",
        metavar="N",
        type=int,
        help=f"agents: leave longer sessions out (default {CONTEXT_MAX:,} tokens)",
    )
    group.add_argument("--warm-up", metavar="S", type=float, help=f"agents: not counted (default {WARM_UP_S:g} s)")
    group.add_argument("--weights", metavar="X,X,…", help="agents: of the tenants (default 1 each)")
    group.add_argument("--gate", choices=GATES, default="off", help="agents: on sessions, before the engines")
    group.add_argument("--gate-wait", metavar="S", type=float, help=f"agents: the gate's W (default {WAIT_S:g} s)")


def problem(args: argparse.Namespace) -> str | None:
    """Returns the problem with the flags of sessions, or None."""
    try:
        tenants, weights = _tenants(args), _weights(args)
    except ValueError:
        return "--tenants takes numbers with commas between them, like 86,22,10,10, and so does --weights"
    if len(weights) not in (0, len(tenants)) or not all(0 < weight < math.inf for weight in weights):
        return "--weights takes a number above 0 for each of --tenants"
    if not 1 <= sum(tenants) <= SESSIONS_MAX or min(tenants) < 1:
        return f"--sessions and --tenants take 1 to {SESSIONS_MAX:,} sessions"
    if args.sessions is not None and sum(tenants) != args.sessions:
        return f"--tenants {args.tenants} are {sum(tenants)} sessions, and --sessions is {args.sessions}"
    if args.gap_cap is not None and not 0 <= args.gap_cap < math.inf:
        return "--gap-cap takes seconds, 0 or more"
    warm_up_s, duration_s = _window(args)
    if not 0 <= warm_up_s < duration_s:
        return f"--warm-up takes seconds below the duration, {duration_s:g}"
    if args.context_max is not None and args.context_max < 1:
        return "--context-max takes tokens, 1 or more"
    if args.gate_wait is not None and not 0 < args.gate_wait < math.inf:
        return "--gate-wait takes seconds, above 0"
    if args.plot or args.speed != 1.0 or args.no_queue:
        return "--plot, --speed and --no-queue are not for sessions of agents"
    return None


def run_sessions(args: argparse.Namespace) -> int:
    """Play the sessions. Returns 0, or 1 if the file has none."""
    line = ProgressLine("sessions", shown=command.shown(args))
    try:
        rows = _rows(args, line)
    except TraceError as error:
        print(f"{CLEAR if sys.stderr.isatty() else ''}penstock simulate: {error}", file=sys.stderr)
        return EXIT_FAILED
    line.clear()
    if args.json:
        print(msgspec.json.encode(rows).decode())
        return EXIT_OK
    console = Console(width=None if sys.stdout.isatty() else 150)
    count, endpoints = sum(_tenants(args)), _endpoints(args)
    console.print(table(rows, f"{Path(args.trace).name}: {count} sessions, {endpoints} × {_profile(args)}"))
    return EXIT_OK


def _rows(args: argparse.Namespace, line: ProgressLine) -> list[SessionFigures]:
    warm_up_s, duration_s = _window(args)
    config = engine(_profile(args), args.kv_tokens)
    options = SessionOptions(
        load=SessionLoad(tenants=_tenants(args), weights=_weights(args), gap_cap_s=args.gap_cap),
        endpoints=_endpoints(args),
        engine=config,
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        router=RoutingSettings(affinity_wait_s=args.affinity_wait, imbalance_threshold=args.imbalance_threshold),
        checked=args.check,
        rivals=args.rivals,
        gate=SessionSettings(
            memory=args.gate == "memory", wait_s=args.gate_wait if args.gate_wait is not None else WAIT_S
        ),
    )
    sessions = read(Path(args.trace), min(args.context_max or CONTEXT_MAX, config.max_model_len))
    rows: list[SessionFigures] = []
    for routing in (args.routing or DEFAULT_ROUTINGS).split(","):
        for seed in command.seeds(args):
            line.seed = seed
            rows.append(run(sessions, routing, seed, options, partial(line.tell, routing)))
    return rows


def engine(profile: str, kv_tokens: int | None = None) -> EngineConfig:
    """Returns a profile with the sessions' block size, and another KV memory if `kv_tokens` says so."""
    config = replace(PROFILES[profile], step_jitter=0.05)
    count = (kv_tokens or config.kv_blocks * config.block_size) // BLOCK_TOKENS
    return replace(config, kv_blocks=count, block_size=BLOCK_TOKENS)


def _tenants(args: argparse.Namespace) -> tuple[int, ...]:
    if args.tenants:
        return tuple(int(word) for word in args.tenants.split(","))
    return (args.sessions if args.sessions is not None else SESSIONS,)


def _weights(args: argparse.Namespace) -> tuple[float, ...]:
    return tuple(float(word) for word in args.weights.split(",")) if args.weights else ()


def _window(args: argparse.Namespace) -> tuple[float, float]:
    duration_s = args.duration if args.duration is not None else DURATION_S
    return (args.warm_up if args.warm_up is not None else min(WARM_UP_S, duration_s / 2)), duration_s


def _endpoints(args: argparse.Namespace) -> int:
    return args.endpoints if args.endpoints is not None else ENDPOINTS


def _profile(args: argparse.Namespace) -> str:
    return args.profile or AGENTS_PROFILE


def table(rows: list[SessionFigures], title: str) -> Table:
    """One line per run and tenant."""
    made = Table(title=title, title_justify="left")
    made.add_column("routing")
    made.add_column("tenant")
    for name in (
        "seed",
        "turns",
        "output tok/s",
        "prefill tok/s",
        "hit rate",
        "TTFT p50 s",
        "p90",
        "p99",
        "longest",
        "KV held",
    ):
        made.add_column(name, justify="right")
    for row in rows:
        _add(made, row, row.routing, row.seed)
        for tenant in row.tenants:
            _add(made, tenant, "", row.seed)
    return made


def _add(made: Table, row: TurnFigures, routing: str, seed: int) -> None:
    made.add_row(
        routing,
        row.tenant,
        str(seed),
        f"{row.turns:,}",
        f"{row.output_tokens_per_s:,.0f}",
        f"{row.prefill_tokens_per_s:,.0f}",
        f"{row.hit_rate:.3f}",
        *(f"{x:.1f}" for x in (row.ttft_p50_s, row.ttft_p90_s, row.ttft_p99_s, row.ttft_longest_s)),
        f"{row.kv_held_tokens:,.0f}",
    )
