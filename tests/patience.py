"""How long do tests wait? Two kinds of bounds that hold on a busy machine, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

#: Ends a test that hangs. The expected event takes milliseconds, or seconds if a process has to start.
WAIT_S = 60.0


async def looks(within_s: float, every_s: float = 0.01) -> AsyncIterator[None]:
    """Yield once per look; fail after as many looks as fit into `within_s`.

    The bound is a number of looks, not a time, because a busy machine slows down the looks and the event alike.
    """
    for _ in range(round(within_s / every_s)):
        yield
        await asyncio.sleep(every_s)
    raise AssertionError(f"it did not happen within {within_s:g} s")
