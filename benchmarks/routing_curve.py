"""How does routing by default compare with other gateways' rules, from half of saturation to twice it?

Runs a trace as `python -m bench trace` does, once for each size of cache, speed, seed and way of routing that is not in
the file of rows yet, and adds its row there at once: a run that was cut off goes on where it was. Rivals depend on the
simulator alone, so keep their rows, and give the gateway's rows a file of their own for each state of the code. Virtual
time: the figures are the same on any machine. A run takes 10 to 40 s of a core.

python benchmarks/routing_curve.py --trace conversation_trace.jsonl --rows rows.jsonl --seeds 1,2,3
python benchmarks/routing_curve.py --rows rows.jsonl --table
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.traces.baselines import RIVALS as MODELS
from penstock.core.values.settings import RoutingSettings
from penstock.sim.traces.trace import Trace
from penstock.sim.traces.trace_cli import engine
from penstock.sim.traces.trace_run import Options, run

OWN = "predicted_ttft"
RIVALS = {
    "sglang_cache_aware": "s",
    "sglang_router_flags": "f",
    "llmd_affinity": "l",
    "dynamo_cost": "d",
    "least_requests": "r",
}
NOW = "sglang_cache_aware"  # SGLang's current rule
ENGINES = 8
POINTS = {  # tokens of KV of each engine, and times as fast as recorded: half of saturation to twice it
    400_000: (0.9, 1.3, 1.8, 2.6, 3.6),
    1_000_000: (1.3, 1.8, 2.2, 2.6, 3.4, 4.4),
    4_000_000: (1.3, 1.8, 2.2, 2.6, 3.9, 5.2),
}
GOALS = {"ttft_mean_s": 1.0, "ttft_p99_s": 1.0, "token_hit_rate": 0.95}

Key = tuple[str, int, float, int, str]  # trace, KV tokens, speed, seed, routing


def rows_in(paths: list[Path]) -> dict[Key, dict[str, float]]:
    """All rows of these files; of two of the same run, the later one."""
    rows: dict[Key, dict[str, float]] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            rows[row["trace"], row["kv_tokens"], row["speed"], row["seed"], row["routing"]] = row
    return rows


def run_missing(args: argparse.Namespace, paths: list[Path]) -> None:
    trace = Trace(Path(args.trace))
    known = rows_in(paths)
    for seed, (kv, speed), routing in product(args.seeds, args.points, args.routing):
        key = (args.name, kv, speed, seed, routing)
        if key in known:
            continue
        options = Options(
            endpoints=args.endpoints,
            speed=speed,
            engine=engine("default", kv, blocks=trace.has_blocks),
            router=RoutingSettings(),
            rivals=MODELS,
        )
        figures, _ = run(trace, routing, seed, options)
        told = {name: getattr(figures, name) for name in (*GOALS, "ttft_p50_s", "queue_mean_s", "tpot_p99_s")}
        row = dict(zip(("trace", "kv_tokens", "speed", "seed", "routing"), key, strict=True)) | told
        with Path(args.rows).open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)


def table(rows: dict[Key, dict[str, float]]) -> None:
    """Markdown: a line per point and seed, with what misses a goal in italics, and the averages."""
    print("| trace | KV tokens | speed | seed | mean s | p99 | hit rate | best rival: mean | p99 | hit rate ", end="")
    print("| mean, of best | p99, of best | hit, of best | mean, of SGLang's |\n|" + "---|" * 14)
    of_now: list[float] = []
    for trace, kv, speed, seed, routing in sorted(rows):
        own = rows[trace, kv, speed, seed, routing]
        rivals = {name: rows[key] for name in RIVALS if (key := (trace, kv, speed, seed, name)) in rows}
        if routing != OWN or not rivals:
            continue
        best, ratios = [], []
        for figure, goal in GOALS.items():
            name = (min if goal == 1.0 else max)(rivals, key=lambda rival: rivals[rival][figure])
            value = rivals[name][figure]
            best.append(f"{_shown(figure, value)} ({RIVALS[name]})")
            if not value:  # nothing is ever found in a cache
                ratios.append("–")
                continue
            ratio = own[figure] / value
            missed = round(ratio, 2) > goal if goal == 1.0 else round(ratio, 2) < goal
            ratios.append(f"*{ratio:.2f}, missed*" if missed else f"{ratio:.2f}")
        if NOW in rivals:
            of_now.append(own["ttft_mean_s"] / rivals[NOW]["ttft_mean_s"])
            ratios.append(f"{of_now[-1]:.2f}")
        else:
            ratios.append("not run")
        shown = [_shown(figure, own[figure]) for figure in GOALS]
        size = f"{kv / 1e6:g} M" if kv else "the profile's"
        print(f"| {trace} | {size} | {speed:g} | {seed} | " + " | ".join((*shown, *best, *ratios)) + " |")
    if of_now:
        print(f"\nOn average over {len(of_now)} runs the mean is {mean(of_now):.2f} of `{NOW}`.")


def _shown(figure: str, value: float) -> str:
    return f"{value:.3f}" if figure == "token_hit_rate" else f"{value:.1f}" if "p99" in figure else f"{value:.2f}"


def _points(told: str | None) -> list[tuple[int, float]]:
    """`400000@1.8,1000000@2.2`; 0 is the profile's own KV, for traces without blocks."""
    if told is None:
        return [(kv, speed) for kv, speeds in POINTS.items() for speed in speeds]
    return [(int(kv), float(speed)) for kv, _, speed in (point.partition("@") for point in told.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace")
    parser.add_argument("--name", default="mooncake", help="of the trace, in rows")
    parser.add_argument("--rows", required=True, help="the file that rows are read from and added to")
    parser.add_argument("--beside", default="", help="further files of rows, separated by commas; only read")
    parser.add_argument("--points", type=_points, default=_points(None), metavar="KV@SPEED,…")
    parser.add_argument("--seeds", type=lambda told: [int(seed) for seed in told.split(",")], default=[1])
    parser.add_argument("--routing", type=lambda told: told.split(","), default=[OWN, *RIVALS])
    parser.add_argument("--endpoints", type=int, default=ENGINES)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    args = parser.parse_args()
    paths = [Path(path) for path in (*filter(None, args.beside.split(",")), args.rows)]
    if not args.table:
        if args.trace is None:
            parser.error("--trace is needed to run anything")
        run_missing(args, paths)
    table(rows_in(paths))


if __name__ == "__main__":
    main()
