"""How does the event loop use a store that blocks? One thread owns it and does one thing after another.

The line of what is to be done is bounded by its callers: each awaits its answer before it asks again. A store that
can't be opened (PostgreSQL that is not up yet, a file that is damaged) is tried again with each call, and one that
turns out to be damaged is closed and opened again: the gateway serves without it, and it comes back by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.batch.store.port import Store, StoreBrokenError, StoreError

T = TypeVar("T")
_Job = tuple[Callable[[Store], object], asyncio.AbstractEventLoop, "asyncio.Future[object]"]


class StoreThread:
    """A store, to be awaited."""

    def __init__(self, opening: Callable[[], Store]) -> None:
        self._opening = opening
        self._store: Store | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.trouble: str | None = None  #: why the last call failed, in words for operators; None when it did not

    async def do(self, work: Callable[[Store], T]) -> T:
        """Let the store do it. Once this was called it will be done, also where nobody waits for it any more."""
        if self._closed:
            raise StoreError("the store is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="batch-store", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._jobs.put((work, loop, future))
        return await future  # type: ignore[return-value]

    async def close(self) -> None:
        """Do what stands in line, then close the store."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, loop, future = job
            try:
                if self._store is None:
                    self._store = self._opening()
                result, error = work(self._store), None
                self.trouble = None
            except Exception as problem:  # noqa: BLE001 - whoever asked is told
                result, error = None, problem
                self._failed(problem)
            loop.call_soon_threadsafe(_tell, future, result, error)
            del job, work, future, result, error  # nothing is kept while waiting for the next
        self._drop()

    def _failed(self, problem: Exception) -> None:
        if isinstance(problem, StoreError):
            self.trouble = str(problem)
        if isinstance(problem, StoreBrokenError):
            self._drop()  # what is put in its place is opened with the next call

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(Exception):  # it may be broken in any way
                store.close()


def _tell(future: asyncio.Future[object], result: object, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
