"""Which prompts has an engine still to compute (docs/design.md#admission)?

Prompts are computed in the order in which they were sent, so the first one is the one that gets further: by time, in
steps, while the speed is known, all but its last token. It is computed at its first token. A whole answer shows no
first token: its prompt counts until it should be computed.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Final

from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.speed import BASE_S, Speed

STEP_TOKENS: Final = 2048  # how far most engines get with a prompt in one step: progress is counted in these
EPSILON = 1e-9  # rounding error of a whole step


class PrefillBacklog:
    """The prompts before one engine."""

    __slots__ = ("_free_s", "computed_tokens", "due_s", "leases", "outstanding_tokens", "speed")

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.leases: dict[int, Lease] = {}  #: with prompts not known to be computed, in dispatch order
        self.outstanding_tokens = 0  #: sent, and not known to be computed
        self.computed_tokens = 0  #: in all
        self.due_s = math.inf  #: when `advance` has something to do
        self._free_s = -math.inf  # when the last prompt was computed

    def add(self, lease: Lease) -> None:
        """Add the prompt of a request that was sent, and predict on the lease when it is computed."""
        queued = lease.prompt_tokens
        if self.leases:
            queued += round(self.left(lease.dispatched_s))
        lease.prefill_end_s = lease.dispatched_s + queued / self.speed.rate + BASE_S
        lease.queued_tokens = queued
        self.speed.sent(queued)
        self.leases[lease.serial] = lease
        self.outstanding_tokens += lease.prompt_tokens
        if not lease.streamed:
            self.due_s = min(self.due_s, lease.prefill_end_s)
        if self.speed.rate_known and len(self.leases) == 1:
            self._await_progress()

    def first_token(self, lease: Lease, now: float, *, teaches: bool) -> None:
        """Note that a prompt is computed, as its first token shows, and learn the speed from it."""
        self.speed.on_first_token(lease, now, begun_s=max(lease.dispatched_s, self._free_s), teaches=teaches)
        self._free_s = now
        self.remove(lease)

    def first_tokens_counted(self, count: int) -> None:
        """Note that the engine made so many first tokens of which none was seen: the oldest streams come whole."""
        for lease in list(islice(self.leases.values(), count)):
            if lease.streamed:
                self.remove(lease)

    def remove(self, lease: Lease) -> None:
        """Forget a prompt, computed or not."""
        del self.leases[lease.serial]
        self.outstanding_tokens -= lease.prompt_tokens - lease.computed_tokens
        self.computed_tokens += lease.prompt_tokens
        lease.prefix = ()  # only for detecting that it is being computed
        if self.leases:
            self._await_progress()

    def restarted(self, after_s: float) -> None:
        """Forget all prompts sent before `after_s`: another process answers now."""
        self.leases = {serial: lease for serial, lease in self.leases.items() if lease.dispatched_s >= after_s}
        self.outstanding_tokens = sum([x.prompt_tokens - x.computed_tokens for x in self.leases.values()])

    def none_streams(self) -> None:
        """All that were sent come whole, as was just found out: their prompts end by time."""
        self.speed.forget_first_tokens()
        self.due_s = min([x.prefill_end_s for x in self.leases.values() if not x.streamed], default=math.inf)

    def advance(self, now: float) -> None:
        """Let the first prompt get further, and prompts of whole answers end that should be computed by now."""
        if now < self.due_s:
            return
        for lease in [x for x in self.leases.values() if not x.streamed and x.prefill_end_s <= now]:
            self._free_s = max(self._free_s, lease.prefill_end_s - BASE_S)
            self.remove(lease)
        self.due_s = min([x.prefill_end_s for x in self.leases.values() if not x.streamed], default=math.inf)
        if self.leases and self.speed.rate_known:
            first = self._first
            steps = int((now - self._begun_s(first)) * self.speed.rate / STEP_TOKENS + EPSILON)
            computed = min(steps * STEP_TOKENS, first.prompt_tokens - 1)
            if computed > first.computed_tokens:
                self.outstanding_tokens -= computed - first.computed_tokens
                first.computed_tokens = computed
        self._await_progress()

    def left(self, now: float) -> float:
        """Returns how many tokens are still to be computed, as far as the time since the last prompt ended shows."""
        if not self.leases:
            return 0.0
        first = next(iter(self.leases.values()))
        computed = (now - max(first.dispatched_s, self._free_s)) * self.speed.rate
        return self.outstanding_tokens + first.computed_tokens - max(0.0, min(first.prompt_tokens, computed))

    @property
    def overdue_s(self) -> float:
        """Returns when the first prompt has taken twice as long as was predicted when it was sent, or infinity."""
        if not self.leases:
            return math.inf
        first = self._first
        return 2.0 * first.prefill_end_s - first.dispatched_s

    @property
    def _first(self) -> Lease:
        return next(iter(self.leases.values()))

    def _begun_s(self, lease: Lease) -> float:
        return max(lease.dispatched_s, self._free_s)

    def _await_progress(self) -> None:
        """Note when the prompt that is being computed will be a step further, if the speed is known."""
        if not self.leases or not self.speed.rate_known:
            return
        first = next(iter(self.leases.values()))
        following = first.computed_tokens + STEP_TOKENS
        if following < first.prompt_tokens:
            self.due_s = min(self.due_s, self._begun_s(first) + following / self.speed.rate)
