"""Who runs the items? Claims a few of them ahead of need, offers them to the scheduler, keeps how they ended.

For each tenant and model some items wait in the scheduler's lowest band, so that every slot nobody else wants finds one
at once, and the scheduler divides between tenants by weight. A tenant's own batches go earliest deadline first. What
waits is bounded in number and bytes, and claimed by the handful when half of it has gone.

A result counts when the store has it: until then the item is held. What the gateway itself refuses (a full queue, a
tenant's limit, a stop) goes back and is offered again after a pause; a failure of engines is tried `ATTEMPTS_MAX` times
in all, on top of the gateway's own retries; everything else is the item's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from penstock.batch import shapes
from penstock.batch.lane import Answer, Lane, Offer, Work
from penstock.batch.lines import Wrong, read_line
from penstock.batch.states import ItemState, Status
from penstock.batch.store import Store, StoreError
from penstock.batch.thread import StoreThread
from penstock.batch.values import Batch, Item, Result
from penstock.core.outcome import Reason

logger = logging.getLogger(__name__)

WAITING = 64  # items of one tenant and model that wait: more than slots free in the time of a claim
WAITING_ALL = 512  # of all tenants and models together
HELD_MAX = 4096  # items under way and results not yet written, all together
HELD_BYTES_MAX = 16 << 20  # of their requests' bodies; one item is taken whatever its size
WRITE_MAX = 256  # results in one transaction
ATTEMPTS_MAX = 3
LOOK_S = 1.0  # how often the open batches are read anew when nothing tells
DRY_S = 2.0  # a batch without pending items is asked again after that: others may have given some back
PAUSE_S, PAUSE_S_MAX = 0.5, 20.0
FAULT_S = 1.0  # after the store failed

_WAITED = (Reason.QUEUE_TIMEOUT, Reason.NO_ENDPOINT)  # refused after a long wait: no reason for another

_Key = tuple[str, int]  # batch and line
_Stream = tuple[str, str]  # tenant and model


class Held:
    """An item that this runner holds."""

    __slots__ = ("attempts", "batch", "custom_id", "line", "offer", "over", "size", "stream", "waits")

    def __init__(self, batch: str, item: Item, stream: _Stream) -> None:
        self.batch = batch
        self.line = item.line
        self.custom_id = item.custom_id
        self.attempts = item.attempts
        self.size = item.size
        self.stream = stream
        self.offer: Offer | None = None
        self.waits = False
        self.over = False  # what becomes of it stands in line to be written


class _Pause(msgspec.Struct):
    """After refusals."""

    until_s: float = 0.0
    next_s: float = PAUSE_S


class Runner:
    """Runs items until it is stopped."""

    def __init__(
        self, store: StoreThread, lane: Lane, *, name: str, wall: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self.name = name
        self._store = store
        self._lane = lane
        self._wall = wall
        self._now = now
        self._batches: dict[str, Batch] = {}  # in progress, the earliest deadline first
        self._held: dict[_Key, Held] = {}
        self._held_bytes = 0
        self._by_stream: dict[_Stream, list[Batch]] = {}  # the same
        self._waiting: Counter[_Stream] = Counter()
        self._dry: dict[tuple[str, str], float] = {}  # batch and model, until when
        self._pauses: dict[_Stream, _Pause] = {}
        self._results: list[tuple[Held, Result]] = []  # to be written
        self._backs: list[tuple[Held, bool]] = []  # to be given back, and whether it was tried
        self._stopped = False
        self._wanted = asyncio.Event()  # room for more
        self._ended = asyncio.Event()  # something to write
        self.on_written: Callable[[], None] = lambda: None
        self.completed = self.failed = self.retried = self.lost = 0  # totals, for metrics

    # --- what others see ----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Items at the engines."""
        return sum(1 for held in self._held.values() if held.offer is not None and not held.waits)

    @property
    def waiting(self) -> int:
        """Items in the scheduler's queue."""
        return self._waiting.total()

    @property
    def held(self) -> int:
        return len(self._held)

    def open_batches(self, batches: list[Batch]) -> None:
        """What there is to run, as the store has it now."""
        now = self._wall()
        found = [b for b in batches if b.state is Status.IN_PROGRESS and b.deadline > now]
        self._batches = {batch.id: batch for batch in found}
        self._dry = {key: until for key, until in self._dry.items() if key[0] in self._batches}
        self._by_stream = {}
        for batch in found:
            for model in batch.names():
                self._by_stream.setdefault((batch.tenant, model), []).append(batch)
        self._pauses = {stream: pause for stream, pause in self._pauses.items() if stream in self._by_stream}
        self._waiting = +self._waiting  # without those that are 0
        self._wanted.set()

    def withdraw(self, batch: str, *, running: bool = False) -> None:
        """Take the items of a batch back: those that wait, or all."""
        for held in [h for h in self._held.values() if h.batch == batch]:
            if held.offer is not None and (running or held.waits):
                self._take_back(held)

    def stop(self) -> None:
        """Claim nothing more, and take back what waits. What runs may end."""
        self._stopped = True
        for held in list(self._held.values()):
            if held.offer is not None and held.waits:
                self._take_back(held)

    # --- claiming -----------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Keep some of everything waiting, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._fill()
            except StoreError as error:
                logger.warning("batch items can't be claimed: %s", error)
                await asyncio.sleep(FAULT_S)

    async def _fill(self) -> None:
        by_stream = self._by_stream
        if not by_stream:
            return
        share = max(1, min(WAITING, WAITING_ALL // len(by_stream)))
        for stream, batches in by_stream.items():
            if self._waiting[stream] > share // 2 or self._now() < self._pause(stream).until_s:
                continue
            for batch in batches:
                wanted = share - self._waiting[stream]
                if wanted <= 0:
                    break
                if self._now() >= self._dry.get((batch.id, stream[1]), 0.0):
                    await self._claim(batch, stream, wanted)

    async def _claim(self, batch: Batch, stream: _Stream, wanted: int) -> None:
        wanted = min(wanted, HELD_MAX - len(self._held))
        room = HELD_BYTES_MAX - self._held_bytes
        if wanted <= 0 or self._stopped or (room <= 0 and self._held):
            return
        runner = self.name

        def work(store: Store) -> tuple[bool, list[tuple[Item, bytes]]]:
            items = store.claim(batch.id, stream[1], wanted, runner)
            read: list[tuple[Item, bytes]] = []
            size = 0
            for item in items:
                size += item.size
                if read and size > room:
                    break
                read.append((item, store.read(batch.input_file, item.at, item.size)))
            store.give_back(((batch.id, item.line) for item in items[len(read) :]), runner, attempted=False)
            return len(items) < wanted, read

        dry, items = await self._store.do(work)
        if dry:
            self._dry[batch.id, stream[1]] = self._now() + DRY_S
        for item, line in items:
            self._offer(batch, stream, item, line)

    def _offer(self, batch: Batch, stream: _Stream, item: Item, line: bytes) -> None:
        held = self._held[batch.id, item.line] = Held(batch.id, item, stream)
        self._held_bytes += held.size
        if self._stopped or batch.id not in self._batches:
            self._give_back(held)
            return
        try:
            request = read_line(line)
        except Wrong as wrong:  # the file's bytes are not what they were
            text = shapes.unanswered(batch.id, item.line, item.custom_id, wrong.code, str(wrong))
            self._put(held, Result(batch.id, item.line, ItemState.FAILED, text))
            return
        held.waits = True
        self._waiting[stream] += 1
        name = shapes.request_name(batch.id, item.line)
        work = Work(name, batch.tenant, batch.user, batch.endpoint, request.body)
        offer = self._lane.offer(
            work, sent=lambda sent: self._sent(held, sent=sent), ended=lambda answer: self._answered(held, answer)
        )
        if not held.over:
            held.offer = offer

    # --- what becomes of them -----------------------------------------------------------------------------------

    def _sent(self, held: Held, *, sent: bool) -> None:
        if held.waits is sent:
            held.waits = not sent
            self._waiting[held.stream] += -1 if sent else 1
            self._wanted.set()

    def _answered(self, held: Held, answer: Answer) -> None:
        self._let_go(held)
        pause = self._pause(held.stream)
        if answer.status in (429, 503):
            if answer.reason not in _WAITED:
                pause.until_s = self._now() + (answer.retry_after_s or 0.0) / 4 + pause.next_s
                pause.next_s = min(2 * pause.next_s, PAUSE_S_MAX)
            self.retried += 1
            self._give_back(held)
            return
        pause.next_s = PAUSE_S
        if answer.status >= 500 and not answer.too_large and held.attempts + 1 < ATTEMPTS_MAX:
            self.retried += 1
            self._give_back(held, attempted=True)
        else:
            self._put(held, _result(held, answer))

    def _take_back(self, held: Held) -> None:
        offer = held.offer
        assert offer is not None
        self._let_go(held)
        offer.withdraw()
        self._give_back(held)

    def _let_go(self, held: Held) -> None:
        """It is no longer under way."""
        if held.waits:
            held.waits = False
            self._waiting[held.stream] -= 1
        held.offer = None
        self._wanted.set()

    def _put(self, held: Held, result: Result) -> None:
        held.over = True
        held.size += len(result.text)
        self._held_bytes += len(result.text)
        self._results.append((held, result))
        self._ended.set()

    def _give_back(self, held: Held, *, attempted: bool = False) -> None:
        held.over = True
        self._backs.append((held, attempted))
        self._ended.set()

    def _pause(self, stream: _Stream) -> _Pause:
        return self._pauses.setdefault(stream, _Pause())

    # --- keeping results ----------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write results as they come, many in one transaction, until cancelled."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            while self._results or self._backs:
                try:
                    await self._write()
                except StoreError as error:
                    logger.warning("batch results can't be written, which is tried again: %s", error)
                    await asyncio.sleep(FAULT_S)

    async def close(self) -> None:
        """Take everything back, and write what stands in line. Its tasks have ended."""
        for held in list(self._held.values()):
            if held.offer is not None:
                self._take_back(held)
        with contextlib.suppress(StoreError):  # what is not written runs again
            while self._results or self._backs:
                await self._write()

    async def _write(self) -> None:
        some, backs = self._results[:WRITE_MAX], self._backs[:WRITE_MAX]
        results = [result for _, result in some]
        runner = self.name

        def work(store: Store) -> list[bool]:
            kept = store.finish(results, runner) if results else []
            for attempted in (False, True):
                keys = [(held.batch, held.line) for held, tried in backs if tried is attempted]
                if keys:
                    store.give_back(keys, runner, attempted=attempted)
            return kept

        kept = await self._store.do(work)
        del self._results[: len(some)], self._backs[: len(backs)]
        for held in [*(held for held, _ in some), *(held for held, _ in backs)]:
            del self._held[held.batch, held.line]
            self._held_bytes -= held.size
        for held, _ in backs:
            self._dry.pop((held.batch, held.stream[1]), None)
        for result, well in zip(results, kept, strict=True):
            if not well:
                self.lost += 1
            elif result.state is ItemState.COMPLETED:
                self.completed += 1
            else:
                self.failed += 1
        self._wanted.set()
        self.on_written()


def _result(held: Held, answer: Answer) -> Result:
    if answer.too_large:
        text = shapes.unanswered(
            held.batch, held.line, held.custom_id, "answer_too_large", "The answer is larger than is kept."
        )
        return Result(held.batch, held.line, ItemState.FAILED, text)
    text = shapes.answered(
        held.batch, held.line, held.custom_id, status=answer.status, request_id=answer.request_id, body=answer.body
    )
    well = answer.status < 400
    usage = answer.usage
    if usage is None:
        return Result(held.batch, held.line, ItemState.COMPLETED if well else ItemState.FAILED, text)
    return Result(
        held.batch,
        held.line,
        ItemState.COMPLETED if well else ItemState.FAILED,
        text,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
    )
