"""An event loop in virtual time: when nothing is left to do, the clock jumps to the next timer.

Computing takes no time, so a slow or busy machine changes nothing. Sockets between parts of one process are real: the
other side can read a write at once. Work of threads and other processes takes no time either, so a wait for one with a
time limit does not belong on this loop.
"""

from __future__ import annotations

import asyncio
import selectors

PATIENCE_S = 30.0  # real time to wait for a socket when there is no timer


class _Jumps(selectors.DefaultSelector):
    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(PATIENCE_S)
            assert ready, "all tasks wait, and no timer or socket is left"
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
