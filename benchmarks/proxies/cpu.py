"""The CPU time of a process tree. CPU time and memory, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, ())
    return found


def cpu_s(pids: list[int]) -> float:
    """User and system time so far, of children that are gone too: to the nanosecond where the kernel tells it."""
    return sum(_own_s(pid) + _of_children_s(pid) for pid in pids)


def _own_s(pid: int) -> float:
    try:
        told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        return 0.0
    if told:
        return sum(int(text.split()[0]) for text in told) / 1e9
    fields = _stat(pid)
    return 0.0 if fields is None else sum(map(int, fields[11:13])) * _TICK_S


def _of_children_s(pid: int) -> float:
    fields = _stat(pid)
    return 0.0 if fields is None else sum(map(int, fields[13:15])) * _TICK_S


def rss_bytes(pids: list[int]) -> int:
    """Resident memory; pages that processes share count for each."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * _PAGE_BYTES


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
