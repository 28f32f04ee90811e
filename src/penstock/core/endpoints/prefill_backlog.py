"""How many prompt tokens has an engine still to compute, and how fast does it compute them (docs/design.md#admission)?

An engine computes prompts in the order in which they come, so the first of those that were sent is the one that gets
further. A prompt is done with at its first token. Until then it gets further by time in steps, where the speed is
known, all but its last token: a speed is a guess, a token is a fact. Answers that do not stream show no first token:
their prompts count until they should be computed.

The speed is learned from the first tokens of our own streams; where none is seen, from what the engine tells of those
of all requests (docs/decisions/0022); where it tells nothing either, from whole answers: how long they take grows with
their tokens, and what is left at none is what a first token took (docs/decisions/0031).
"""

from __future__ import annotations

import math
from itertools import islice

from penstock.core.endpoints.lease import Lease
from penstock.core.values.observation import Observation

TOKENS_PER_S = 4000.0  # until learned: a mid-size GPU's prefill, so that a first guess errs by little
TOKENS_PER_S_MAX = 100_000.0
SAMPLE_S_MAX = 30.0
SAMPLE_TOKENS = 512  # a prompt of that many is a whole sample of the speed
SAMPLES_MIN = 5.0
GUESS_S = 0.05  # what the first guess counts for: next to nothing beside a few samples
GROWTH_MAX = 2.0  # on what an engine told: that is of a queue which was believed at the old speed
OWN_KEPT_S = 60.0  # since one of our own first tokens was last seen: after that, the engine is asked for them
TOLD_KEPT_S = 60.0  # and since it last told: after that, whole answers are
ANSWERS_MIN = 16  # whole ones, for a line through them
SPREAD_MIN = 0.25  # of their mean length: of equally long ones it can't be said what their first tokens took
BASE_S = 0.05  # one engine step and the way there and back
STEP_TOKENS = 2048  # how far most engines get with a prompt in one step: progress is counted in these
EXPLAINED = 1 / 3  # of a wait: the speed varies with the prompts by as much
LEARN = 0.1  # of the difference: some ten first tokens show what is usual
BEST_KEPT = 0.999  # of the highest speed, per sample: one that a queue in the engine makes look low is still known then
EPSILON = 1e-9  # what rounding may take from a whole step


