"""The only place that reads a clock. Everything else is told `now`."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds, monotonic: for every decision and duration."""
    return time.monotonic()


def wall() -> float:
    """Unix time: for people and other programs."""
    return time.time()
