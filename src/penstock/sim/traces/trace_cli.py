"""`penstock simulate --trace FILE`: a recorded workload under a choice of routing policies."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.routing.policies.registry import POLICIES
from penstock.core.values.settings import RoutingSettings
from penstock.sim import command
from penstock.sim.command import CLEAR, EXIT_FAILED, EXIT_OK, EXIT_USAGE, ProgressLine
from penstock.sim.engine.profiles import AGENTS_PROFILE, PROFILES, EngineConfig
from penstock.sim.traces import session_cli
from penstock.sim.traces.sessions import is_sessions
from penstock.sim.traces.trace import BLOCK_TOKENS, FORMATS, Trace, TraceError
from penstock.sim.traces.trace_run import Curves, Figures, Options
from penstock.sim.traces.trace_run import run as run_trace
from penstock.sim.world.passthrough import RIVALS, MakeRival

ALL_FORMATS = (*FORMATS, "agents")
ENDPOINTS, ENDPOINTS_MAX = 8, 256
PROFILE = "default"
SPEED_MAX = 1000.0
KV_TOKENS = 4_000_000  # per engine; with less, no cache of a conversation outlives the next ones
DEFAULT_ROUTINGS = "predicted_ttft,round_robin_passthrough,least_requests"


def add_arguments(parser: argparse.ArgumentParser, rivals: Mapping[str, MakeRival] = RIVALS) -> None:
    """Add the flags; `rivals` are the ways to bypass the gateway that `--routing` offers."""
    group = parser.add_argument_group("the workload")
    group.add_argument(
        "--trace", metavar="FILE", help=f"a recorded workload ({', '.join(ALL_FORMATS)}; gzipped or not)"
    )
    group.add_argument("--format", choices=ALL_FORMATS, help="of the trace, if its first line does not show it")
    group.add_argument("--routing", metavar="NAME,NAME,…", help=_names(rivals))
    group.add_argument(
        "--endpoints", "--engines", metavar="N", type=int, help=f"engines (default {ENDPOINTS}; agents: 4)"
    )
    group.add_argument("--speed", metavar="X", type=float, default=1.0, help="times as fast as recorded (default 1)")
    group.add_argument(
        "--profile", choices=PROFILES, help=f"of the engines (default {PROFILE}; agents: {AGENTS_PROFILE})"
    )
    group.add_argument(
        "--kv-tokens",
        metavar="N",
        type=int,
        help=f"KV memory per engine (default {KV_TOKENS:,} if the trace has blocks, otherwise the profile's)",
    )
    group.add_argument("--fairness", choices=FAIRNESS, default="weighted_tokens", help="between the trace's tenants")
    group.add_argument("--no-queue", action="store_true", help="Penstock's policies send on arrival, too")
    group.add_argument("--affinity-wait", metavar="S", type=float, help="routing.affinity_wait (default auto)")
    group.add_argument("--imbalance-threshold", metavar="N", type=float, default=math.inf, help="load_balanced_kv's")
    group.add_argument("--plot", metavar="FILE.png", help="draw the TTFT curves, hit rate and imbalance over time")
    session_cli.add_arguments(parser.add_argument_group("sessions of coding agents (--format agents)"))
    command.add_arguments(parser)
    command.add_duration(parser)
    parser.set_defaults(rivals=rivals)


def _names(rivals: Mapping[str, MakeRival]) -> str:
    return ", ".join((*POLICIES, *rivals))


def run(args: argparse.Namespace) -> int:
    """Run the trace. Returns 0, 1 if the file is not a trace, 2 for wrong flags."""
    agents = args.trace is not None and (args.format or ("agents" if is_sessions(Path(args.trace)) else "")) == "agents"
    if not agents:
        _set_defaults(args)
    problem = command.problem(args) or _problem(args) or (session_cli.problem(args) if agents else None)
    if problem is not None:
        print(f"penstock simulate: {problem}", file=sys.stderr)
        return EXIT_USAGE
    if agents:
        return session_cli.run_sessions(args)
    line = ProgressLine("trace", shown=command.shown(args))
    try:
        rows, curves = _runs(args, Trace(Path(args.trace), args.format), command.seeds(args), line.say)
    except TraceError as error:
        print(f"{CLEAR if sys.stderr.isatty() else ''}penstock simulate: {error}", file=sys.stderr)
        return EXIT_FAILED
    line.clear()
    title = f"{Path(args.trace).name}: {args.endpoints} × {args.profile}, {args.speed:g}x"
    if args.plot:
        from penstock.sim.traces.trace_plot import plot  # noqa: PLC0415  (matplotlib is not needed for anything else)

        plot(Path(args.plot), title, curves)
    if args.json:
        print(msgspec.json.encode(rows).decode())
    else:
        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(table(rows, title))
        if any(row.tenants for row in rows):
            console.print(_tenants_table(rows))
    return EXIT_OK


def _set_defaults(args: argparse.Namespace) -> None:
    """Fill in the flags whose default depends on the format."""
    args.routing = args.routing or DEFAULT_ROUTINGS
    args.endpoints = ENDPOINTS if args.endpoints is None else args.endpoints
    args.profile = args.profile or PROFILE


def _runs(
    args: argparse.Namespace, trace: Trace, seeds: list[int], say: Callable[[str], None]
) -> tuple[list[Figures], dict[str, Curves]]:
    """Returns all runs, and the curves of the first seed's."""
    options = _options(args, trace)
    rows: list[Figures] = []
    curves: dict[str, Curves] = {}
    for routing in args.routing.split(","):
        for seed in seeds:

            def tell(now_s: float, _: float, of: str = f"{routing}, seed {seed}") -> None:
                say(f"{of}: {trace.share:.0%} of the trace, {now_s:.0f} simulated seconds")

            figures, drawn = run_trace(trace, routing, seed, options, tell)
            rows.append(figures)
            curves.setdefault(routing, drawn)
    return rows, curves