class PrefillBacklog:
    """The prompts before one engine, and its speed."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}  #: whose prompts are not known to be computed, in dispatch order
        self.outstanding_tokens = 0  #: sent, and not known to be computed
        self.computed_tokens = 0  #: in all
        self.rate = TOKENS_PER_S  #: learned, tokens per second
        self.best_rate = 0.0  #: the highest that was learned, slowly forgotten
        self.rate_known = False  #: whether that was seen often enough to go by
        self.due_s = math.inf  #: when `advance` has something to do
        self.beside_s: float | None = None  #: what a first token takes beside computing, a step of the engine among it
        self._free_s = -math.inf  # when the last prompt was done with
        self._tokens = TOKENS_PER_S * GUESS_S
        self._seconds = GUESS_S
        self._samples = 0.0
        self._own_until_s = -math.inf  # until then our own first tokens tell the speed; after that, the engine
        self._told_until_s = -math.inf  # until then the engine tells it; after that, whole answers
        self._answers = _Line()
        self._sent = 0  # since the engine last told of first tokens,
        self._sent_queues = 0  # and prompt tokens that were before these and in them, each counted by itself

    def add(self, lease: Lease) -> None:
        """Add the prompt of a request that was sent, and predict on the lease when it is computed."""
        queued = round(self.left(lease.dispatched_s)) + lease.prompt_tokens
        lease.prefill_end_s = lease.dispatched_s + queued / self.rate + BASE_S
        lease.queued_tokens = queued
        self._sent += 1
        self._sent_queues += queued
        self.leases[lease.serial] = lease
        self.outstanding_tokens += lease.prompt_tokens
        if not lease.streamed:
            self.due_s = min(self.due_s, lease.prefill_end_s)
        if len(self.leases) == 1:
            self._await_progress()

    def first_token(self, lease: Lease, now: float) -> None:
        """Note that a prompt is computed, as its first token shows; learn the engine's speed from it."""
        self._learn_beside(lease, now - lease.dispatched_s)
        elapsed_s = now - self._begun_s(lease) - BASE_S
        self._free_s, self._own_until_s = now, now + OWN_KEPT_S
        self._learn(lease.prompt_tokens, elapsed_s)
        self.remove(lease)

    def remove(self, lease: Lease) -> None:
        """Forget a prompt, computed or not."""
        del self.leases[lease.serial]
        self.outstanding_tokens -= lease.prompt_tokens - lease.computed_tokens
        self.computed_tokens += lease.prompt_tokens
        lease.prefix = ()  # of use only to tell that it is being computed
        self._await_progress()

    def restarted(self, after_s: float) -> None:
        """Forget all prompts sent before `after_s`: another process answers now."""
        self.leases = {serial: lease for serial, lease in self.leases.items() if lease.dispatched_s >= after_s}
        self.outstanding_tokens = sum([x.prompt_tokens - x.computed_tokens for x in self.leases.values()])

    # --- time ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Lease]:
        """Let the first prompt get further. Returns the leases whose prompts should be computed by now."""
        if now < self.due_s:
            return []
        ended = [x for x in self.leases.values() if not x.streamed and x.prefill_end_s <= now]
        for lease in ended:
            self._free_s = max(self._free_s, lease.prefill_end_s - BASE_S)
            self.remove(lease)
        self.due_s = min([x.prefill_end_s for x in self.leases.values() if not x.streamed], default=math.inf)
        if self.leases and self.rate_known:
            first = self._first
            steps = int((now - self._begun_s(first)) * self.rate / STEP_TOKENS + EPSILON)
            computed = min(steps * STEP_TOKENS, first.prompt_tokens - 1)
            if computed > first.computed_tokens:
                self.outstanding_tokens -= computed - first.computed_tokens
                first.computed_tokens = computed
        self._await_progress()
        return ended

    def left(self, now: float) -> float:
        """Returns how many tokens are still to be computed, as far as the time since the last prompt ended tells."""
        if not self.leases:
            return 0.0
        first = self._first
        computed = max(0.0, min(first.prompt_tokens, (now - self._begun_s(first)) * self.rate))
        return self.outstanding_tokens + first.computed_tokens - computed

    def overdue(self, now: float) -> bool:
        """True if the first prompt takes more than twice as long as was predicted when it was sent."""
        return now > self.overdue_s

    @property
    def overdue_s(self) -> float:
        """When the first prompt will be overdue; infinity while there is none."""
        if not self.leases:
            return math.inf
        first = self._first
        return 2.0 * first.prefill_end_s - first.dispatched_s

    def keeps_waiting(self, waiting: float, now: float) -> bool:
        """True if `waiting` requests may wait there for others' prompts, which take more than a step, and not for a
        slot.
        """
        if self.outstanding_tokens <= STEP_TOKENS or len(self.leases) <= waiting:
            return False
        return self.explains(now - self._first.dispatched_s)

    def explains(self, wait_s: float) -> bool:
        """True if a wait of `wait_s` may be for the prompts that were sent.

        Judged at the best speed seen, because a queue for slots makes the speed look low.
        """
        return self.outstanding_tokens >= EXPLAINED * wait_s * max(self.best_rate, self.rate)

    @property
    def _first(self) -> Lease:
        return next(iter(self.leases.values()))

    def _begun_s(self, lease: Lease) -> float:
        return max(lease.dispatched_s, self._free_s)

    def _await_progress(self) -> None:
        """Note when the prompt that is being computed will be a step further, where the speed is known."""
        if not self.leases or not self.rate_known:
            return
        first = self._first
        following = first.computed_tokens + STEP_TOKENS
        if following < first.prompt_tokens:
            self.due_s = min(self.due_s, self._begun_s(first) + following / self.rate)

    # --- speed --------------------------------------------------------------------------------------------------

    def observed(self, before: Observation, after: Observation) -> None:
        """Learn from how long the engine says first tokens took between two readings, if none of ours was seen
        recently.

        Answers that do not stream show none, and at a first guess their prompts would count as queued for too long.
        """
        if before.first_token_s_total is None or after.first_token_s_total is None:
            return
        if before.first_tokens_total is None or after.first_tokens_total is None:
            return
        seconds = after.first_token_s_total - before.first_token_s_total
        count = after.first_tokens_total - before.first_tokens_total
        if not (count >= 1.0 and 0.0 <= seconds < math.inf):
            return
        if after.asked_s >= self._own_until_s:
            self._computed_first(int(min(count, len(self.leases))))
        if not self._sent:
            return
        tokens = self._sent_queues / self._sent
        self._sent = self._sent_queues = 0
        if after.asked_s >= self._own_until_s:
            self._told_until_s = after.asked_s + TOLD_KEPT_S
            self._learn_slowly(tokens, seconds / count)

    def answered(self, lease: Lease, tokens: int, now: float) -> None:
        """Learn from a whole answer of so many `tokens`, or 0 where that is not told."""
        if now < self._own_until_s or now < self._told_until_s:
            return
        answers = self._answers
        answers.add(tokens, now - lease.dispatched_s, lease.queued_tokens)
        if answers.count < ANSWERS_MIN:
            return
        queued, first_token_s, exact = answers.queued / answers.count, *answers.at_none()
        if exact or queued > first_token_s * self.rate:  # it took no longer than the whole answer did
            self._learn_slowly(queued, first_token_s)
        self._answers = _Line()

    def _learn_slowly(self, tokens: float, first_token_s: float) -> None:
        """The speed by prompts that were believed to queue at the old speed."""
        self._learn(tokens, max(first_token_s - BASE_S, tokens / (GROWTH_MAX * self.rate)))

    def _computed_first(self, count: int) -> None:
        """So many first tokens were made, and none of them was seen: of streams, too, that come whole."""
        for lease in list(islice(self.leases.values(), count)):
            if lease.streamed:
                self.remove(lease)

    def unlearn(self) -> None:
        """What was taken for first tokens were whole answers: they say nothing of the speed."""
        self.rate, self.best_rate, self.rate_known = TOKENS_PER_S, 0.0, False
        self._tokens, self._seconds, self._samples = TOKENS_PER_S * GUESS_S, GUESS_S, 0.0
        self._own_until_s = -math.inf
        self.beside_s = None
        self.due_s = min(
            [lease.prefill_end_s for lease in self.leases.values() if not lease.streamed], default=math.inf
        )

    def _learn(self, tokens: float, elapsed_s: float) -> None:
        # A prompt of a few tokens says how long a step is, a hang says nothing: neither is prefill speed.
        elapsed_s = min(max(elapsed_s, tokens / TOKENS_PER_S_MAX), SAMPLE_S_MAX)
        # A prompt that is nearly all cached has little to compute, and says as little of the speed.
        weight = min(1.0, tokens / SAMPLE_TOKENS)
        kept = 0.9**weight
        self._samples += weight
        self._tokens = kept * self._tokens + weight * tokens
        self._seconds = kept * self._seconds + weight * elapsed_s
        self.rate = max(1.0, self._tokens / self._seconds)
        self.rate_known = self._samples >= SAMPLES_MIN
        self.best_rate = max(self.rate, BEST_KEPT**weight * self.best_rate)

    def _learn_beside(self, lease: Lease, took_s: float) -> None:
        """What is before an engine, a guard or a router or a long way, shows where next to no prompt is, and takes no
        longer than any first token does. In a queue of prompts it can't be told from computing slowly.
        """
        if self.beside_s is not None:
            self.beside_s = min(self.beside_s, took_s)
        if lease.queued_tokens > SAMPLE_TOKENS:
            return
        sample_s = max(0.0, took_s - lease.queued_tokens / max(self.best_rate, self.rate))
        if self.beside_s is None:
            self.beside_s = sample_s
        elif lease.within_proven:
            self.beside_s += LEARN * (sample_s - self.beside_s)

    def on_the_way_tokens(self, step_s: float) -> float:
        """Returns how many tokens of prompts may be between here and an engine that computes none of them yet.

        As many as it computes in the time that a first token takes beside computing and two of its steps: the rest of
        one, and a whole one.
        """
        if self.beside_s is None or not self.rate_known:
            return 0.0
        return max(0.0, self.beside_s - BASE_S - 2.0 * step_s) * max(self.best_rate, self.rate)


class _Line:
    """The straight line through the times of some answers over their tokens."""

    def __init__(self) -> None:
        self.count = 0
        self.queued = 0.0  #: prompt tokens before them and in them, in all
        self._tokens = self._seconds = self._squares = self._products = 0.0

    def add(self, tokens: int, took_s: float, queued: int) -> None:
        self.count += 1
        self.queued += queued
        self._tokens += tokens
        self._seconds += took_s
        self._squares += tokens * tokens
        self._products += tokens * took_s

    def at_none(self) -> tuple[float, bool]:
        """What an answer of no tokens would have taken, and whether that can be told: else it is what they took."""
        tokens, seconds = self._tokens / self.count, self._seconds / self.count
        variance = self._squares / self.count - tokens * tokens
        if variance < (SPREAD_MIN * tokens) ** 2 or not tokens:
            return seconds, False
        per_token_s = max(0.0, (self._products / self.count - tokens * seconds) / variance)
        return max(0.0, seconds - per_token_s * tokens), True
