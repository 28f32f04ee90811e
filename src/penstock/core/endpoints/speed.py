"""How fast is an engine: how many prompt tokens per second, and how long is a decode step?

Model: an engine computes prompts in the order in which they come, and makes one token per step for each request that it
runs. So a first token takes the prompts before it and its own, at `rate`, two steps (the rest of one, and a whole one),
and the way there and back. All is learned from our own streams, while there are any within a minute; from the
histograms of the engine's page while there are none; and from the time of whole answers while there is no page either.
A prompt limit and a pace limit are held against these numbers, routing predicts first tokens by them.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.endpoints.lease import Lease
from penstock.core.values.observation import Observation

TOKENS_PER_S: Final = 4000.0  # until learned: a mid-size GPU's prefill, so that a first guess errs by little
TOKENS_PER_S_MAX: Final = 100_000.0
GUESS_S = 0.05  # weight of the first guess: negligible beside a few samples
SAMPLE_S_MAX: Final = 30.0  # a hang is no speed
SAMPLE_TOKENS: Final = 512  # a prompt of that many is a whole sample of the speed
SAMPLES_MIN: Final = 5.0
LEARN: Final = 0.1  # of the difference: about ten samples show the usual value
BASE_S: Final = 0.05  # one engine step and the way there and back
TOKENS_MIN: Final = 8  # fewer show more of the network's buffers than of the engine
KEPT_S: Final = 60.0  # own streams count so long, then the page: a slow endpoint that gets nothing has to be forgotten
LIMIT_KEPT_S = 10.0  # a pace limit is held against nothing older


class Speed:
    """The speed of one engine."""

    __slots__ = (
        "_first_until_s", "_least_s", "_page_queued", "_page_s", "_page_sent", "_page_since",
        "_page_until_s", "_samples", "_seconds", "_step_until_s", "_tokens", "between_s", "kept_until_s", "path_s",
        "rate", "rate_known", "step_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rate = TOKENS_PER_S  #: prompt tokens per second
        self.step_s = 0.0  #: time per output token; 0 while unknown
        self._least_s = 0.0  # the least that a first token took
        self.between_s = 0.0  #: the same, without the time in which prompts were computed
        self.path_s: float | None = None  #: time of a first token besides prompts and steps
        self.kept_until_s = -math.inf  #: when `step_s` is too old to go by
        self._tokens = TOKENS_PER_S * GUESS_S
        self._seconds = GUESS_S
        self._samples = 0.0
        self.rate_known = False  #: the speed of prompts was seen often enough to go by
        self._first_until_s = self._step_until_s = -math.inf  # until then our own first tokens and steps count
        self._page_s, self._page_until_s = 0.0, -math.inf  # the page's own time per output token, and until when
        self._page_since: Observation | None = None  # the reading that the next one is counted from
        self._page_sent = self._page_queued = 0  # prompts since the last page, and tokens before and in each

    @property
    def seen(self) -> bool:
        """Whether a first token of our own was seen."""
        return self._first_until_s > -math.inf

    @property
    def base_s(self) -> float:
        """Returns the time of a first token without a prompt before it."""
        return 2.0 * (self.step_s or self._least_s) + (self.path_s if self.path_s is not None else BASE_S)

    @property
    def step_at_least_s(self) -> float:
        """Returns a step's time: of answers of one token that is the least that one took."""
        return self.step_s or self._least_s

    def first_token_s(self, queued_tokens: float) -> float:
        """Returns how long a first token takes that has so many prompt tokens before it, its own among them."""
        path_s = self.path_s
        base_s = 2.0 * (self.step_s or self._least_s) + (BASE_S if path_s is None else path_s)
        return queued_tokens / self.rate + base_s

    def time_per_output_token_s(self, now: float) -> float:
        """Returns the time per output token, as recently seen; 0 while unknown."""
        return self.step_s if now < self.kept_until_s else 0.0

    def decode_s(self, now: float) -> float | None:
        """Returns the time of a step without prompts, which another request would slow down; None while unknown."""
        return self.between_s if now < self._step_until_s else None

    def exceeds(self, limit_s: float, now: float, *, own: bool) -> bool:
        """True if an output token takes longer than `limit_s` now; `own`: requests of ours are there."""
        if now < self._page_until_s:
            return self._page_s > limit_s  # of all requests there, others' too
        return own and now < self._own_until_s and self.step_s > limit_s

    def forgotten_s(self, now: float) -> float:
        """Returns when the current value is too old for a limit."""
        return self._page_until_s if now < self._page_until_s else self._own_until_s

    @property
    def _own_until_s(self) -> float:
        """Until when our own streams' steps are held against a limit."""
        return self._step_until_s - KEPT_S + LIMIT_KEPT_S

    def on_the_way_tokens(self) -> float:
        """Returns how many prompt tokens may be between here and an engine that computes none of them yet."""
        return max(0.0, (self.path_s or 0.0) - BASE_S) * self.rate if self.rate_known else 0.0

    # --- own streams ----------------------------------------------------------------------------------------------

    def sent(self, queued_tokens: int) -> None:
        """Note that a prompt was sent, with so many tokens before it and in it."""
        self._page_sent += 1
        self._page_queued += queued_tokens

    def on_first_token(self, lease: Lease, now: float, *, begun_s: float, teaches: bool) -> None:
        """Learn from a first token; `begun_s`: when the engine could begin with its prompt.

        `teaches`: no slot was waited for, so a time longer than predicted is the engine's speed.
        """
        self._first_until_s = now + KEPT_S
        took_s = now - lease.dispatched_s
        if teaches or took_s < self._least_s:
            self._least_s = min(self._least_s or took_s, took_s)
        # Behind more, waiting and slow computing are indistinguishable; before a step is known, it and the way are.
        if self.step_s and lease.queued_tokens <= SAMPLE_TOKENS:
            sample_s = max(0.0, took_s - lease.queued_tokens / self.rate - 2.0 * self.step_s)
            if self.path_s is None:
                self.path_s = sample_s if teaches else None
            elif teaches or 2.0 * sample_s < self.path_s:
                self.path_s += LEARN * (sample_s - self.path_s)
        if self.path_s is not None:
            self.path_s = min(self.path_s, took_s)
        elapsed_s = now - begun_s - BASE_S
        if teaches or lease.prompt_tokens > elapsed_s * self.rate:
            self._learn(lease.prompt_tokens, elapsed_s)

    def on_progress(self, lease: Lease, tokens: int, now: float, *, computed: int, ended: bool = False) -> None:
        """Learn from a stream that has grown to `tokens`. `computed`: prompt tokens computed there so far, in all."""
        made = tokens - lease.progress_tokens
        if made < TOKENS_MIN and not (ended and made > 0 and lease.progress_tokens == 1):
            return
        step_s = (now - lease.progress_s) / made
        between_s = max(0.0, step_s - (computed - lease.progress_computed) / self.rate / made)
        if now >= self._step_until_s:
            self.step_s, self.between_s = step_s, between_s
        else:
            weight = 2.0 * LEARN * min(1.0, made / TOKENS_MIN)
            self.step_s += weight * (step_s - self.step_s)
            self.between_s += weight * (between_s - self.between_s)
        self._step_until_s = self.kept_until_s = now + KEPT_S
        lease.progress_s, lease.progress_tokens, lease.progress_computed = now, tokens, computed

    def on_whole(self, lease: Lease, tokens: int, now: float) -> None:
        """Learn from a whole answer of so many `tokens`, without streams or a page."""
        if not tokens or now < max(self._first_until_s, self._step_until_s, self._page_until_s):
            return
        took_s = now - lease.dispatched_s
        sample_s = took_s / (tokens + 1)
        if self.step_s == 0.0 or sample_s < self.step_s:
            self.step_s = sample_s
        else:
            self.step_s += LEARN * (sample_s - self.step_s)
        self._learn_slowly(lease.queued_tokens, took_s - tokens * self.step_s)

    def forget_first_tokens(self) -> None:
        """Forget first tokens, which came with whole answers."""
        self.rate, self.path_s = TOKENS_PER_S, None
        self._tokens, self._seconds, self._samples = TOKENS_PER_S * GUESS_S, GUESS_S, 0.0
        self.rate_known = False
        self._first_until_s = -math.inf

    # --- the page -------------------------------------------------------------------------------------------------

    def on_page(self, before: Observation, after: Observation) -> int:
        """Learn from the page's histograms. Returns how many first tokens they count that no stream of ours showed."""
        self._page_pace(before, after)
        seconds = _grown(before.first_token_s_total, after.first_token_s_total)
        count = _grown(before.first_tokens_total, after.first_tokens_total)
        if not (count >= 1.0 and 0.0 <= seconds < math.inf) or after.asked_s < self._first_until_s:
            return 0
        if self._page_sent:
            self._learn_slowly(self._page_queued / self._page_sent, seconds / count - BASE_S)
            self._page_sent = self._page_queued = 0
        return int(min(count, 1e6))

    def _page_pace(self, before: Observation, after: Observation) -> None:
        since = self._page_since or before
        seconds = _grown(since.pace_s_total, after.pace_s_total)
        tokens = _grown(since.pace_tokens_total, after.pace_tokens_total)
        if math.isnan(seconds) or math.isnan(tokens):
            return
        if 0.0 <= tokens < TOKENS_MIN and after.asked_s < since.asked_s + LIMIT_KEPT_S:
            self._page_since = since  # together with the next ones it may be enough
            return
        self._page_since = after
        if tokens >= TOKENS_MIN and seconds >= 0:
            self._page_s, self._page_until_s = seconds / tokens, after.asked_s + LIMIT_KEPT_S
            if after.asked_s >= self._step_until_s:
                self.step_s, self.kept_until_s = self._page_s, after.asked_s + KEPT_S

    # --- its own --------------------------------------------------------------------------------------------------

    def _learn_slowly(self, tokens: float, elapsed_s: float) -> None:
        """The queue was estimated at the old speed, so the new one is at most twice that."""
        self._learn(tokens, max(elapsed_s, 0.5 * tokens / self.rate))

    def _learn(self, tokens: float, elapsed_s: float) -> None:
        elapsed_s = min(max(elapsed_s, tokens / TOKENS_PER_S_MAX), SAMPLE_S_MAX)
        weight = min(1.0, tokens / SAMPLE_TOKENS)  # of a few tokens it shows how long a step is
        kept = 0.9**weight
        self._samples += weight
        self.rate_known = self._samples >= SAMPLES_MIN
        self._tokens = kept * self._tokens + weight * tokens
        self._seconds = kept * self._seconds + weight * elapsed_s
        self.rate = max(1.0, self._tokens / self._seconds)


def _grown(before: float | None, after: float | None) -> float:
    """By how much a counter has grown; NaN if a page lacks it."""
    return after - before if before is not None and after is not None else math.nan
