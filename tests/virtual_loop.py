"""An event loop whose time passes only while nothing is left to do: then it jumps to what is waited for next.

What a machine needs for its work takes no time here, so it may be as slow, or as busy with other things, as it likes.
Sockets between parts of one process are real: what one side writes, the other side can read at once. A thread's or
another process's work takes no time either, so who waits for one with a time limit does not belong on this loop.
"""

from __future__ import annotations

import asyncio
import selectors

PATIENCE_S = 30.0  # real time, for what nobody set a time for


class _Jumps(selectors.DefaultSelector):
    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(PATIENCE_S)
            assert ready, "everything waits, and for nothing"
            return ready
        self.passed_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at second 0."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.passed_s
