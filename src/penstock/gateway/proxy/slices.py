"""How is a large body read without holding up everybody else's tokens? Some of it in each turn of the event loop.

Work is a generator that yields every millisecond or so. Each turn of the loop gives `SLICE_S` to all work together, one
step each in turn, so a small one is not kept by a large one. What comes while nothing is under way begins at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from penstock import clock

T = TypeVar("T")

SLICE_S = 0.002  # of a turn: engines make a token in 5 to 50 ms


class _Work(Generic[T]):
    __slots__ = ("done", "failed", "gone", "steps")

    def __init__(
        self,
        steps: Generator[None, None, T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        gone: Callable[[], bool],
    ) -> None:
        self.steps = steps
        self.done = done
        self.failed = failed
        self.gone = gone

    def step(self) -> bool:
        """Go on; returns whether that was the last of it."""
        if self.gone():
            self.steps.close()
            return True
        try:
            next(self.steps)
        except StopIteration as end:
            result: T = end.value
        except Exception as failure:  # noqa: BLE001 - whose work it is judges it
            self.failed(failure)
            return True
        else:
            return False
        try:
            self.done(result)
        except Exception as failure:  # noqa: BLE001
            self.failed(failure)
        return True


class Slices:
    """The work under way on one event loop."""

    def __init__(self) -> None:
        self._works: deque[_Work[Any]] = deque()
        self._turning = False  # a turn is to come

    def do(
        self,
        steps: Generator[None, None, T],
        *,
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        gone: Callable[[], bool],
    ) -> None:
        """Do all steps, then tell what they returned, or what they raised; nothing more once `gone` says so."""
        self._works.append(_Work(steps, done, failed, gone))
        if not self._turning:
            self._turn()

    def _turn(self) -> None:
        works = self._works
        self._turning = True
        end_s = clock.now() + SLICE_S  # the loop's own stands still within a turn
        try:
            while works:
                work = works.popleft()
                if not work.step():
                    works.append(work)
                if clock.now() >= end_s:
                    break
        finally:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._turning = False
        if self._works:
            self._turn()
