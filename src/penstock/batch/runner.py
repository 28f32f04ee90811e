"""How are the items of batches run? The runner claims a few ahead of need, offers them to the scheduler, and keeps how
they ended.

For each tenant and model (a *stream*) some items wait in the scheduler's lowest band, so that an idle slot finds an
item at once, and the scheduler divides between tenants by weight. A tenant's own batches go earliest deadline first.
Claimed items are bounded in number and bytes; more are claimed when half of them have gone.

The number of offered items follows `DispatchPort.room`: the room left in the tenant, the band and the queue, or,
without queueing, the unused slots. Batches take at most half of that room, so that their tenant's other requests find a
place beside them. Items that are claimed but not offered stand *ready*, and one is offered as soon as another is sent:
a limit of a few places is enough to keep the engines busy.

A result counts when the store has it; until then the item is held. Reaching a limit of the tenant is no failure: the
item stands ready again. An item that the gateway refuses for another reason (overload, a stop) goes back to the store
and is offered again after a pause that doubles. A failure of engines is tried `ATTEMPTS_MAX` times in all, on top of
the gateway's own retries. Any other outcome is the item's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from penstock.batch import api_objects
from penstock.batch.dispatch_port import DispatchPort, ItemAnswer, Offer, Work
from penstock.batch.input_file import Wrong, read_line
from penstock.batch.states import ItemState, Status
from penstock.batch.store.port import Store, StoreError
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import Batch, Item, Result
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import Usage

logger = logging.getLogger(__name__)

WAITING = 64  # items of one stream that wait or stand ready: more than the slots that free up while a claim runs
WAITING_ALL = 512  # of all streams together
HELD_MAX = 4096  # items under way and results not yet written, of all streams together
HELD_BYTES_MAX = 16 << 20  # in their bodies and results; a single item may have any size
WRITE_MAX = 256  # results in one transaction
ATTEMPTS_MAX = 3
LOOK_S = 1.0  # how often the open batches and the room are looked at without a reason
DRY_S = 2.0  # then a batch without pending items is asked again: another gateway may have given some back
PAUSE_S, PAUSE_S_MAX = 0.5, 20.0
FAULT_S = 1.0  # pause after the store failed

_LIMIT_PAUSE_S_MAX = 5.0  # at a tenant's limit: an allowance refills by the minute, and waiting loses none of it
_LIMITS = (Reason.TENANT_LIMIT, Reason.QUEUE_FULL, Reason.DISPLACED)  # of the tenant, its band, the queue
_WAITED = (Reason.QUEUE_TIMEOUT, Reason.NO_ENDPOINT)  # refused after a long wait: no pause on top

_Key = tuple[str, int]  # batch and line
_Stream = tuple[str, str]  # tenant and model


class HeldItem:
    """An item that this runner has claimed, until the store has its result or has it back."""

    __slots__ = ("attempts", "batch", "custom_id", "line", "offer", "over", "size", "stream", "waits", "work")

    def __init__(self, batch: str, item: Item, stream: _Stream) -> None:
        self.batch = batch
        self.line = item.line
        self.work: Work | None = None  # while the item stands ready
        self.custom_id = item.custom_id
        self.attempts = item.attempts
        self.size = item.size
        self.stream = stream
        self.offer: Offer | None = None
        self.waits = False
        self.over = False  # the item has ended or returns, but the store does not know it yet

    @property
    def is_idle(self) -> bool:
        """Whether it stands ready or is queued."""
        return self.work is not None or (self.offer is not None and self.waits)


class _Pause(msgspec.Struct):
    """A stream's pause after refusals: until when, and how long the next one is; in seconds."""

    until_s: float = 0.0
    next_s: float = PAUSE_S


