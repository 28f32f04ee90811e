"""Where was a prompt that begins like this one sent last, however long ago?

Our history forgets what an engine can't hold any more, and with a small cache that is nearly everything at once. What
is forgotten may still be there: an engine keeps what runs, drops what rested longest, and nobody tells. And whether it
is or not, there is no better place to look. So the last endpoint of each prompt is remembered for much longer, by a few
of its keys (at depths that grow by a fourth), and counts for as much of the prompt as was found of late by this alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from penstock.core.request import Key

KEYS_MAX = 131_072  # remembered, those not used for the longest time forgotten first: some 10,000 prompts, 15 MB
FORGOTTEN_AT_ONCE = 1_024
DEPTH_MIN = 2  # keys: the first one is everybody's system prompt, or of no use
DEEPEST = 1 << 20  # keys: of half a gigabyte; no body is as long
GROWTH = 4  # each depth is a fourth deeper than the last: so well is known what two prompts share
FOUND, LEARNING_RATE = 0.5, 0.02  # of what is looked for: a first guess, and what each answer counts for


def _depths() -> tuple[int, ...]:
    depths = [DEPTH_MIN]
    while depths[-1] < DEEPEST:
        depths.append(depths[-1] + max(1, depths[-1] // GROWTH))
    return tuple(depths)


DEPTHS = _depths()


class Whereabouts:
    """Key → the endpoint that a prompt with it was sent to last, by its index in the pool."""

    def __init__(self) -> None:
        self._last: dict[Key, int] = {}
        self.found = FOUND  #: the share of what was looked for by this alone, and was there

    def __len__(self) -> int:
        return len(self._last)

    def last(self, prefix: Sequence[Key]) -> tuple[int, int] | None:
        """The endpoint, and how many of the leading keys went there; None where nothing is remembered."""
        for depth in reversed(_within(prefix)):
            endpoint = self._last.get(prefix[depth - 1])
            if endpoint is not None:
                return endpoint, depth
        return None

    def sent(self, prefix: Sequence[Key], endpoint: int) -> None:
        """A prompt goes there now."""
        last = self._last
        for depth in _within(prefix):
            key = prefix[depth - 1]
            last.pop(key, None)
            last[key] = endpoint
        if len(last) > KEYS_MAX:
            # A dict finds its first key by passing all that were deleted before it, up to some hundred thousand.
            for key in list(islice(last, FORGOTTEN_AT_ONCE)):
                del last[key]

    def failed(self, prefix: Sequence[Key], endpoint: int) -> None:
        """It was not computed there."""
        for depth in _within(prefix):
            if self._last.get(prefix[depth - 1]) == endpoint:
                del self._last[prefix[depth - 1]]

    def cleared(self, endpoint: int) -> None:
        """It holds nothing any more, or is no longer one of ours. Seldom, and some milliseconds of work."""
        self._last = {key: last for key, last in self._last.items() if last != endpoint}

    def learn(self, looked_for: int, found: int) -> None:
        """So many tokens were looked for by this alone, and so many were there."""
        self.found += LEARNING_RATE * (min(1.0, found / looked_for) - self.found)


def _within(prefix: Sequence[Key]) -> tuple[int, ...]:
    """The depths of a prompt."""
    count, length = 0, len(prefix)
    while count < len(DEPTHS) and DEPTHS[count] <= length:
        count += 1
    return DEPTHS[:count]
