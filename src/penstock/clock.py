"""The only place that reads a clock. Everything else gets `now` as an argument."""

from __future__ import annotations

import time

#: Seconds, monotonic: for every decision and duration.
now = time.monotonic

#: CPU seconds of the calling thread: the cost of our own work on a busy machine too.
cpu = time.thread_time

#: Unix time: for people and other programs.
wall = time.time
