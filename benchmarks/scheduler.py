"""The cost of a decision. All core calls of one request together, against depth, tenants and endpoints.

How to read it. One row is a scheduler held at a steady queue depth: every slot is taken, and each step one running
request ends (which dispatches a waiting one, or several where the reserve shrank), gets its first token reported, and a
new one arrives, so the queue stays as deep as it was. A row's first figures are the CPU time of all core calls of one
request together (`arrived`, the fact that dispatched it, `first_token`, `progressed`, `finished` with usage, and its
share of `observed`), over the requests that ended. A fact that dispatches several is divided evenly between whom it is
about and those. `longest call` is the p99 of single facts undivided: for how long the event loop stands still. The
ratios between rows are the message: cost must not grow with the queue. Absolute figures depend on the machine, and on
what else it does: CPU time counts no waiting, but caches and clock rates are shared. The clock's own cost is taken off.
Garbage is collected as rarely as the gateway does it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random

from rich.console import Console
from rich.table import Table

from penstock.build import kind
from penstock.core.endpoints.lease import Lease
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.observation import Observation
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, EndpointSpec, QueueBounds
from penstock.gateway.serve import GARBAGE_OBJECTS

SLOTS = 64
INDEX_KEYS = 28_000  # per endpoint; it may hold 30,000
CONVERSATION_KEYS = 14
SHARED_KEYS = 2  # with which all begin
LEARNED_FROM = 40  # requests: a moving average of the last twenty knows them by then
BASE = {"depth": 10_000, "tenants": 1_000, "endpoints": 64}
SWEEPS = {
    "depth": (100, 1_000, 10_000, 100_000),
    "tenants": (1, 10, 100, 1_000, 10_000),
    "endpoints": (1, 4, 16, 64, 256),
}


def clock_s() -> float:
    """What two looks at the clock cost."""
    looks = [time.thread_time() for _ in range(10_000)]
    return sorted(after - before for before, after in pairwise(looks))[len(looks) // 2]


CLOCK_S = clock_s()


class Bench:
    """A scheduler under full load, moved by hand."""

    def __init__(
        self, depth: int, tenants: int, endpoints: int, *, seed: int = 1, routing: str = "least_loaded"
    ) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(
            SchedulerSettings(
                bands=(BandSettings("interactive", 3), BandSettings("standard", 2), BandSettings("batch", 0)),
                bounds=QueueBounds(requests_max=1_000_000, bytes_max=1 << 40, tokens_max=1 << 50),
                wait_s_max=1e9,
                routing=routing,
            ),
            random=Random(seed),
        )
        self.tenants = tenants
        self.endpoints = [f"e{i}" for i in range(endpoints)]
        self.now = 0.0
        self.serial = 0
        self.running: list[tuple[int, str]] = []  # leases, and whose they are
        self.spent: dict[str, float] = {}  # seconds so far, per request that has not ended
        self.calls: list[float] = []  # seconds of single facts, of late
        for name in self.endpoints:
            self.scheduler.endpoint_added(EndpointSpec(name, SLOTS, frozenset({"m"})), now=0.0)
        self.conversations = 0
        if routing not in ("least_loaded", "round_robin", "session"):
            self.fill_index()
        self.learn()
        for _ in range(endpoints * SLOTS + depth):
            self.arrive()

    def fill_index(self) -> None:
        """Let every endpoint hold all the keys it may: conversations of its own, that begin alike."""
        history = self.scheduler.inspect().router._history
        self.conversations = len(self.endpoints) * INDEX_KEYS // CONVERSATION_KEYS
        began, self.index_bytes = time.perf_counter(), 0
        tracemalloc.start()
        for at in range(self.conversations):
            history.store(at % len(self.endpoints), self.conversation(at))
        self.index_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.index_s = time.perf_counter() - began

    def conversation(self, at: int) -> tuple[int, ...]:
        first = (at + 1) << 32
        return (*range(SHARED_KEYS), *range(first, first + CONVERSATION_KEYS))

    def prefix(self) -> tuple[int, ...]:
        """The keys of a prompt: the next turn of some conversation."""
        if not self.conversations:
            return ()
        return self.conversation(self.random.randrange(self.conversations))

    def learn(self) -> None:
        """Let some requests end before the others come, so that what is measured depends on no first guess."""
        for _ in range(LEARNED_FROM):
            self.arrive()
        while self.running:
            lease, ended = self.running.pop()
            self.scheduler.finished(lease, self.usage(), now=self.now)
            del self.spent[ended]

    def usage(self) -> Usage:
        """What an answer took."""
        return Usage(self.random.randrange(100, 2000), self.random.randrange(10, 500), 0)

    def arrive(self) -> None:
        self.serial += 1
        tenant = f"t{self.random.randrange(self.tenants)}"
        request = Request(
            f"r{self.serial}",
            "m",
            1,
            tenant=tenant,
            flow=(tenant,),
            body_bytes=self.random.randrange(400, 8000),
            streamed=True,
            prefix=self.prefix(),
        )
        self.tell(request.id, lambda: self.scheduler.arrived(request, now=self.now))

    def tell(self, about: str | None, fact: Callable[[], list[Action]]) -> None:
        """Tell a fact, and charge its time to the request it is about and to those it dispatches."""
        began = time.thread_time()
        actions = fact()
        took_s = max(0.0, time.thread_time() - began - CLOCK_S)
        self.calls.append(took_s)
        dispatched = [action for action in actions if isinstance(action, Dispatch)]
        whose = [action.request_id for action in dispatched]
        if about is not None and about not in whose:
            whose.append(about)
        for request_id in whose:
            self.spent[request_id] = self.spent.get(request_id, 0.0) + took_s / len(whose)
        for action in dispatched:
            self.running.append((action.lease, action.request_id))
            self.tell(action.request_id, partial(self.scheduler.first_token, action.lease, now=self.now))

    def leases_of(self, endpoint: str) -> dict[int, Lease]:
        return self.scheduler.inspect().pool[endpoint].ledger.leases

    def step(self) -> float:
        """One request ends and one comes; returns the seconds that all core calls of the one that ended took."""
        self.now += 0.001
        random, scheduler, now = self.random, self.scheduler, self.now
        at = random.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        lease, ended = self.running.pop()
        self.tell(ended, partial(scheduler.progressed, lease, 64, now=now))
        self.tell(ended, partial(scheduler.finished, lease, self.usage(), now=now))
        self.arrive()
        if self.serial % 100 == 0:  # 64 endpoints read twice a second at 12,800 requests a second
            read = random.choice(self.endpoints)
            reading = Observation(now - 0.001, len(self.leases_of(read)), 0, 0.5, 10_000_000, self.serial)
            self.tell(ended, partial(scheduler.observed, read, reading, now=now))
        return self.spent.pop(ended)


def measure(depth: int, tenants: int, endpoints: int, steps: int, routing: str) -> dict[str, float]:
    """Percentiles in microseconds."""
    bench = Bench(depth, tenants, endpoints, routing=routing)
    for _ in range(min(steps, 2000)):
        bench.step()
    bench.calls.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    times = sorted(bench.step() for _ in range(steps))
    calls = sorted(bench.calls)
    gc.unfreeze()
    assert bench.scheduler.snapshot(now=bench.now).waiting >= depth * 0.9
    return {
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[int(len(times) * 0.99)] * 1e6,
        "mean_us": sum(times) / len(times) * 1e6,
        "call_p99_us": calls[int(len(calls) * 0.99)] * 1e6,
    }


def main() -> int:
    """Run the sweeps and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000, help="requests per row (default 20000)")
    parser.add_argument("--routing", default="least_loaded")
    parser.add_argument("--one", action="store_true", help="only the shape that is in every sweep")
    parser.add_argument("--index", action="store_true", help="only: how large is a full index of prefixes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.index:
        bench = Bench(100, 1, 64, routing="predicted_ttft")
        history = bench.scheduler.inspect().router._history
        held = sum(history.held(at) for at in range(64))
        print(f"{held:,} keys at 64 endpoints, {len(history):,} distinct: {bench.index_bytes / held:.0f} bytes per key")
        return 0
    rows = []
    sweeps = {"depth": (BASE["depth"],)} if args.one else SWEEPS
    for swept, values in sweeps.items():
        for value in values:
            shape = {**BASE, swept: value}
            if not args.json:
                print(f"measuring {shape} …", file=sys.stderr)
            figures = measure(**shape, steps=args.steps, routing=args.routing)
            rows.append({"build": kind(), "swept": swept, **shape, **figures})
    if args.json:
        print(json.dumps(rows))
        return 0
    table = Table(title=f"CPU time of all core calls of one request, {kind()}, {args.routing}", title_justify="left")
    for column in ("swept", "waiting", "tenants", "endpoints", "p50 µs", "p99 µs", "mean µs", "longest call, p99 µs"):
        table.add_column(column, justify="left" if column == "swept" else "right")
    for row in rows:
        cells = (f"{row[key]:.1f}" for key in ("p50_us", "p99_us", "mean_us", "call_p99_us"))
        table.add_row(row["swept"], *(f"{row[key]:,}" for key in BASE), *cells)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
