"""When does a connection run out of time? One timer per connection.

A deadline moves with nearly every request, and mostly to a later time. So setting a deadline is an assignment: the
timer that already runs fires too early, looks again, and re-arms itself. Only an earlier deadline costs a new timer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_TOO_EARLY_S: Final = 0.001  # the resolution of uvloop's clock


class DeadlineTimer:
    """Calls `expired` when the deadline that was set last has passed. Times are loop times, in seconds."""

    __slots__ = ("_expired", "_fires_s", "_loop", "_timer", "deadline_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired: Callable[[], None] | None = expired
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = 0.0
        self.deadline_s = math.inf

    def set(self, deadline_s: float) -> None:
        """Move the deadline to `deadline_s`, a loop time. Replaces the one set before."""
        self.deadline_s = deadline_s
        if self._timer is not None:
            if self._fires_s <= deadline_s:
                return
            self._timer.cancel()
        self._fires_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._fired)

    def clear(self) -> None:
        """Forget the deadline. A later `set` is allowed."""
        self.deadline_s = math.inf

    def close(self) -> None:
        """Cancel the timer for good and let go of the callback."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._expired = None

    def _fired(self) -> None:
        self._timer = None
        if self.deadline_s == math.inf:
            return
        if self._loop.time() < self.deadline_s - _TOO_EARLY_S:
            self.set(self.deadline_s)
        elif self._expired is not None:
            self._expired()
