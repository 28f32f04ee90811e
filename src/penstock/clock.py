"""The only place that reads a clock. Everything else is told `now`."""

from __future__ import annotations

import time

#: Seconds, monotonic: for every decision and duration.
now = time.monotonic

#: Unix time: for people and other programs.
wall = time.time
