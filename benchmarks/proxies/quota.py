"""How fast is a process that may use a part of one core only? A CPU quota for each, by the kernel's control groups.

So what a gateway's processes can do is seen where engines and load generator run on the same few cores: each process
has the same small part, the others have the rest. Needs root, and a `cpu` controller of version 1 or 2.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

PERIOD_US = 20_000
_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(pids: list[int], share: float) -> Iterator[None]:
    """Each of these processes may use this share of a core, until the end."""
    old = _ROOT / "cpu" / "cpu.cfs_quota_us"
    own = _ROOT if not old.parent.is_dir() else old.parent
    groups = [own / f"penstock-{os.getpid()}-{pid}" for pid in pids]
    quota_us = int(share * PERIOD_US)
    try:
        for group, pid in zip(groups, pids, strict=True):
            group.mkdir()
            if own is _ROOT:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group, pid in zip(groups, pids, strict=True):
            with contextlib.suppress(OSError):
                (own / "cgroup.procs").write_text(str(pid))
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)
