"""How long does the first token take, once a request is sent: as the last answers show, for prompts of its size.

Refused requests teach nothing, so only current evidence may refuse. Therefore evidence expires after some seconds, and
without evidence the first token is assumed to take no time, which refuses no request. Prompts are grouped by size,
because a long one shows nothing about a short one; without samples of a size, those of smaller ones count, which can't
take longer.

Two numbers, for two questions. `at_best_s` is the minimum of the last few: a request with less time left cannot be in
time. `mostly_s` is their 95th percentile: a request with less may be late, which matters only if the slot could serve
one that will not be.
"""

from __future__ import annotations

import math
from collections import deque

FRESH_S = 10.0  # an engine that was busy that long ago may well be idle now
LAST = 8  # answers: if each is late with even odds, all of them are once in 256 times
LAST_MIN = 3  # fewer are no evidence
KEPT = 64  # answers of one size
LATE_SHARE = 0.05  # of those with no more time than that
TRY_EVERY_S = 0.5  # after so long without a sample of a size, one is sent despite the forecast, to learn


class _Size:
    """Prompts of about the same size."""

    __slots__ = ("answers", "sent_s")

    def __init__(self) -> None:
        self.answers: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when, and how long it took
        self.sent_s = -math.inf  # when one was last sent


class TtftEvidence:
    """First tokens of one model's answers."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}  # by powers of two

    def sent(self, prompt_tokens: int, now: float) -> None:
        """Note that a prompt was sent of which `prompt_tokens` have to be computed."""
        known = self._sizes.get(prompt_tokens.bit_length()) or self._of(prompt_tokens)
        known.sent_s = now

    def came(self, prompt_tokens: int, after_s: float, now: float) -> None:
        """Note that the first token of such an answer came `after_s` after the dispatch."""
        known = self._sizes.get(prompt_tokens.bit_length()) or self._of(prompt_tokens)
        known.answers.append((now, after_s))

    def at_best_s(self, prompt_tokens: int, now: float) -> float:
        """Returns the time that none of the last first tokens was below; 0 without evidence."""
        return min([took_s for _, took_s in self._evidence(prompt_tokens, now)[-LAST:]], default=0.0)

    def mostly_s(self, prompt_tokens: int, now: float) -> float:
        """Returns the time that nearly all of the last first tokens were below; 0 without evidence."""
        took_s = sorted([took_s for _, took_s in self._evidence(prompt_tokens, now)])
        return took_s[min(len(took_s) - 1, int((1.0 - LATE_SHARE) * len(took_s)))] if took_s else 0.0

    def may_try(self, prompt_tokens: int, now: float) -> bool:
        """True if no prompt of this size was sent for a while, so that the next one is sent to learn."""
        return now - self._of(prompt_tokens).sent_s >= TRY_EVERY_S

    def _evidence(self, prompt_tokens: int, now: float) -> list[tuple[float, float]]:
        """The answers that count for a prompt, the last one last."""
        for size in range(prompt_tokens.bit_length(), -1, -1):
            known = self._sizes.get(size)
            if known is not None and known.answers and known.answers[-1][0] >= now - FRESH_S:
                fresh = [answer for answer in known.answers if answer[0] >= now - FRESH_S]
                if len(fresh) >= LAST_MIN:
                    return fresh
        return []

    def _of(self, prompt_tokens: int) -> _Size:
        size = prompt_tokens.bit_length()
        known = self._sizes.get(size)
        if known is None:
            known = self._sizes[size] = _Size()
        return known
