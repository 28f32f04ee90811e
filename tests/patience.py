"""How long do tests wait? Two kinds of bounds that a machine which is busy with other things does not break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

#: Ends what would hang for good. What is waited for takes milliseconds, and seconds where a process has to start.
WAIT_S = 60.0


async def looks(within_s: float, every_s: float = 0.01) -> AsyncIterator[None]:
    """Look so often as there is time to; afterwards it is a failure.

    The bound is a number of looks, not a time: where a machine is busy, each look and what is looked for take longer
    together.
    """
    for _ in range(round(within_s / every_s)):
        yield
        await asyncio.sleep(every_s)
    raise AssertionError(f"it did not happen within {within_s:g} s")
