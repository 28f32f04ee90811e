"""How long does the first token take, once a request is sent: as the last answers show, for prompts of its size.

What a forecast refuses teaches it nothing, so it may refuse only what the present speaks against. Therefore evidence
has an age: what was seen more than some seconds ago counts for nothing, and without evidence the first token takes no
time at all, which refuses nobody. Prompts are told apart by size, for a long one that takes seconds says nothing of a
short one; where there is none of a size, smaller ones speak for it, which can't take longer.

Two numbers, for two questions. `at_best_s` is what none of the last few was below: who has less time than that can't
be in time, as far as anybody can tell. `mostly_s` is what 95 in 100 were below: who has less may well be late, which
matters only where the slot could be given to somebody who will not be.
"""

from __future__ import annotations

import math
from collections import deque

FRESH_S = 10.0  # an engine that was busy that long ago may well be idle now
LAST = 8  # answers: if each is late with even odds, all of them are once in 256 times
LAST_MIN = 3  # fewer are no evidence
KEPT = 64  # answers of one size
LATE_SHARE = 0.05  # of those with no more time than that; most have more
TRY_EVERY_S = 0.5  # one of a size is sent whatever is forecast when none was for that long: else nothing is learned


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
        self._of(prompt_tokens).sent_s = now

    def came(self, prompt_tokens: int, after_s: float, now: float) -> None:
        """Note that the first token of such an answer came `after_s` after the dispatch."""
        self._of(prompt_tokens).answers.append((now, after_s))

    def at_best_s(self, prompt_tokens: int, now: float) -> float:
        """Returns the time that none of the last first tokens was below; 0 without evidence."""
        return min([took_s for _, took_s in self._evidence(prompt_tokens, now)[-LAST:]], default=0.0)

    def mostly_s(self, prompt_tokens: int, now: float) -> float:
        """Returns the time that nearly all of the last first tokens were below; 0 without evidence."""
        took_s = sorted([took_s for _, took_s in self._evidence(prompt_tokens, now)])
        return took_s[min(len(took_s) - 1, int((1.0 - LATE_SHARE) * len(took_s)))] if took_s else 0.0

    def may_try(self, prompt_tokens: int, now: float) -> bool:
        """True if no prompt of this size was sent for a while, so that the next one is worth what it teaches."""
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
