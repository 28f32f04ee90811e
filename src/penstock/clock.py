"""The only place that reads a clock. Everything else is told `now`."""

from __future__ import annotations

import time

#: Seconds, monotonic: for every decision and duration.
now = time.monotonic

#: CPU seconds of the calling thread: for what our own work costs, however busy the machine is.
cpu = time.thread_time

#: Unix time: for people and other programs.
wall = time.time
