"""Sessions of coding agents over HTTP: Penstock's gate beside ThunderAgent's proxy, its own routing alone, and nothing.

aiperf plays recorded sessions (its loader `weka_trace`, its scenario `inferencex-agentx-mvp`) closed loop against two
`penstock engine` whose KV memory does not hold all of them. Each way has fresh engines; the ways of a round run one
after another, each round begins with another one. Tokens and hit rate are of the engines' own counters from the end of
aiperf's warm-up to the end of the run; times to first token are of what aiperf got, and turns that were still waiting
at the end are counted and their waits shown.

Needs aiperf 0.13 with its Python, a folder of sessions as Weka JSON and a tokenizer that `transformers` loads; for the
way `thunder` a checkout of github.com/ThunderAgent-org/ThunderAgent (fastapi, httpx and uvicorn come with aiperf).
It knows sessions by a field of the body, so a few lines in front of it put aiperf's header there.

python benchmarks/agents_aiperf.py --aiperf VENV --sessions DIR --tokenizer DIR [--thunder DIR] [--rounds 3]
    [--clients 48] [--seconds 300] [--kv-blocks 50000] [--ways gate open thunder direct] [--out DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig import Gateway, cpu_s_of, free_port, gateway, machine, started

MODEL = "m"
WAYS = ("gate", "open", "thunder", "direct")
LOOK_EVERY_S = 1.0
START_S_MAX = 60.0
BESIDE_S_MAX = 420.0  # reading the sessions, warm-up, reports
COUNTED = ("vllm:generation_tokens_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")

THUNDER = """
import json, sys, uvicorn
from ThunderAgent.config import Config, set_config
port, backends = int(sys.argv[1]), sys.argv[2].split(",")
set_config(Config(backends=backends, router_mode="tr", metrics_enabled=True, use_acting_token_decay=True))
from ThunderAgent.app import app

async def named(scope, receive, send):
    name = dict(scope.get("headers") or ()).get(b"x-session-id")
    if scope["type"] != "http" or name is None:
        return await app(scope, receive, send)
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    body = b'{"program_id": ' + json.dumps(name.decode()).encode() + b", " + body.lstrip()[1:]
    told = False

    async def renamed():
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    await app(scope, renamed, send)

uvicorn.run(named, host="127.0.0.1", port=port, log_level="warning")
"""


@dataclass(frozen=True)
class Look:
    """The engines' counters at a moment."""

    at_s: float  # Unix time
    tokens: float
    queries: float
    hits: float


class Looks(threading.Thread):
    """Reads the engines' pages until it is told to stop."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self._pages = [Gateway(0, port) for port in ports]
        self._over = threading.Event()
        self.seen: list[Look] = []

    def run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            with contextlib.suppress(OSError):
                sums = [sum(page.metric(name) for page in self._pages) for name in COUNTED]
                self.seen.append(Look(time.time(), *sums))

    def stop(self) -> None:
        self._over.set()
        self.join()

    def between(self, begin_s: float, end_s: float) -> tuple[Look, Look]:
        before = [look for look in self.seen if look.at_s <= begin_s] or self.seen[:1]
        return before[-1], [look for look in self.seen if look.at_s <= end_s][-1]


@contextlib.contextmanager
def engines(kv_blocks: int, folder: Path) -> Iterator[list[int]]:
    """Two fresh ones; yields their ports."""
    ports = [free_port(), free_port()]
    with contextlib.ExitStack() as stack:
        for port in ports:
            command = [sys.executable, "-m", "penstock", "engine", "--port", str(port), "--model", MODEL]
            command += ["--profile", "h100x2-30b", "--kv-blocks", str(kv_blocks), "--block-size", "16"]
            log = stack.enter_context((folder / f"engine-{port}.log").open("wb"))
            stack.enter_context(started(command, stdout=log, stderr=log))
        for port in ports:
            listens(port, "/v1/models")
        yield ports


def listens(port: int, path: str) -> None:
    until_s = time.monotonic() + START_S_MAX
    while True:
        try:
            Gateway(0, port).get(path)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
        else:
            return


@contextlib.contextmanager
def front(way: str, ports: list[int], options: argparse.Namespace, folder: Path) -> Iterator[tuple[list[str], int]]:
    """Yields the URLs that aiperf asks, and the process in between (0: none)."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    if way == "direct":
        yield urls, 0
    elif way == "thunder":
        port = free_port()
        python = str(options.aiperf / "bin/python")
        with (folder / "thunder.log").open("wb") as log:
            command = [python, "-c", THUNDER, str(port), ",".join(urls)]
            env = {**os.environ, "PYTHONPATH": str(options.thunder)}
            with started(command, stdout=log, stderr=log, env=env) as process:
                listens(port, "/health")
                yield [f"http://127.0.0.1:{port}"], process.pid
    else:
        sessions = {"memory": "auto" if way == "gate" else "off"} | ({"wait": options.wait} if options.wait else {})
        settings = {"endpoints": [{"url": url} for url in urls], "sessions": sessions}
        with gateway(folder, settings) as running:
            yield [f"http://127.0.0.1:{running.port}"], running.pid


