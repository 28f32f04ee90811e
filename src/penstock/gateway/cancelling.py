"""How is a task ended that may swallow a cancellation?

A client of a database may take the first `CancelledError` for an error of its own, and try again: it is cancelled once
more then, and a few times at most, for a gateway that ends must not hang on it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

TIMES_MAX = 5

logger = logging.getLogger(__name__)


async def cancel(task: asyncio.Task[Any] | None, *, wait_s: float) -> None:
    """Cancel the task until it is over, and wait `wait_s` for that each time. One that goes on is left behind."""
    for _ in range(TIMES_MAX):
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task], timeout=wait_s)
    if task is not None and not task.done():
        logger.warning("%s goes on though it was cancelled %d times", task.get_name(), TIMES_MAX)
