"""The untrue metrics pages of the matrix, by name."""

from __future__ import annotations

from dataclasses import asdict

from penstock.sim.engine.pages import TRUE, PageWays

LATE = PageWays(late_s=2.0)
VERY_LATE = PageWays(late_s=8.0)
MISSING = PageWays(missing=True)
VANISHED = PageWays(missing=True, from_s=15.0)
FROZEN_IDLE = PageWays(frozen=True, frozen_running=0, frozen_waiting=0)
FROZEN_OVERLOADED = PageWays(frozen=True, frozen_running=64, frozen_waiting=200)
FROZEN_MIDWAY = PageWays(frozen=True, from_s=15.0)
TOO_HIGH = PageWays(running_times=2.0, waiting_more=10)
TOO_LOW = PageWays(running_times=0.5, waiting_times=0.5)
ALL_ZERO = PageWays(running_times=0.0, waiting_times=0.0)
OTHER_MODEL = PageWays(of_another=True)
SILENT_QUEUE = PageWays(waiting_times=0.0)
ALL_RUNNING = PageWays(queue_as_running=True)
MEMORY_FULL = PageWays(kv_usage=1.0)
NO_COUNTERS = PageWays(counters=False)

PAGES = {
    "late-2s": LATE,
    "late-8s": VERY_LATE,
    "missing": MISSING,
    "vanished": VANISHED,
    "frozen-idle": FROZEN_IDLE,
    "frozen-overloaded": FROZEN_OVERLOADED,
    "frozen-midway": FROZEN_MIDWAY,
    "too-high": TOO_HIGH,
    "too-low": TOO_LOW,
    "all-zero": ALL_ZERO,
    "other-model": OTHER_MODEL,
    "silent-queue": SILENT_QUEUE,
    "all-running": ALL_RUNNING,
    "memory-full": MEMORY_FULL,
    "no-counters": NO_COUNTERS,
}


def fields_of(ways: PageWays) -> dict[str, object]:
    """Returns what differs from a true page: the value of the fault `metrics_lie`."""
    honest = asdict(TRUE)
    return {name: value for name, value in asdict(ways).items() if value != honest[name]}
