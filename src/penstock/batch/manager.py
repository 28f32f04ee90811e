"""Moves batches through their states. The manager reads its file, ends it when it is done, over time or cancelled, and
cleans up.

Every step is small and can be taken again: a step that a crash interrupts is found in the store and done again. If
several gateways share the store, one of them reads a batch's file, and the first one to finish ends the batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.batch import api_objects
from penstock.batch.dispatch_port import DispatchPort
from penstock.batch.eta import CompletionEta, Outlook
from penstock.batch.input_file import InputReader
from penstock.batch.runner import FAULT_S, LOOK_S, Runner
from penstock.batch.states import BatchEvent, Status
from penstock.batch.store.port import CHUNK_BYTES, StoreError
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import Batch, LineProblem, NewItem
from penstock.config.sections.batch import BatchSection

logger = logging.getLogger(__name__)

OPEN_MAX = 1_000  # open batches managed at once; those with later deadlines wait until some have ended
STOP_S = 600.0  # how long running items of a cancelled or expired batch may take to end
PURGE_S = 5.0
READ_BYTES = 4 * CHUNK_BYTES  # read of a file in one go: takes some ten milliseconds of the store's thread


class Manager:
    """Moves all batches of a store through their states, in its own tasks."""

    def __init__(
        self,
        store: StoreThread,
        runner: Runner,
        port: DispatchPort,
        settings: BatchSection,
        *,
        wall: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._runner = runner
        self._port = port
        self._limits = settings.limits
        self._claim_s = settings.claim_timeout
        self._wall = wall  # Unix time, for people and for values that outlive the process
        self._now = now
        self._pace = CompletionEta()
        # Of open batches, in `now`, which is never set back:
        self._due: dict[str, float] = {}  # when the window is over
        self._ending: dict[str, float] = {}  # the time since which no items are started
        self._look = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.outlook: list[Outlook] = []  #: of all open batches, for people
        runner.on_written = self.wake

    def start(self) -> None:
        """Start the tasks. Returns at once, also if the store can't be reached yet."""
        works = (self._look_after, self._beat, self._purge, self._runner.fill, self._runner.write)
        self._tasks = [asyncio.ensure_future(_lasting(work)) for work in works]

    def stop(self) -> None:
        """Start no more items. Running ones may end."""
        self._runner.stop()

    async def drained(self) -> None:
        """Wait until the items that run have ended. Call `stop` before."""
        await self._runner.drained()

    async def close(self) -> None:
        """Stop the tasks, and give items back that are not done."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.close()

    @property
    def trouble(self) -> str | None:
        """Why the store is down; None while it works."""
        return self._store.trouble

    def wake(self) -> None:
        """Look at the batches soon: something may have changed."""
        self._look.set()

    # --- the states -------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        while True:
            try:
                open_batches = await self._store.do(lambda store: store.open_batches(OPEN_MAX))
                self._look_at_times(open_batches)
                self._runner.open_batches([batch for batch in open_batches if not self._over(batch)])
                self._forecast(open_batches)
                for batch in open_batches:
                    await self._move_on(batch)
                pause_s = LOOK_S
            except StoreError as error:
                logger.warning("cannot check batches: %s", error)
                pause_s = FAULT_S
            await asyncio.sleep(0.05)  # results come by the hundred: one look serves many of them
            try:
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()

    def _look_at_times(self, batches: list[Batch]) -> None:
        """Turn deadlines, which are Unix times, into times of `now`, each when its batch is seen for the first time."""
        wall, now = self._wall(), self._now()
        self._due = {batch.id: self._due.get(batch.id, now + batch.deadline - wall) for batch in batches}
        self._ending = {batch.id: self._ending[batch.id] for batch in batches if batch.id in self._ending}

    def _over(self, batch: Batch) -> bool:
        return self._now() >= self._due[batch.id]

    def _forecast(self, batches: list[Batch]) -> None:
        before = {one.id for one in self.outlook if one.misses_window}
        self.outlook = self._pace.look(batches, wall=self._wall(), now=self._now())
        for one in self.outlook:
            if one.misses_window and one.id not in before:
                left = one.total - one.completed - one.failed
                logger.warning("%s will miss its window: %d left, %.1f/s", one.id, left, one.per_s)

    async def _move_on(self, batch: Batch) -> None:
        now = self._wall()
        if batch.state is Status.VALIDATING:
            if await self._store.do(lambda store: store.take(batch, self._runner.name, now)):
                await self._validate(batch)
        elif batch.state is Status.CANCELLING:
            await self._end(batch, BatchEvent.STOPPED, api_objects.CANCELLED)
        elif batch.left == 0 and not batch.when().expiring:
            await self._store.do(lambda store: store.move(batch.id, BatchEvent.ALL_ENDED, now))
            self.wake()
        elif self._over(batch):
            await self._end(batch, BatchEvent.WINDOW_OVER, api_objects.EXPIRED)

    async def _end(self, batch: Batch, event: BatchEvent, why: tuple[str, str]) -> None:
        """End the waiting items unrun, with the reason `why`; running ones have `STOP_S`. Called until none is left."""
        since = self._ending.setdefault(batch.id, self._now())
        self._runner.withdraw(batch.id, running=self._now() - since > STOP_S)
        if batch.when().in_progress_at is None:  # cancelled before it was read
            while await self._store.do(lambda store: store.clear_items(batch.id)):
                pass
            await self._store.do(lambda store: store.move(batch.id, event, self._wall(), total=0))
            return
        while await self._store.do(lambda store: store.end_pending(batch.id, *why)):
            pass
        if await self._store.do(lambda store: store.move(batch.id, event, self._wall())) is not None:
            self.wake()

    # --- reading a file ---------------------------------------------------------------------------------------

    async def _validate(self, batch: Batch) -> None:
        """Read the batch's file: make items of its lines, or fail the batch with their problems."""
        while await self._store.do(lambda store: store.clear_items(batch.id)):
            pass  # items of an earlier reading that was cut off
        file = await self._store.do(lambda store: store.file(batch.tenant, batch.input_file, 0.0))
        items: list[NewItem] = []
        reader = InputReader(
            urls=self._port.takes,
            lines_max=self._limits.max_lines,
            line_bytes_max=self._limits.max_line,
            endpoint=batch.endpoint,
            on_item=items.append,
        )
        at, size = 0, 0 if file is None else file.bytes
        while at < size:
            begin, count = at, min(READ_BYTES, size - at)
            at += count
            await self._store.do(lambda store, b=begin, n=count: reader.feed(store.read(batch.input_file, b, n)))  # type: ignore[misc]
            if not await self._keep(batch, items, reader):
                return  # the batch was cancelled meanwhile
        reader.end()
        if not await self._keep(batch, items, reader):
            return
        for model, line in reader.models.items():
            if not self._port.serves(model):
                text = f"The model `{model}` does not exist. GET /v1/models lists those that do."
                reader.problems.append(LineProblem("model_not_found", text, "body.model", line))
        await self._begin(batch, reader)

    async def _keep(self, batch: Batch, items: list[NewItem], reader: InputReader) -> bool:
        some, items[:] = list(items), []
        if reader.problems or not some:
            return True  # no item will run, but the other problems of the file should be listed, too
        return await self._store.do(lambda store: store.add_items(batch.id, some))

    async def _begin(self, batch: Batch, reader: InputReader) -> None:
        now = self._wall()
        if reader.problems:
            while await self._store.do(lambda store: store.clear_items(batch.id)):
                pass
            problems = sorted(reader.problems, key=lambda problem: problem.line or self._limits.max_lines * 2)
            await self._store.do(
                lambda store: store.move(batch.id, BatchEvent.INVALID, now, total=0, problems=problems)
            )
        else:
            total, models = reader.requests, list(reader.models)
            await self._store.do(lambda store: store.move(batch.id, BatchEvent.VALID, now, total=total, models=models))
        self.wake()

    # --- upkeep -----------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        async def beat() -> None:
            now, name = self._wall(), self._runner.name
            await self._store.do(lambda store: store.beat(name, now + self._claim_s))
            if await self._store.do(lambda store: store.release_lost(now)):
                self.wake()

        await self._again(beat, self._claim_s / 5, "the batch store can't be reached")

    async def _purge(self) -> None:
        async def purge() -> None:
            while await self._store.do(lambda store: store.purge(self._wall())):
                pass

        await self._again(purge, PURGE_S, "deleted data cannot be erased")

    async def _again(self, work: Callable[[], Awaitable[None]], every_s: float, trouble: str) -> None:
        while True:
            try:
                await work()
            except StoreError as error:
                logger.warning("%s: %s", trouble, error)
            await asyncio.sleep(every_s)


async def _lasting(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` again whenever it fails: a fault of ours must not stop all batches for good."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("unexpected error while checking batches")
        await asyncio.sleep(FAULT_S)