def run(way: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One way, once."""
    folder.mkdir(parents=True)
    with engines(options.kv_blocks, folder) as ports, front(way, ports, options, folder) as (urls, pid):
        looks = Looks(ports)
        looks.start()
        command = [str(options.aiperf / "bin/aiperf"), "profile", "-m", MODEL]
        for url in urls:
            command += ["--url", url]
        command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(options.tokenizer)]
        command += ["--input-file", str(options.sessions), "--custom-dataset-type", "weka_trace"]
        command += ["--max-context-length", "200000", "--concurrency", str(options.clients)]
        command += ["--scenario", "inferencex-agentx-mvp", "--unsafe-override"]  # for runs of less than a quarter hour
        command += ["--benchmark-duration", str(options.seconds), "--benchmark-grace-period", "1"]
        command += ["--session-header", "X-Session-ID", "--use-server-token-count", "--random-seed", "1"]
        command += ["--burst-phase-starts", "--no-server-metrics", "--no-gpu-telemetry", "--ui", "none"]
        command += ["--artifact-dir", str(folder / "aiperf"), *options.more]
        with (folder / "aiperf.log").open("wb") as log:
            limit_s = options.seconds + BESIDE_S_MAX
            subprocess.run(command, stdout=log, stderr=log, timeout=limit_s, check=True)
        looks.stop()
        cpu_s = cpu_s_of(pid) if pid else 0.0
    return {"way": way, "hop_cpu_s": round(cpu_s, 1), **figures(folder / "aiperf", looks)}


def figures(folder: Path, looks: Looks) -> dict[str, Any]:
    """What came out after the warm-up."""
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    warm = [r["metadata"] for r in records if r["metadata"]["benchmark_phase"] == "warmup"]
    main = [r for r in records if r["metadata"]["benchmark_phase"] != "warmup"]
    begin_s = max(m["request_end_ns"] for m in warm) / 1e9
    end_s = max(r["metadata"]["request_end_ns"] for r in main) / 1e9
    before, after = looks.between(begin_s, end_s)
    took_s = after.at_s - before.at_s
    cut = [r["metadata"] for r in main if r["metadata"]["was_cancelled"]]
    firsts = sorted(
        r["metrics"]["time_to_first_token"]["value"] / 1000 for r in main if "time_to_first_token" in r["metrics"]
    )
    failed = [r for r in main if r.get("error") and not r["metadata"]["was_cancelled"]]
    waited = [(m["request_end_ns"] - m["request_start_ns"]) / 1e9 for m in cut]
    return {
        "tokens_per_s": round((after.tokens - before.tokens) / took_s, 1),
        "hit_rate": round((after.hits - before.hits) / max(1.0, after.queries - before.queries), 3),
        "ttft_p50_s": at(firsts, 0.5),
        "ttft_p90_s": at(firsts, 0.9),
        "ttft_p99_s": at(firsts, 0.99),
        "ttft_longest_s": at(firsts, 1.0),
        "turns": len(firsts),
        "failed": len(failed),
        "under_way_at_end": len(cut),
        "longest_under_way_s": round(max(waited, default=0.0), 1),
        "warm_up_s": round(begin_s - min(m["request_start_ns"] for m in warm) / 1e9, 1),
        "seconds": round(took_s, 1),
    }


def at(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", type=Path, required=True, help="the virtual environment that has it")
    parser.add_argument("--sessions", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--thunder", type=Path, help="ThunderAgent's sources; without them its way is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--kv-blocks", type=int, default=50_000, help="of an engine, each of 16 tokens")
    parser.add_argument("--wait", help="`sessions.wait`")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path, help="where logs and records stay")
    parser.add_argument("more", nargs="*", help="after --: more flags of aiperf")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends, too
    ways = [way for way in options.ways if way != "thunder" or options.thunder]
    print(machine(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        for number in range(options.rounds):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                rows.append({"round": number + 1, **run(way, options, out / f"{number + 1}-{way}")})
                print(json.dumps(rows[-1]), flush=True)
    for way in ways:
        of_way = [row for row in rows if row["way"] == way]
        medians = {
            key: statistics.median(row[key] for row in of_way) for key in of_way[0] if key not in ("round", "way")
        }
        print(json.dumps({"way": way, "median": medians}), flush=True)


if __name__ == "__main__":
    main()
