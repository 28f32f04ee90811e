"""The cost of operators' views. One snapshot against depth and tenants, and the cost per request of explanations.

How to read it. The first table is the CPU time of `Scheduler.snapshot()`, which the page, `top` and `/metrics` share:
once a second per gateway while somebody looks, whatever the number of open pages, and once per scrape. The second is
what the recorder does in one request's life (arrive, wait, be sent, first byte, end), alone, in a scheduler that is
full. The best of several runs, since other work on the machine can only add.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scheduler import Bench
from penstock.core.queueing.entry import Entry
from penstock.core.routing.policies.base import Choice
from penstock.core.scheduler import Scheduler
from penstock.core.values.lifecycle import Event
from penstock.core.values.request import Request, Usage
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.watch import GatewayFacts, Watch
from penstock.gateway.queueing import Queueing

SHAPES = ((100, 10, 4), (10_000, 1_000, 64), (10_000, 1_000, 256), (10_000, 10_000, 64), (100_000, 1_000, 64))
RUNS = 20
REQUESTS = 500


def snapshot_s(bench: Bench) -> float:
    """The best of some snapshots, a second apart."""
    best = 1e9
    for at in range(RUNS):
        began = time.thread_time()
        bench.scheduler.snapshot(now=bench.now + at)
        best = min(best, time.thread_time() - began)
    return best


class _Clockwork:
    """As much of a driver as a watch needs."""

    def __init__(self, bench: Bench) -> None:
        self.scheduler = bench.scheduler
        self.now = lambda: bench.now


def page_s(bench: Bench) -> tuple[float, int]:
    """What an open page costs a second: a picture, made and encoded; and how large it is."""
    facts = GatewayFacts(version="", config_hash=str, loop_lag_s=float, queueing=lambda: Queueing(enabled=True, why=""))
    watch = Watch(_Clockwork(bench), EventLog(), facts)  # type: ignore[arg-type]
    best, size = 1e9, 0
    for _ in range(RUNS):
        began = time.thread_time()
        size = len(watch._frame(watch._snapshot()))
        best = min(best, time.thread_time() - began)
    return best, size


def recording_s(scheduler: Scheduler, tenants: int) -> float:
    """What the recorder does for one request, in seconds."""
    recorder, pool = scheduler.inspect().recorder, list(scheduler.inspect().pool)
    best = 1e9
    for run in range(RUNS):
        entries = [_entry(scheduler, f"x{run}-{at}", f"t{at % tenants}", 10_000_000 + at) for at in range(REQUESTS)]
        began = time.thread_time()
        for entry in entries:
            recorder.arrived(entry, 1.0)
            recorder.waits(entry, 1.0)
        for entry in entries:
            recorder.sent(entry, pool[:1], Choice(pool[0]), 2.0)
            recorder.first_token(entry, 3.0)
            recorder.released(entry)
            recorder.ended(entry, None, _USAGE, 4.0)
        best = min(best, (time.thread_time() - began) / REQUESTS)
    return best


def _entry(scheduler: Scheduler, name: str, tenant: str, seq: int) -> Entry:
    entry = Entry(Request(name, "m", 1, tenant=tenant, flow=(tenant,), body_bytes=1000), seq)
    entry.move(Event.ADMITTED)
    entry.node = scheduler.inspect().queues.bands[1].tree.node((tenant,), (1.0,))
    entry.cost = entry.work = 100.0
    return entry


_USAGE = Usage(100, 100)


def main() -> int:
    """Measure and print."""
    console = Console()
    table = Table(title="One snapshot", title_justify="left")
    for column in ("waiting", "tenants", "endpoints", "snapshot ms", "page ms/s", "page bytes/s"):
        table.add_column(column, justify="right")
    for depth, tenants, endpoints in SHAPES:
        bench = Bench(depth, tenants, endpoints)
        gc.collect()
        page, size = page_s(bench)
        figures = (f"{snapshot_s(bench) * 1e3:.2f}", f"{page * 1e3:.2f}", f"{size:,}")
        table.add_row(f"{depth:,}", f"{tenants:,}", f"{endpoints:,}", *figures)
    console.print(table)
    bench = Bench(10_000, 1_000, 64)
    gc.collect()
    gc.freeze()
    console.print(f"Being explainable costs a request {recording_s(bench.scheduler, 1_000) * 1e6:.2f} µs.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