class Runner:
    """Runs items of open batches until it is stopped. `fill` and `write` are its two tasks."""

    def __init__(self, store: StoreThread, port: DispatchPort, *, name: str, now: Callable[[], float]) -> None:
        self.name = name
        self._store = store
        self._port = port
        self._now = now
        self._batches: dict[str, Batch] = {}  # those in progress, the earliest deadline first
        self._held: dict[_Key, HeldItem] = {}
        self._held_bytes = 0
        self._by_stream: dict[_Stream, list[Batch]] = {}  # the same batches
        self._waiting: Counter[_Stream] = Counter()
        self._running: Counter[_Stream] = Counter()
        self._ready: dict[_Stream, deque[HeldItem]] = {}  # claimed, and not offered for lack of room
        self._offers: set[_Stream] = set()  # streams to offer from in the next turn of the loop
        self._dry: dict[tuple[str, str], float] = {}  # batches and models without pending items, and until when
        self._pauses: dict[_Stream, _Pause] = {}
        self._results: list[tuple[HeldItem, Result]] = []  # to be written
        self._backs: list[tuple[HeldItem, bool]] = []  # items to be given back, and whether each was tried
        self._stopped = False
        self._wanted = asyncio.Event()  # there may be room for more items
        self._ended = asyncio.Event()  # there is something to write
        self._left = asyncio.Event()  # an item has left the scheduler
        self.on_written: Callable[[], None] = lambda: None
        self.completed = self.failed = self.retried = self.lost = 0  # totals, for metrics

    # --- status -------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Items at the engines."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """Items in the scheduler's queue."""
        return self._waiting.total()

    @property
    def ready(self) -> int:
        """Items that are claimed, and not offered for lack of room."""
        return sum(map(len, self._ready.values()))

    @property
    def held(self) -> int:
        """Claimed items in any state: `waiting`, `running`, `ready`, or not written yet."""
        return len(self._held)

    def open_batches(self, batches: list[Batch]) -> None:
        """Run the items of these `batches`: all open ones within their windows."""
        found = [b for b in batches if b.state is Status.IN_PROGRESS]
        self._batches = {batch.id: batch for batch in found}
        self._dry = {key: until for key, until in self._dry.items() if key[0] in self._batches}
        self._by_stream = {}
        for batch in found:
            for model in batch.names():
                self._by_stream.setdefault((batch.tenant, model), []).append(batch)
        self._pauses = {stream: pause for stream, pause in self._pauses.items() if stream in self._by_stream}
        self._waiting, self._running = +self._waiting, +self._running  # `+` drops counts of 0
        self._ready = {stream: ready for stream, ready in self._ready.items() if ready}
        self._wanted.set()

    def withdraw(self, batch: str, *, running: bool = False) -> None:
        """Take the items of `batch` back from the scheduler: those that wait or stand ready; with `running`, all."""
        for held in [h for h in self._held.values() if h.batch == batch]:
            if held.is_idle or (running and held.offer is not None):
                self._take_back(held)

    def stop(self) -> None:
        """Claim no further items, and give queued and ready ones back to the store. Running ones may end."""
        self._stopped = True
        self._leave()

    def _leave(self) -> None:
        """Give queued and ready items back to the store."""
        for held in list(self._held.values()):
            if held.is_idle:
                self._take_back(held)

    async def drained(self) -> None:
        """Wait until no item runs. Call `stop` before."""
        while self.running:
            self._left.clear()
            await self._left.wait()

    # --- claiming -----------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Keep some items of every stream waiting, until cancelled."""
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
                logger.warning("cannot claim batch items: %s", error)
                await asyncio.sleep(FAULT_S)

    async def _fill(self) -> None:
        by_stream = self._by_stream
        if not self._port.decides:
            self._leave()  # to whoever does
            return
        if not by_stream:
            return
        share = max(1, min(WAITING, WAITING_ALL // len(by_stream)))
        for stream, batches in by_stream.items():
            self._offer(stream)
            if self._here(stream) > share // 2 or self._now() < self._pause(stream).until_s:
                continue
            for batch in batches:
                wanted = share - self._here(stream)
                if wanted <= 0:
                    break
                if self._now() >= self._dry.get((batch.id, stream[1]), 0.0):
                    await self._claim(batch, stream, wanted)
                    self._offer(stream)

    def _here(self, stream: _Stream) -> int:
        """How many items of a stream wait or stand ready."""
        return self._waiting[stream] + len(self._ready.get(stream, ()))

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
            self._keep_ready(batch, stream, item, line)

    def _keep_ready(self, batch: Batch, stream: _Stream, item: Item, line: bytes) -> None:
        """Keep a claimed item ready until there is room to offer it."""
        held = self._held[batch.id, item.line] = HeldItem(batch.id, item, stream)
        self._held_bytes += held.size
        try:
            body = read_line(line).body
        except Wrong as wrong:  # the file's bytes have changed since it was validated
            text = api_objects.unanswered(batch.id, item.line, item.custom_id, wrong.code, str(wrong))
            self._put(held, Result(batch.id, item.line, ItemState.FAILED, text))
            return
        name = api_objects.request_name(batch.id, item.line)
        held.work = Work(name, batch.tenant, batch.user, batch.endpoint, body, batch.rights)
        self._ready.setdefault(stream, deque()).append(held)

    # --- offering -----------------------------------------------------------------------------------------------

    def _offer_soon(self, stream: _Stream) -> None:
        """Offer from a stream in the next turn of the loop: in this one the scheduler is still reporting."""
        if stream not in self._offers:
            self._offers.add(stream)
            asyncio.get_running_loop().call_soon(self._offer, stream)

    def _offer(self, stream: _Stream) -> None:
        """Offer as many ready items of a stream as there is room for."""
        self._offers.discard(stream)
        ready = self._ready.get(stream)
        while ready and self._may_offer(ready[0]):
            held = ready.popleft()
            if self._stopped or held.batch not in self._batches or not self._port.decides:
                held.work = None
                self._give_back(held)
            else:
                self._submit(held)

    def _may_offer(self, held: HeldItem) -> bool:
        stream, work = held.stream, held.work
        assert work is not None
        if self._now() < self._pause(stream).until_s:
            return False
        waiting, room = self._waiting[stream], self._port.room(work.tenant, work.user, stream[1])
        if room <= 0:  # others may hold the room for long: with none of ours under way, try one
            return not (waiting or self._running[stream])
        return waiting < max(1, (waiting + room) // 2)

    def _submit(self, held: HeldItem) -> None:
        work, held.work = held.work, None
        assert work is not None
        held.waits = True
        self._waiting[held.stream] += 1
        offer = self._port.offer(
            work, sent=lambda sent: self._sent(held, sent=sent), ended=lambda answer: self._answered(held, work, answer)
        )
        if not held.over and held.work is None:
            held.offer = offer

    # --- results ------------------------------------------------------------------------------------------------

    def _sent(self, held: HeldItem, *, sent: bool) -> None:
        if held.waits is sent:
            held.waits = not sent
            self._waiting[held.stream] += -1 if sent else 1
            self._running[held.stream] += 1 if sent else -1
            if sent:
                self._offer_soon(held.stream)
            self._wanted.set()

    def _answered(self, held: HeldItem, work: Work, answer: ItemAnswer) -> None:
        self._let_go(held)
        pause = self._pause(held.stream)
        if answer.status in (429, 503):
            if answer.reason in _LIMITS:
                pause.until_s = self._now() + min(answer.retry_after_s or PAUSE_S, _LIMIT_PAUSE_S_MAX)
                held.work = work
                self._ready.setdefault(held.stream, deque()).appendleft(held)
                return
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

    def _take_back(self, held: HeldItem) -> None:
        offer = held.offer
        if offer is None:  # the item stands ready
            held.work = None
            self._ready[held.stream].remove(held)
        else:
            self._let_go(held)
            offer.withdraw()
        self._give_back(held)

    def _let_go(self, held: HeldItem) -> None:
        """Stop counting an item as waiting or running."""
        if held.waits:
            held.waits = False
            self._waiting[held.stream] -= 1
        else:
            self._running[held.stream] -= 1
        held.offer = None
        self._left.set()
        self._offer_soon(held.stream)
        self._wanted.set()

    def _put(self, held: HeldItem, result: Result) -> None:
        held.over = True
        held.size += len(result.text)
        self._held_bytes += len(result.text)
        self._results.append((held, result))
        self._ended.set()

    def _give_back(self, held: HeldItem, *, attempted: bool = False) -> None:
        held.over = True
        self._backs.append((held, attempted))
        self._ended.set()

    def _pause(self, stream: _Stream) -> _Pause:
        return self._pauses.setdefault(stream, _Pause())

    # --- keeping results ----------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write results to the store as they come, many in one transaction, until cancelled."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            while self._results or self._backs:
                try:
                    await self._write()
                except StoreError as error:
                    logger.warning("cannot write batch results, retrying: %s", error)
                    await asyncio.sleep(FAULT_S)

    async def close(self) -> None:
        """Give all items back to the store, and write the remaining results. Call it after both tasks have ended."""
        for held in list(self._held.values()):
            if held.work is not None or held.offer is not None:
                self._take_back(held)
        with contextlib.suppress(StoreError):  # an item whose result is not written runs again
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


def _result(held: HeldItem, answer: ItemAnswer) -> Result:
    if answer.too_large:
        why = "answer_too_large", "The answer is larger than is kept."
        text = api_objects.unanswered(held.batch, held.line, held.custom_id, *why)
        return Result(held.batch, held.line, ItemState.FAILED, text)
    text = api_objects.answered(
        held.batch, held.line, held.custom_id, status=answer.status, request_id=answer.request_id, body=answer.body
    )
    state = ItemState.COMPLETED if answer.status < 400 else ItemState.FAILED
    usage = answer.usage or Usage(0, 0)
    tokens = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    return Result(held.batch, held.line, state, text, *tokens)
