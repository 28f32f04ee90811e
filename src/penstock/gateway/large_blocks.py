"""What is large goes back to the system as soon as it is let go of.

glibc gives blocks from 128 KiB on a mapping of their own until the first of these is freed. From then on blocks of that
size, up to 32 MiB, come from the heap, where what lies between them keeps their places in use. Bodies are such blocks:
beside 300 MB of them that were counted, 200 MB were seen that nobody held. Other allocators do not have this.
"""

from __future__ import annotations

import contextlib
import ctypes

BLOCK_BYTES = (
    1024 * 1024
)  # a mapping costs microseconds and its pages' first use: next to nothing beside reading so much
KEPT_BYTES = 2 * BLOCK_BYTES  # free at the heap's end, as glibc has it: to ask the system for each page costs more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def give_large_blocks_back() -> None:
    """Give each large block of this process a mapping of its own, from now on. Without glibc nothing is done."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - where it is absent, the numbers mean something else
        libc.mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
