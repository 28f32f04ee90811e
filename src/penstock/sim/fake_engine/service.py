"""The model's steps on the loop's clock.

One timer wakes at the end of each step, where all its tokens are written. A request is parsed, submitted to the model
and kept as an exchange until the model is done with it or its client is gone.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import NamedTuple

from msgspec.structs import replace

from penstock.sim.engine.model import EngineModel
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.engine.values import EngineFullError, EngineRequest, Progress, PromptTooLongError
from penstock.sim.fake_engine import text
from penstock.sim.fake_engine.adapters import Adapters
from penstock.sim.fake_engine.calls import CallError, CallReader, EngineCall, bad_request, broken, busy, no_kv
from penstock.sim.fake_engine.exchange import EngineExchange
from penstock.sim.fake_engine.http import EngineConnection, HttpRequest
from penstock.sim.fake_engine.kv_events import KvPublisher
from penstock.sim.fake_engine.log import Fault, Faults, LogEntry, RequestLog
from penstock.sim.fake_engine.rooms import Rooms, fetch
from penstock.sim.fake_engine.transfer import Transfers

CATCH_UP_S = 0.05  # a timer late by up to this is made up for; beyond it time is lost


class _Asked(NamedTuple):
    """A request on its way into the engine."""

    request: HttpRequest
    connection: EngineConnection
    entry: LogEntry
    fault: Fault | None

    def refuse(self, refusal: CallError) -> None:
        entry = self.entry
        entry.status, entry.finished = refusal.status, time.time()
        entry.outcome = {500: "error", 503: "busy"}.get(refusal.status, "rejected")
        self.connection.respond(refusal.status, refusal.body(self.request.path))


class ServedEngine:
    """The engine model on the loop's clock. Its owner calls `start` and `stop`."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        model: str,
        seed: int,
        kv_transfer_s: float | None = None,
        rooms: Rooms | None = None,
    ) -> None:
        self.config = config
        self.adapters = Adapters()
        self.engine = EngineModel(config, seed=seed)
        self.reader = CallReader(
            model=model,
            adapters=self.adapters,
            context_tokens_max=self.engine.context_tokens_max,
            rng=random.Random(seed),
        )
        self.log = RequestLog()
        self.faults = Faults()
        self.kv: KvPublisher | None = None
        self.successes = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.refused = 0  #: for its own bound, `--max-num-queued-reqs`
        self._tag = os.urandom(4).hex()  # so that no two engines give their answers the same id
        self._transfers = None if kv_transfer_s is None else Transfers(self._tag, held_s=kv_transfer_s)
        self._rooms = rooms  # for other engines that fetch prompts computed here
        self._room_of: dict[str, tuple[int, tuple[int, ...], int]] = {}  # room, hashes, tokens
        self._fetching: set[asyncio.Task[None]] = set()  # requests with prompts computed elsewhere
        self._requests = 0
        self._exchanges: dict[str, EngineExchange] = {}  # in the engine
        self._open: set[EngineExchange] = set()  # with bytes left to write
        self._hung: set[EngineConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    def start(self, loop: asyncio.AbstractEventLoop, kv: KvPublisher | None) -> None:
        self._loop = loop
        self.kv = kv

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.kv is not None:
            self.kv.close()
            self.kv = None
        for task in self._fetching:
            task.cancel()
        if self._rooms is not None:
            self._rooms.close()

    @property
    def load(self) -> int:
        """Requests open at the HTTP layer; unlike the gauges this moves at once."""
        return len(self._open) + len(self._hung) + len(self._fetching)

    def hang(self, connection: EngineConnection) -> None:
        """Never answer."""
        self._hung.add(connection)
        connection.on_gone = lambda: self._hung.discard(connection)

    def died(self) -> None:
        """A fault has cut off all open requests."""
        for exchange in self._open:
            exchange.entry.outcome = "died"

    # steps -----------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self.log.saw(running=self.engine.running_now, waiting=self.engine.waiting_now)
        due = self.engine.next_step_end()
        if due is not None and self._timer is None:
            self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, due = self._loop.time(), self.engine.next_step_end()
        assert due is not None
        changes = self.engine.take_kv_changes()
        self.engine.slow_factor = self.faults.slow_factor(now)
        # Timers are late by part of a millisecond; counting from when the timer was due keeps step times exact.
        events = self.engine.step(due if now - due < CATCH_UP_S else now)
        unix_s = time.time()
        if self.kv is not None:
            self.kv.publish(*changes, unix_s=unix_s)
        for event in events:
            self._progress(event, unix_s)
        self._arm()

    def _progress(self, event: Progress, unix_s: float) -> None:
        exchange = self._exchanges.get(event.id)
        if exchange is None:
            return
        if event.started_at is not None:
            exchange.entry.started = event.started_at + unix_s - self._loop.time()
        if event.finish_reason is not None:
            self.successes[event.finish_reason] += 1
            if self._rooms is not None and event.id in self._room_of:
                self._rooms.computed(*self._room_of.pop(event.id))
            self._drop(exchange)
        exchange.progress(event, unix_s)

    def _drop(self, exchange: EngineExchange) -> None:
        """The engine has finished or dropped this exchange."""
        del self._exchanges[exchange.engine_id]
        if self._rooms is not None and exchange.engine_id in self._room_of:
            self._rooms.gave_up(self._room_of.pop(exchange.engine_id)[0])
        if self.kv is not None:
            self.kv.left(exchange.engine_id)

    def _leave(self, exchange: EngineExchange) -> None:
        """Nothing more will be written for this exchange."""
        self._open.discard(exchange)
        if exchange.engine_id in self._exchanges:
            now = self._loop.time()
            entry = exchange.entry
            started = self.engine.started_at(exchange.engine_id)
            if started is not None:
                entry.started = started + time.time() - now
            entry.finished = time.time()
            self.engine.abort(exchange.engine_id, now)
            self._drop(exchange)

    # inference -------------------------------------------------------------------------------------

    def infer(self, request: HttpRequest, connection: EngineConnection) -> None:
        now = time.time()
        entry = self.log.open(path=request.path, headers=request.headers, body=request.body, arrived=now)
        asked = _Asked(request, connection, entry, self.faults.for_inference())
        try:
            if asked.fault is not None and self._misbehave(asked.fault, entry, connection):
                return
        except CallError as refusal:
            asked.refuse(refusal)
            return
        door_s = self.faults.door_s(self._loop.time())
        if not door_s:
            self._enter(asked)
            return
        standing = self._loop.call_later(door_s, self._enter, asked)

        def gone() -> None:
            standing.cancel()
            entry.outcome, entry.finished = "aborted", time.time()

        connection.on_gone = gone

    def _enter(self, asked: _Asked) -> None:
        asked.connection.on_gone = None
        try:
            self._submit(asked)
        except CallError as refusal:
            asked.refuse(refusal)

    def _misbehave(self, fault: Fault, entry: LogEntry, connection: EngineConnection) -> bool:
        """Apply faults in front of the engine. Returns True if there will be no answer."""
        if fault.kind == "refuse":
            entry.outcome, entry.finished = "refused", time.time()
            connection.reset()
            return True
        if fault.kind == "busy":
            raise busy()
        if fault.kind == "error" and fault.after_bytes is None:
            raise broken()
        if fault.kind == "hang" and fault.after_bytes is None:
            entry.outcome = "hung"
            self.hang(connection)
            return True
        return False

    def _submit(self, asked: _Asked) -> None:
        request, entry, fault = asked.request, asked.entry, asked.fault
        self._requests += 1
        engine_id = f"{self._tag}{self._requests:08x}"
        priority = request.headers.get("x-vllm-priority")
        call = self.reader.read(
            request.path, request.body, answer_id=engine_id, created=int(entry.arrived), priority=priority
        )
        entry.model, entry.stream, entry.priority = call.model, call.stream, call.priority
        entry.prompt_tokens = call.prompt_tokens
        if fault is not None and fault.kind == "error" and not call.stream:
            raise broken()
        hashes = text.block_hashes(
            call.prompt, block_size=self.config.block_size, seed=f"{call.model}\n{call.cache_salt}"
        )
        engine_request = EngineRequest(
            id=engine_id,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            priority=call.priority,
            block_hashes=hashes,
            finish_reason=call.finish_reason,
            transferred=self._transfer(call, engine_id, hashes, entry),
        )
        wait_s = self.adapters.use(call.model, self._loop.time())
        if wait_s > 0.0:
            self._after(wait_s, engine_request, call, asked)
        elif call.meets is None:
            self._begin(engine_request, call, asked)
        elif self._rooms is not None:
            entry.kv_transfer = "promised"
            self._begin(replace(engine_request, output_tokens=1), call, asked)
            self._room_of[engine_id] = (call.meets[2], hashes, call.prompt_tokens)
        else:
            task = self._loop.create_task(self._go_on(engine_request, call, asked))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    def _after(self, wait_s: float, wanted: EngineRequest, call: EngineCall, asked: _Asked) -> None:
        """Begin when the adapter is in memory."""

        def begin() -> None:
            asked.connection.on_gone = None
            try:
                self._begin(wanted, call, asked)
            except CallError as refusal:
                asked.refuse(refusal)

        standing = self._loop.call_later(wait_s, begin)

        def gone() -> None:
            standing.cancel()
            asked.entry.outcome, asked.entry.finished = "aborted", time.time()

        asked.connection.on_gone = gone

    @property
    def adapters_running(self) -> list[str]:
        """The adapters that requests in the engine use."""
        models = [exchange.entry.model for exchange in self._exchanges.values()]
        return sorted({model for model in models if model in self.adapters})

    async def _go_on(self, wanted: EngineRequest, call: EngineCall, asked: _Asked) -> None:
        """Wait until another engine has computed the prompt, then begin."""
        assert call.meets is not None
        entry, waiting = asked.entry, self._loop.create_task(fetch(*call.meets))

        def gone() -> None:
            waiting.cancel()

        asked.connection.on_gone = gone
        await asyncio.wait([waiting])
        if waiting.cancelled():
            entry.outcome, entry.finished = "aborted", time.time()
            return
        kv = waiting.result()
        try:
            if kv is None:
                raise no_kv()
            comes = (kv.hashes, kv.prompt_tokens) == (list(wanted.block_hashes), wanted.prompt_tokens)
            entry.kv_transfer = "used" if comes else "stale"
            self._begin(replace(wanted, transferred=comes), call, asked)
        except CallError as refusal:
            asked.refuse(refusal)

    def _begin(self, engine_request: EngineRequest, call: EngineCall, asked: _Asked) -> None:
        """Give the request to the model."""
        engine_id = engine_request.id
        now = self._loop.time()
        self.engine.slow_factor = self.faults.slow_factor(now)
        try:
            self.engine.submit(engine_request, now)
        except PromptTooLongError as error:
            raise bad_request(str(error), "input_tokens") from error
        except EngineFullError as error:
            self.refused += 1
            raise busy() from error
        if self.kv is not None:
            self.kv.joined(engine_id, text.tokenize(call.prompt), call.cache_salt)
        exchange = EngineExchange(engine_id, asked.connection, call, asked.entry, self._leave)
        exchange.lacks(self.faults.for_answer())
        if asked.fault is not None:
            exchange.misbehave(asked.fault)
        self._exchanges[engine_id] = exchange
        self._open.add(exchange)
        self._arm()

    def _transfer(self, call: EngineCall, engine_id: str, hashes: tuple[int, ...], entry: LogEntry) -> bool:
        """Returns True if the prompt's KV comes from another engine. Also promises this engine's KV to another."""
        if self._transfers is None or not call.kv_transfer:
            return False
        now = time.time()
        if call.kv_transfer.get("do_remote_decode"):
            entry.kv_transfer = "promised"
            call.answer.transfer = {
                "kv_transfer_params": self._transfers.promise(engine_id, hashes, call.prompt_tokens, now)
            }
            return False
        comes = self._transfers.comes(call.kv_transfer, hashes, call.prompt_tokens, now)
        entry.kv_transfer = "used" if comes else "stale"
        return comes