def _problem(args: argparse.Namespace) -> str | None:
    if args.trace is None:
        return "--trace FILE is missing"
    known = (*POLICIES, *args.rivals)
    for name in (args.routing or DEFAULT_ROUTINGS).split(","):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
            return f"--routing knows no {name!r}; {hint}"
    if args.endpoints is not None and not 1 <= args.endpoints <= ENDPOINTS_MAX:
        return f"--endpoints takes 1 to {ENDPOINTS_MAX}"
    if not 0 < args.speed <= SPEED_MAX:
        return f"--speed takes a number above 0, up to {SPEED_MAX:g}"
    if args.kv_tokens is not None and args.kv_tokens < BLOCK_TOKENS:
        return f"--kv-tokens takes {BLOCK_TOKENS} or more"
    if args.affinity_wait is not None and not 0 <= args.affinity_wait < math.inf:
        return "--affinity-wait takes seconds, 0 or more"
    if not args.imbalance_threshold > 0:
        return "--imbalance-threshold takes a number above 0"
    if args.plot and not Path(args.plot).absolute().parent.is_dir():
        return f"--plot: there is no folder {Path(args.plot).parent}"
    if args.plot and not _can_plot():
        return "--plot needs matplotlib; pip install 'penstock-gateway[plots]'"
    return None


def _can_plot() -> bool:
    from importlib.util import find_spec  # noqa: PLC0415

    return find_spec("matplotlib") is not None


def _options(args: argparse.Namespace, trace: Trace) -> Options:
    return Options(
        endpoints=args.endpoints,
        speed=args.speed,
        engine=engine(args.profile, args.kv_tokens, blocks=trace.has_blocks),
        queue=not args.no_queue,
        fairness=args.fairness,
        router=RoutingSettings(affinity_wait_s=args.affinity_wait, imbalance_threshold=args.imbalance_threshold),
        duration_s=args.duration,
        checked=args.check,
        rivals=args.rivals,
    )


def engine(profile: str, kv_tokens: int | None = None, *, blocks: bool = True) -> EngineConfig:
    """Returns a profile; for a trace with blocks, with the trace's block size and a context as long as its memory."""
    config = replace(PROFILES[profile], step_jitter=0.05)
    if not blocks:
        return replace(config, kv_blocks=kv_tokens // config.block_size) if kv_tokens else config
    count = (kv_tokens or KV_TOKENS) // BLOCK_TOKENS
    return replace(config, kv_blocks=count, block_size=BLOCK_TOKENS, max_model_len=count * BLOCK_TOKENS)


def table(rows: list[Figures], title: str) -> Table:
    """One line per run."""
    endless = rows[0].token_hit_rate_endless
    made = Table(title=title, title_justify="left")
    made.add_column("routing")
    for name in ("seed", "TTFT mean s", "p50", "p99", "queue s", "ms/token", "p99", "hit rate", "of endless"):
        made.add_column(name, justify="right")
    for name in ("imbalance", "done"):
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(
            row.routing,
            str(row.seed),
            *(f"{x:.2f}" for x in (row.ttft_mean_s, row.ttft_p50_s, row.ttft_p99_s, row.queue_mean_s)),
            *(f"{x * 1000:.0f}" for x in (row.tpot_mean_s, row.tpot_p99_s)),
            f"{row.token_hit_rate:.3f}",
            f"{row.token_hit_rate / endless:.0%}" if endless else "–",
            f"{row.imbalance:.2f}",
            f"{row.completed:,} of {row.requests:,}",
        )
    return made


def _tenants_table(rows: list[Figures]) -> Table:
    made = Table(title="tenants", title_justify="left")
    made.add_column("routing")
    for name in ("seed", "tenants", "service gap", "Jain worst", "mean", "light p50 s", "p99 s", "priced tok/s"):
        made.add_column(name, justify="right")
    for row in rows:
        if row.tenants is not None:
            told = row.tenants
            made.add_row(
                row.routing,
                str(row.seed),
                str(told.count),
                f"{told.service_gap_tokens:,.0f}",
                *("–" if math.isnan(x) else f"{x:.3f}" for x in (told.jain_worst, told.jain_mean)),
                *(f"{x:.2f}" for x in (told.light_ttft_p50_s, told.light_ttft_p99_s)),
                f"{told.priced_tokens_per_s:,.0f}",
            )
    return made
