"""The engine model, after vLLM's v1 scheduler.

Time passes in steps. Each step spends a token budget: first on the running requests (one decode token each, or a chunk
of prefill), then on waiting ones, in order of arrival or of (priority, arrival), while budget, slots and KV blocks
allow. When blocks run out, the last request (lowest priority, latest arrival) is preempted: it returns to the front of
the queue and recomputes its prompt and its answer so far. Gauges move only at the end of a step, as with real engines.

Pure: no clock, no I/O. Call `step` at the time `next_step_end` names. A step costs O(running).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.sim.engine.blocks import BlockPool
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.engine.values import (
    BlocksStored,
    EngineFullError,
    EngineGauges,
    EngineRequest,
    EngineUsage,
    Progress,
    PromptTooLongError,
)

ARRIVED: Final = 0  # arrived during a step; not considered yet
WAITING: Final = 1
RUNNING: Final = 2
GONE: Final = 3


class _Sequence:
    """A request inside the engine. `tokens` = prompt + answer so far; `computed` of them are in KV memory."""

    __slots__ = (
        "arrived_s",
        "blocked_at",
        "cached",
        "chunk",
        "computed",
        "hashes",
        "key",
        "output",
        "phase",
        "private",
        "progress",
        "published",
        "request",
        "room",
        "said",
        "shared",
        "started_at",
        "tokens",
        "transferred",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, *, output: int, key: tuple[int, int], now: float) -> None:
        self.request = request
        self.arrived_s = now
        self.key = key  # (priority, arrival): the order of service
        self.output = output
        self.tokens = request.prompt_tokens
        self.said = 0
        self.hashes = request.block_hashes
        self.progress = Progress(request.id, 1)  # one frozen value serves all tokens in the middle
        self.phase = ARRIVED
        self.started_at: float | None = None
        self.cached: int | None = None  # prompt tokens found in the cache when first admitted
        self.blocked_at = -1
        self.transferred = request.prompt_tokens - 1 if request.transferred else 0
        self.forget()

    def forget(self) -> None:
        """Reset: nothing of the request is in KV memory."""
        self.computed = self.chunk = self.room = self.private = self.published = 0
        self.shared: list[int] = []

    def usage(self) -> EngineUsage:
        return EngineUsage(self.request.prompt_tokens, self.cached or 0, self.said)


class EngineModel:
    """One engine. Its owner calls `submit` and `abort` at any time, and `step` when a step is due."""

    def __init__(self, config: EngineConfig | None = None, *, seed: int = 0) -> None:
        self.config = config or EngineConfig()
        self.context_tokens_max = min(self.config.max_model_len, self.config.kv_blocks * self.config.block_size)
        self.slow_factor = 1.0
        self.pool = BlockPool(self.config.kv_blocks, record=self.config.kv_events)
        self._random = random.Random(seed)
        self._sequences: dict[str, _Sequence] = {}
        self._arrived: list[_Sequence] = []
        self._queue: list[tuple[tuple[int, int], _Sequence]] = []  # a heap; the dead are skipped
        self._waiting = 0
        self._running: list[_Sequence] = []
        self._plan: list[_Sequence] = []
        self._step_end: float | None = None
        self._arrivals = 0
        self._stored: list[BlocksStored] = []
        self._gauges = EngineGauges()
        self._prompt_tokens = self._generation_tokens = self._finished = self._steps = 0
        self._queries = self._hits = self._preemptions = self._first_tokens = 0
        self._first_token_s = 0.0
        self._step_began = 0.0
        self._between_tokens_s, self._between_tokens = 0.0, 0

    # queries ---------------------------------------------------------------------------------------

    def gauges(self) -> EngineGauges:
        """The frozen picture of the last step's end."""
        return self._gauges

    def next_step_end(self) -> float | None:
        return self._step_end

    @property
    def in_engine(self) -> int:
        return len(self._sequences)

    @property
    def running_now(self) -> int:
        """Requests running at this moment, which no real engine reports."""
        return len(self._running)

    @property
    def waiting_now(self) -> int:
        return len(self._sequences) - len(self._running)

    def started_at(self, request_id: str) -> float | None:
        """Returns when a request inside the engine first got a slot, or None."""
        sequence = self._sequences.get(request_id)
        return sequence.started_at if sequence else None

    def take_kv_changes(self) -> tuple[list[BlocksStored], list[int]]:
        """Returns blocks stored and hashes removed since the last call; to be asked after each `step`."""
        changes = (self._stored, self.pool.removed)
        self._stored, self.pool.removed = [], []
        return changes

    # facts -----------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, now: float) -> None:
        assert request.id not in self._sequences
        assert request.prompt_tokens > 0
        assert request.output_tokens >= 0
        room = self.context_tokens_max - request.prompt_tokens
        if room < min(1, request.output_tokens):
            raise PromptTooLongError(
                f"This model's maximum context length is {self.context_tokens_max} tokens. "
                f"However, your request has {request.prompt_tokens} input tokens."
            )
        if len(self._sequences) >= self.config.max_num_queued_reqs:
            raise EngineFullError
        self._arrivals += 1
        key = (request.priority if self.config.priority else 0, self._arrivals)
        if not self.config.prefix_caching:
            request = msgspec.structs.replace(request, block_hashes=())
        sequence = _Sequence(request, output=min(request.output_tokens, room), key=key, now=now)
        self._sequences[request.id] = sequence
        self._arrived.append(sequence)
        if self._step_end is None:
            self._begin_step(now)

    def abort(self, request_id: str, now: float) -> bool:  # noqa: ARG002  (each fact carries its time)
        """Forget a request. Its blocks are free at once; the gauges show it at the next step's end."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.phase == RUNNING:
            self._running.remove(sequence)
            self._release(sequence)
        elif sequence.phase == WAITING:
            self._waiting -= 1
            self._bury()
        sequence.phase = GONE
        return True

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Returns False if requests are inside."""
        if self._sequences:
            return False
        self.pool.clear_cache()
        return True

    def step(self, now: float) -> list[Progress]:
        """End the current step and begin the next. Returns the tokens it made."""
        assert self._step_end is not None
        events: list[Progress] = []
        said = firsts = 0
        any_finished = False
        for sequence in self._plan:
            if sequence.phase != RUNNING:
                continue  # aborted while the step ran
            computed = sequence.computed = sequence.computed + sequence.chunk
            sequence.chunk = 0
            if computed < sequence.tokens:
                continue  # more of its prompt is to be computed
            if 0 < sequence.said < sequence.output - 1:  # the usual case: neither its first nor its last token
                sequence.said += 1
                sequence.tokens += 1
                said += 1
                events.append(sequence.progress)
                continue
            first = sequence.said == 0
            if first:
                self._prompt_tokens += sequence.request.prompt_tokens
                self._first_tokens += 1
                firsts += 1
                self._first_token_s += now - sequence.arrived_s
            if sequence.output:
                sequence.said += 1
                sequence.tokens += 1
                said += 1
            if sequence.said >= sequence.output:
                events.append(self._finish(sequence, first=first))
                any_finished = True
            elif first:
                events.append(self._first(sequence))
            else:
                events.append(sequence.progress)
        if any_finished:
            self._running = [sequence for sequence in self._running if sequence.phase == RUNNING]
        self._generation_tokens += said
        between = max(0, said - firsts)
        self._between_tokens += between
        self._between_tokens_s += between * (now - self._step_began)
        self._steps += 1
        self._gauges = self._picture()
        self._begin_step(now)
        return events

    # inside ----------------------------------------------------------------------------------------

    def _picture(self) -> EngineGauges:
        return EngineGauges(
            running=len(self._running),
            waiting=self._waiting,
            kv_usage=self.pool.used / self.pool.total,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
            first_token_s_total=self._first_token_s,
            first_tokens_total=self._first_tokens,
            between_tokens_s_total=self._between_tokens_s,
            between_tokens_total=self._between_tokens,
            prefix_cache_queries_total=self._queries,
            prefix_cache_hits_total=self._hits,
            preemptions_total=self._preemptions,
            finished_total=self._finished,
            steps_total=self._steps,
        )

    def _first(self, sequence: _Sequence) -> Progress:
        usage, started_at = sequence.usage(), sequence.started_at
        return Progress(sequence.request.id, 1, first=True, usage=usage, started_at=started_at)

    def _finish(self, sequence: _Sequence, *, first: bool) -> Progress:
        request = sequence.request
        capped = sequence.output < request.output_tokens
        sequence.phase = GONE
        self._release(sequence)
        del self._sequences[request.id]
        self._finished += 1
        reason = "length" if capped else request.finish_reason
        return Progress(
            id=request.id,
            tokens=1 if sequence.output else 0,
            first=first,
            finish_reason=reason,
            usage=sequence.usage(),
            started_at=sequence.started_at,
        )

    def _release(self, sequence: _Sequence) -> None:
        self.pool.release(sequence.shared, sequence.private)
        sequence.forget()

    def _enqueue(self, sequence: _Sequence) -> None:
        sequence.phase = WAITING
        self._waiting += 1
        heapq.heappush(self._queue, (sequence.key, sequence))

    def _bury(self) -> None:
        """Drop ended requests from the heap when they are the larger part of it."""
        if len(self._queue) > 2 * self._waiting + 64:
            self._queue = [entry for entry in self._queue if entry[1].phase == WAITING]
            heapq.heapify(self._queue)

    def _begin_step(self, now: float) -> None:
        """Plan the next step and its end."""
        self._step_began = now
        for sequence in self._arrived:
            if sequence.phase == ARRIVED:
                self._enqueue(sequence)
        self._arrived.clear()
        self._plan_waiting(self._plan_running(), now)
        if not self._plan:
            assert self._waiting == 0
            self._step_end = None
            return
        self._step_end = now + self._step_seconds()

    def _plan_running(self) -> int:
        """Give each running request its token or chunk. Returns the budget left for waiting ones."""
        plan: list[_Sequence] = []
        budget = self.config.max_num_batched_tokens
        preemptions = self._preemptions
        for sequence in tuple(self._running):
            if budget <= 0:
                break
            if sequence.phase != RUNNING:
                continue  # just preempted for a request before it
            computed = sequence.computed
            left = sequence.tokens - computed
            chunk = left if left < budget else budget
            if computed + chunk > sequence.room:
                budget += self._make_room(sequence, chunk)
                if sequence.phase != RUNNING:
                    continue
            if sequence.published < len(sequence.hashes):
                self._publish(sequence, computed + chunk)
            sequence.chunk = chunk
            budget -= chunk
            plan.append(sequence)
        if self._preemptions > preemptions:
            plan = [sequence for sequence in plan if sequence.phase == RUNNING]
            budget = 0  # as in vLLM: a request that was just preempted is not let in again at once
        self._plan = plan
        return budget

    def _make_room(self, sequence: _Sequence, chunk: int) -> int:
        """Grow a running request, preempting the last in order. Returns the budget won back by that."""
        need = self._blocks_for(sequence.computed + chunk) - len(sequence.shared) - sequence.private
        won_back = 0
        while self.pool.free < need:
            victim = max(self._running, key=lambda other: other.key)
            won_back += victim.chunk
            self._preempt(victim)
            if victim is sequence:
                return won_back
        self._grow(sequence, need)
        return won_back

    def _preempt(self, victim: _Sequence) -> None:
        self._running.remove(victim)
        self._release(victim)
        self._preemptions += 1
        self._enqueue(victim)  # its arrival number puts it before all requests that came later

    def _plan_waiting(self, budget: int, now: float) -> None:
        while budget > 0 and self._queue and len(self._running) < self.config.max_num_seqs:
            sequence = self._queue[0][1]
            if sequence.phase != WAITING:
                heapq.heappop(self._queue)
                continue
            if sequence.blocked_at == self.pool.releases or not self._admit(sequence, budget):
                sequence.blocked_at = self.pool.releases
                break
            heapq.heappop(self._queue)
            self._waiting -= 1
            sequence.phase = RUNNING
            if sequence.started_at is None:
                sequence.started_at = now
            budget -= sequence.chunk
            self._running.append(sequence)
            self._plan.append(sequence)

    def _admit(self, sequence: _Sequence, budget: int) -> bool:
        """Take cached blocks and those of the first chunk. Returns False if the tokens to compute do not fit."""
        size = self.config.block_size
        hits = self.pool.match(sequence.hashes, (sequence.tokens - 1) // size)
        known: Sequence[int] = sequence.hashes[:hits]
        if self._blocks_for(sequence.tokens) - hits > self.pool.free - self.pool.idle_among(known):
            return False
        self.pool.share(known)
        sequence.shared.extend(known)
        sequence.published = hits
        sequence.computed = max(hits * size, sequence.transferred)
        sequence.transferred = 0  # if preempted, the request has to compute everything itself
        sequence.chunk = min(sequence.tokens - sequence.computed, budget)
        self._grow(sequence, self._blocks_for(sequence.computed + sequence.chunk) - hits)
        self._publish(sequence, sequence.computed + sequence.chunk)
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self._queries += sequence.tokens
            self._hits += hits * size
        return True

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _grow(self, sequence: _Sequence, blocks: int) -> None:
        self.pool.take(blocks)
        sequence.private += blocks
        sequence.room = (len(sequence.shared) + sequence.private) * self.config.block_size

    def _publish(self, sequence: _Sequence, tokens: int) -> None:
        """Publish blocks that are full after this step to the prefix cache at planning, like vLLM."""
        first = sequence.published
        last = min(tokens // self.config.block_size, len(sequence.hashes))
        if last <= first:
            return
        sequence.published = last
        run: list[int] = []  # neighbouring blocks that are new; a twin in between splits the event
        for index in range(first, last):
            block_hash = sequence.hashes[index]
            if self.pool.publish(block_hash):
                sequence.shared.append(block_hash)
                sequence.private -= 1
                run.append(block_hash)
            else:
                self._tell_stored(sequence, run, index)
                run = []
        self._tell_stored(sequence, run, last)

    def _tell_stored(self, sequence: _Sequence, run: list[int], end: int) -> None:
        if run and self.config.kv_events:
            start = end - len(run)
            parent = sequence.hashes[start - 1] if start else None
            self._stored.append(BlocksStored(sequence.request.id, start, tuple(run), parent))

    def _step_seconds(self) -> float:
        config = self.config
        if config.step_s is not None:
            return config.step_s * self.slow_factor
        prefill = kv_tokens = 0
        pairs = 0.0
        for sequence in self._plan:
            kv_tokens += sequence.computed
            if (chunk := sequence.chunk) > 1:
                prefill += chunk
                pairs += chunk * (sequence.computed + chunk / 2)
        seconds = (
            config.step_base_s
            + config.prefill_s_per_token * prefill
            + config.prefill_s_per_pair * pairs
            + config.decode_s_per_running * len(self._plan)
            + config.kv_s_per_token * kv_tokens
        )
        if config.step_jitter:
            seconds *= 1.0 + config.step_jitter * self._random.uniform(-1.0, 1.0)
        return seconds * self.slow_factor
