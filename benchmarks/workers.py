"""Two workers beside one process: throughput, CPU per request and per chunk, the decider's part, added latency.

Interleaved rounds before the same pre-rendered engines; ratios within one run are what counts. CPU is that of the whole
process tree, from /proc; the decider's is that of its first process, which carries no bytes. How much room the engines
and the load generator leave is printed beside each throughput: on a machine whose cores are all taken, throughput says
how the CPU is shared and nothing else. Two figures say what such a machine can't show: the CPU of the busiest process
for each request or chunk (its inverse is what they could serve, each on a core of its own); with `--quota`, as root,
the throughput where each process may use a small part of a core, so that engines and load generator have the rest.

    python benchmarks/workers.py --seconds 3 --rounds 3
    python benchmarks/workers.py --seconds 4 --rounds 3 --scenarios 0.3k-64,stream-512 --quota 0.05
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path

from overhead import HERE, SCENARIOS, Figures, Proxy, Scenario, await_answer, free_port, running
from proxies import cpu, peers, quota

NAMES = ("0.3k-64", "stream-64", "latency")


def start(workers: int, ports: list[int], folder: Path, stack: contextlib.ExitStack) -> Proxy:
    """A gateway of so many workers."""
    own = folder / f"workers-{workers}"
    own.mkdir()
    place = peers.Place(free_port(), free_port(), ports, own, own)
    made = peers.penstock(place, more=f"workers: {workers}\n")
    log = own / "log"
    pid = stack.enter_context(running(made.command, log, made.environment))
    await_answer(f"{workers} workers", place.port, made.key, log)
    return Proxy(str(workers), place.port, pid, made.key)


def measure(proxy: Proxy, scenario: Scenario, args: argparse.Namespace) -> Figures:
    with quota.limited(cpu.tree(proxy.pid), args.quota) if args.quota else contextlib.nullcontext():
        figures = proxy.measure(scenario, scenario.seconds(args.seconds), args.warm_up)
    units = max(1.0, figures["events"] if scenario.stream_step_ms else figures["requests"])
    carried_s = (figures["cpu_s"] - figures["root_cpu_s"]) / int(proxy.name)  # by each worker; 0: there are none
    figures["busiest_us"] = max(figures["root_cpu_s"], carried_s) * 1e6 / units
    figures["root_us"] = figures["root_cpu_s"] * 1e6 / max(1.0, figures["requests"])
    figures["rate"] = units / figures["wall_s"]
    figures["client_share"] = figures["client_cpu_s"] / figures["wall_s"]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", default=",".join(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quota", type=float, default=0.0, help="of a core, that each process may use; 0: all of it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in args.scenarios.split(",")]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ports = [free_port(), free_port()]
        log = Path(folder) / "engine.log"
        stack.enter_context(running([sys.executable, str(HERE / "engine.py"), *map(str, ports)], log))
        await_answer("the engine", ports[0], "", log)
        gateways = [start(1, ports, Path(folder), stack), start(args.workers, ports, Path(folder), stack)]
        for number in range(args.rounds):
            for scenario in scenarios:
                if scenario.stream_step_ms:
                    step = f"http://127.0.0.1:{ports[0]}/step/{scenario.stream_step_ms}"
                    urllib.request.urlopen(step, timeout=5.0).close()
                for gateway in gateways if number % 2 == 0 else gateways[::-1]:
                    figures = measure(gateway, scenario, args)
                    rows.append({"scenario": scenario.name, "workers": gateway.name, **figures})
                    print(f"{scenario.name} {gateway.name}: {figures}", file=sys.stderr)
    if args.json:
        args.json.write_text("\n".join(map(json.dumps, rows)) + "\n")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {args.rounds} rounds of {args.seconds:g} s, medians")
    report(rows, [scenario.name for scenario in scenarios], str(args.workers))
    return 0


def report(rows: list[dict[str, object]], names: list[str], workers: str) -> None:
    """A line per load: one process, workers, and their ratio."""
    print("| load | figure | 1 process | workers | ratio |\n|---|---|---|---|---|")
    for name in names:
        unit = "chunk" if name.startswith("stream") else "request"
        titles = {"cpu_us": f"CPU µs per {unit}, all processes", "root_us": "CPU µs per request, first process"}
        titles |= {"busiest_us": f"CPU µs per {unit}, busiest process"}
        titles |= {"rate": f"{unit}s per second", "p50_ms": "p50, ms", "client_share": "load generator, cores"}
        for figure, title in titles.items():
            one, many = (
                statistics.median(float(str(row[figure])) for row in rows if (row["scenario"], row["workers"]) == key)
                for key in ((name, "1"), (name, workers))
            )
            print(f"| {name} | {title} | {one:,.2f} | {many:,.2f} | {many / one if one else 0:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
