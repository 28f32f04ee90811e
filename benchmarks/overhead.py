"""The cost of a proxy. CPU time per request and per streamed chunk, added latency and memory, beside its peers.

How to read it: README.md, "Overhead". In short: read ratios within one table, made of interleaved rounds; absolute
figures depend on the machine and its other load. Every proxy stands in front of the same pre-rendered engines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxies import engine, peers
from rig import free_port

HERE = Path(__file__).parent / "proxies"
READY_S_MAX = 90.0
Figures = dict[str, float]


@dataclass(frozen=True)
class Scenario:
    """One kind of load."""

    name: str
    title: str
    size: int
    connections: int
    stream_step_ms: int = 0  #: streams of 100 events, one per step
    rate: float = 0.0

    def seconds(self, least_s: float) -> float:
        """How long to measure: whole streams, so that each one's own request counts, or a thousand paced requests."""
        if self.stream_step_ms:
            stream_s = self.stream_step_ms * engine.EVENTS / 1000
            return math.ceil(least_s / stream_s) * stream_s
        return 3 * least_s if self.rate else least_s


SCENARIOS = [
    *(
        Scenario(f"{label}-{connections}", f"{label} bodies, {connections} connections", size, connections)
        for label, size in (("0.3k", 300), ("16k", 16_384), ("128k", 131_072))
        for connections in (64, 512)
    ),
    Scenario("stream-64", "streams of 100 chunks, 64 at a time, a chunk each 10 ms", 300, 64, stream_step_ms=10),
    Scenario("stream-512", "streams of 100 chunks, 512 at a time, a chunk each 50 ms", 300, 512, stream_step_ms=50),
    Scenario("latency", "0.3 KB bodies at 100 requests a second", 300, 32, rate=100.0),
]


class Proxy:
    """A running proxy, or the engine itself (`direct`)."""

    def __init__(self, name: str, port: int, pid: int = 0, key: str = "") -> None:
        self.name = name
        self.port = port
        self.pid = pid
        self.key = key

    def measure(self, scenario: Scenario, seconds: float, warm_up: float) -> Figures:
        command = [sys.executable, HERE / "client.py", "--port", self.port, "--pid", self.pid, "--key", self.key]
        command += ["--connections", scenario.connections, "--size", scenario.size, "--rate", scenario.rate]
        command += ["--seconds", seconds, "--warm-up", warm_up, *(["--stream"] if scenario.stream_step_ms else [])]
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
        figures: Figures = json.loads(done.stdout)
        units = figures["events"] if scenario.stream_step_ms else figures["requests"]
        figures["cpu_us"] = figures["cpu_s"] * 1e6 / max(1.0, units)
        return figures


