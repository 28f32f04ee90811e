"""The process that a gateway runs in: its event loop, CPUs, memory and supervisor, and how it cancels a task."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import math
import os
import socket
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1024 * 1024  # a mapping costs microseconds, next to nothing beside reading so many bytes
KEPT_BYTES = 2 * BLOCK_BYTES  # free at the heap's end, so that not each page is asked of the system
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
TIMES_MAX = 5
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup 2: `max 100000`, or microseconds of CPU per period
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def event_loop() -> asyncio.AbstractEventLoop:
    """Returns a new loop, uvloop's if it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ImportError:  # pragma: no cover
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def usable_cpus() -> int:
    """Returns how many CPUs this process may use, or fewer if its container has a lower limit; at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota())))


def _quota() -> float:
    """The CPUs that a container may use; infinity: no readable limit."""
    try:
        if _QUOTA.exists():
            time_us, period_us = _QUOTA.read_text().split()
        else:
            time_us, period_us = (path.read_text().strip() for path in _QUOTA_V1)
        quota = float(time_us) / float(period_us)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf  # `max` is a ValueError
    return quota if quota > 0 else math.inf


def give_large_blocks_back() -> None:
    """Map each large block by itself, so that it goes back to the system when it is freed. glibc only.

    Once the first mapped block of 128 KiB or more is freed, glibc takes blocks of up to 32 MiB from the heap, where
    blocks between them keep their pages in use: beside 300 MB of request bodies 200 MB of free memory were measured.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - elsewhere the numbers mean something else
        libc.mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def tell_ready() -> None:
    """Report to systemd that the start is over, if it waits for that (`Type=notify`)."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        try:
            told.sendto(b"READY=1", f"\0{place[1:]}" if place.startswith("@") else place)
        except OSError as error:
            logger.warning("systemd can't be told that the start is over: %s", error.strerror or error)


async def cancel(task: asyncio.Task[Any] | None, *, wait_s: float) -> None:
    """Cancel a task until it ends, waiting `wait_s` each time; after `TIMES_MAX` times it is left behind.

    A database's client may take the first `CancelledError` for an error of its own and retry.
    """
    for _ in range(TIMES_MAX):
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task], timeout=wait_s)
    if task is not None and not task.done():
        logger.warning("%s keeps running although it was cancelled %d times", task.get_name(), TIMES_MAX)
