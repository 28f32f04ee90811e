"""How does the event loop use a store that blocks? One thread owns the store and does one job after another.

The queue of jobs is bounded, because each caller awaits its answer. A store that can't be opened (PostgreSQL that is
not up yet, a file that is damaged) is tried again with each call. A store that turns out to be damaged is closed and
opened again. The gateway serves without its store, and uses it again when it comes back.
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
    """An awaitable store. `opening` opens the store; it is called in the thread."""

    def __init__(self, opening: Callable[[], Store]) -> None:
        self._opening = opening
        self._store: Store | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.trouble: str | None = None  #: why the last call failed, in words for operators; None if it did not

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run `work` with the store in its thread; returns or raises its result.

        Cancelling the wait does not stop the work: once called, it will be done. Raises StoreError if the store is
        closed or can't be opened.
        """
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
        """Finish the jobs in the queue, then close the store."""
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
            except Exception as problem:  # noqa: BLE001 - raised again where the job was asked for
                result, error = None, problem
                self._failed(problem)
            loop.call_soon_threadsafe(_tell, future, result, error)
            del job, work, future, result, error  # so that nothing stays in memory while waiting for the next job
        self._drop()

    def _failed(self, problem: Exception) -> None:
        if isinstance(problem, StoreError):
            self.trouble = str(problem)
        if isinstance(problem, StoreBrokenError):
            self._drop()  # the next call opens the store again

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(Exception):  # the store may be broken in any way
                store.close()


def _tell(future: asyncio.Future[object], result: object, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
