"""How many processes at once does this machine, or the container we are in, give us?"""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup 2: `max 100000`, or microseconds of CPU and of the time they are for
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def usable_cpus() -> int:
    """CPUs that we may run on, or fewer where a container's limit is: at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota())))


def _quota() -> float:
    """CPUs' worth of time that a container may take; infinity: no limit that can be read."""
    try:
        if _QUOTA.exists():
            time_us, period_us = _QUOTA.read_text().split()
        else:
            time_us, period_us = (path.read_text().strip() for path in _QUOTA_V1)
        quota = float(time_us) / float(period_us)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf  # `max` is a ValueError
    return quota if quota > 0 else math.inf
