"""How fast does an endpoint make output tokens now: as our own streams show, or else as the engine tells.

A limit on the pace is held against what the engine tells, where it does: that is of all its requests, whoever sent
them, and it is there before a stream of ours has shown anything. Where it does not, our own streams count while there
are any. Either is forgotten within seconds: an endpoint that is given nothing may have nothing that shows its pace.
"""

from __future__ import annotations

import math

from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.prefill_backlog import PrefillBacklog
from penstock.core.values.observation import Observation

TOKENS_MIN = 8  # fewer say more about the network's buffers than about the engine
LEARNING_RATE = 0.2
LIMIT_KEPT_S = 10.0  # of what a limit is held against; eight tokens of a second each are told in less
KEPT_S = 60.0  # a slow endpoint is given nothing, and answers that do not stream tell nothing: so it is forgotten


class Tpot:
    """The time per output token of one endpoint."""

    def __init__(self, prefill: PrefillBacklog) -> None:
        self._prefill = prefill
        self._pace_s: float | None = None
        self._between_s: float | None = None  # the same, without the time in which prompts were computed
        self._own_s = -math.inf  # when one of our own streams last told
        self._told_s: float | None = None  # the engine's own figure,
        self._told_at_s = -math.inf  # and when that was asked for
        self._told_since: Observation | None = None  # the reading that the next one is counted from
        self._own_until_s = -math.inf  # until then our own streams tell it; after that, the engine
        self.kept_until_s = -math.inf  #: it is not used any longer

    def begun(self, lease: Lease, now: float) -> None:
        """Note that an answer has begun."""
        lease.progress_s, lease.progress_tokens, lease.progress_computed = now, 1, self._prefill.computed_tokens

    def progressed(self, lease: Lease, output_tokens: int, now: float) -> None:
        """Note that an answer has grown to `output_tokens`."""
        made = output_tokens - lease.progress_tokens
        if made < TOKENS_MIN:
            return
        if now >= self._own_until_s:
            self._pace_s = self._between_s = None
        self._own_s, self._own_until_s = now, now + KEPT_S
        self.kept_until_s = self._own_until_s
        computed = self._prefill.computed_tokens
        sample_s = (now - lease.progress_s) / made
        between_s = max(0.0, sample_s - (computed - lease.progress_computed) / self._prefill.rate / made)
        lease.progress_s, lease.progress_tokens, lease.progress_computed = now, output_tokens, computed
        if self._pace_s is None or self._between_s is None:
            self._pace_s, self._between_s = sample_s, between_s
        else:
            self._pace_s += LEARNING_RATE * (sample_s - self._pace_s)
            self._between_s += LEARNING_RATE * (between_s - self._between_s)

    def observed(self, before: Observation, after: Observation) -> None:
        """Learn from two readings of how many tokens the engine has made, and how long they took in all."""
        since = self._told_since or before
        if since.pace_s_total is None or after.pace_s_total is None:
            return
        if since.pace_tokens_total is None or after.pace_tokens_total is None:
            return
        seconds = after.pace_s_total - since.pace_s_total
        tokens = after.pace_tokens_total - since.pace_tokens_total
        if 0.0 <= tokens < TOKENS_MIN and after.asked_s < since.asked_s + LIMIT_KEPT_S:
            self._told_since = since  # together with the next ones it may be enough
            return
        self._told_since = after
        if tokens >= TOKENS_MIN and seconds >= 0:
            self._told_s, self._told_at_s = seconds / tokens, after.asked_s
            if after.asked_s >= self._own_until_s:
                self._pace_s = seconds / tokens
                self.kept_until_s = after.asked_s + KEPT_S

    def exceeds(self, limit_s: float, now: float, *, own: bool) -> bool:
        """True if an output token takes longer than `limit_s` now; `own`: requests of ours are there."""
        if now < self._told_at_s + LIMIT_KEPT_S:
            return (self._told_s or 0.0) > limit_s
        return own and now < self._own_s + LIMIT_KEPT_S and (self._pace_s or 0.0) > limit_s

    def forgotten_s(self, now: float) -> float:
        """Returns when a limit is no longer held against what is known now."""
        if now < self._told_at_s + LIMIT_KEPT_S:
            return self._told_at_s + LIMIT_KEPT_S
        return self._own_s + LIMIT_KEPT_S

    def time_per_output_token_s(self, now: float) -> float:
        """Returns the time per output token, as recently seen; 0 while unknown."""
        return self._pace_s or 0.0 if now < self.kept_until_s else 0.0

    def decode_s(self, now: float) -> float | None:
        """Returns the time per output token of steps that compute no prompts; None while unknown.

        An engine computes prompts in the steps that make tokens, so under many prompts tokens come slowly, however few
        requests make them: what one more of these costs the others is a part of the steps without.
        """
        return self._between_s if now < self._own_until_s else None
