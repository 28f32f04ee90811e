"""Large bodies are read in slices of the event loop's time, so that they do not hold up other requests' tokens.

Work is a generator that yields about every millisecond. Each turn of the loop gives `SLICE_S` to all work together, one
step each in turn, so a large body does not delay a small one. Work begins at once if none is under way.
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
        """Do one step. Returns True if it was the last."""
        if self.gone():
            self.steps.close()
            return True
        try:
            next(self.steps)
        except StopIteration as end:
            result: T = end.value
        except Exception as failure:  # noqa: BLE001 - the owner of the work handles it
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
        """Do all steps, then call `done` with their result or `failed`; stop if `gone` returns True."""
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