@contextlib.contextmanager
def running(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    """A process in a group of its own, that is gone afterwards with all it started."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **(environment or {})}
        )
        try:
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(port: int, key: str) -> bool:
    body = json.dumps({"model": engine.MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5})
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def await_answer(name: str, port: int, key: str, log: Path) -> None:
    until_s = time.monotonic() + READY_S_MAX
    while not answers(port, key):
        if time.monotonic() > until_s:
            raise SystemExit(f"{name} does not answer; the end of its log:\n{log.read_text()[-2000:]}")
        time.sleep(0.25)


def start_all(names: list[str], folder: Path, peers_at: Path, stack: contextlib.ExitStack) -> list[Proxy]:
    """The engines and every proxy that is found; what is missing is said."""
    ports = [free_port(), free_port()]
    command = [sys.executable, str(HERE / "engine.py"), *map(str, ports)]
    stack.enter_context(running(command, folder / "engine.log"))
    await_answer("the engine", ports[0], "", folder / "engine.log")
    started = [Proxy("direct", ports[0])]
    for name in names:
        own = folder / name
        own.mkdir()
        place = peers.Place(free_port(), free_port(), ports, own, peers_at)
        start = peers.PROXIES[name](place)
        if start is None:
            print(f"missing: {name} (see install_peers)", file=sys.stderr)
            continue
        log = own / "log"
        pid = stack.enter_context(running(start.command, log, start.environment))
        await_answer(name, place.port, start.key, log)
        print(f"started: {name}", file=sys.stderr)
        started.append(Proxy(name, place.port, pid, start.key))
    return started


def rounds(proxies: list[Proxy], scenarios: list[Scenario], args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One measurement after another, each round in another order."""
    for number in range(args.rounds):
        for scenario in scenarios:
            if scenario.stream_step_ms:
                step = f"http://127.0.0.1:{proxies[0].port}/step/{scenario.stream_step_ms}"
                urllib.request.urlopen(step, timeout=5.0).close()
            shift = number % len(proxies)
            for proxy in proxies[shift:] + proxies[:shift]:
                figures = proxy.measure(scenario, scenario.seconds(args.seconds), args.warm_up)
                print(f"round {number + 1} {scenario.name} {proxy.name}: {_brief(figures)}", file=sys.stderr)
                yield {"round": number, "scenario": scenario.name, "proxy": proxy.name, **figures}


def _brief(figures: Figures) -> str:
    counts = f"{figures['requests']:.0f} requests, {figures['failed']:.0f} failed"
    return f"{figures['cpu_us']:.1f} µs, {counts}, p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms"


class Report:
    """Tables in Markdown, from all measurements."""

    def __init__(self, rows: list[dict[str, object]], against: str) -> None:
        self._rows = rows
        self._against = against
        self._names = list(dict.fromkeys(str(row["proxy"]) for row in rows))

    def series(self, scenario: str, proxy: str, figure: str) -> list[float]:
        found = [row for row in self._rows if row["scenario"] == scenario and row["proxy"] == proxy]
        return [float(str(row[figure])) for row in sorted(found, key=lambda row: int(str(row["round"])))]

    def print(self, scenarios: list[Scenario]) -> None:
        for scenario in scenarios:
            print(f"\n### {scenario.title}\n")
            if scenario.rate:
                self._latency(scenario)
            else:
                self._cpu(scenario)

    def _cpu(self, scenario: Scenario) -> None:
        unit = "chunk" if scenario.stream_step_ms else "request"
        base = self._against if self._against in self._names else self._names[-1]
        print(f"| proxy | CPU µs per {unit} | ÷ {base} | per second | failed | RSS MiB |\n|---|---|---|---|---|---|")
        of_base = self.series(scenario.name, base, "cpu_us")
        for name in self._names:
            cpu = self.series(scenario.name, name, "cpu_us")
            count = self.series(scenario.name, name, "events" if scenario.stream_step_ms else "requests")
            wall = self.series(scenario.name, name, "wall_s")
            rate = statistics.median(n / s for n, s in zip(count, wall, strict=True))
            ratios = [own / other for own, other in zip(cpu, of_base, strict=True) if other]
            failed = sum(self.series(scenario.name, name, "failed"))
            rss = max(self.series(scenario.name, name, "rss_bytes")) / 2**20
            cells = ("–", "–", f"{rate:,.0f}", f"{failed:.0f}", "–")
            if name != "direct":
                cells = (_spread(cpu, 1), _spread(ratios, 2), f"{rate:,.0f}", f"{failed:.0f}", f"{rss:.0f}")
            print(f"| {name} | {' | '.join(cells)} |")

    def _latency(self, scenario: Scenario) -> None:
        print("| proxy | p50 added, ms | p99 added, ms | CPU µs per request | failed |\n|---|---|---|---|---|")
        direct = {figure: self.series(scenario.name, "direct", figure) for figure in ("p50_ms", "p99_ms")}
        for name in self._names:
            cells = []
            for figure, of_direct in direct.items():
                own = self.series(scenario.name, name, figure)
                added = own if name == "direct" else [a - b for a, b in zip(own, of_direct, strict=True)]
                cells.append(_spread(added, 2) + (" in all" if name == "direct" else ""))
            cpu = self.series(scenario.name, name, "cpu_us")
            cells += ["–" if name == "direct" else _spread(cpu, 0)]
            cells.append(f"{sum(self.series(scenario.name, name, 'failed')):.0f}")
            print(f"| {name} | {' | '.join(cells)} |")


def _spread(values: list[float], digits: int) -> str:
    """The median, and from the least to the most."""
    if not values:
        return "–"
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, default=Path(os.environ.get("PENSTOCK_PEERS", "peers")))
    parser.add_argument("--proxies", default=",".join(peers.PROXIES), help="which, comma-separated (default: all)")
    parser.add_argument("--scenarios", default=",".join(scenario.name for scenario in SCENARIOS))
    parser.add_argument("--against", default="sglang-router", help="whose cost is 1 (default sglang-router)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement; three times that for latency")
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--json", type=Path, help="write every measurement here")
    args = parser.parse_args()
    wanted = args.scenarios.split(",")
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in wanted]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        proxies = start_all(args.proxies.split(","), Path(folder), args.peers.resolve(), stack)
        rows = list(rounds(proxies, scenarios, args))
    if args.json:
        args.json.write_text("\n".join(map(json.dumps, rows)) + "\n")
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    print(f"{os.cpu_count()} cores, {model[0].partition(':')[2].strip() if model else platform.machine()}", end=", ")
    print(f"Python {platform.python_version()}, {args.rounds} rounds of {args.seconds:g} s; median (least–most)")
    Report(rows, args.against).print(scenarios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
