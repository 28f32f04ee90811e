"""Where was a prompt that begins like this one sent last, however long ago?

Our history forgets what an engine can't hold any more, and with a small cache that is nearly everything at once. What
is forgotten may still be there: an engine keeps what runs, drops what rested longest, and nobody tells. And whether it
is or not, there is no better place to look. So the last endpoint of each prompt is remembered for much longer, by a few
of its keys (at depths that double), and counts for as much of the prompt as was found of late by this alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.request import Key

KEYS_MAX = 131_072  # remembered, those not used for the longest time forgotten first: some 20,000 prompts, 25 MB
DEPTH_MIN = 2  # keys: the first one is everybody's system prompt, or of no use
FOUND, LEARNING_RATE = 0.5, 0.02  # of what is looked for: a first guess, and what each answer counts for


class Whereabouts:
    """Key → the endpoint its prompt was last sent to, and since when that one has been itself."""

    def __init__(self) -> None:
        self._last: dict[Key, tuple[int, int]] = {}
        self._lives: dict[int, int] = {}  # by endpoint: how often it has lost all it held
        self.found = FOUND  #: the share of what was looked for by this alone, and was there

    def __len__(self) -> int:
        return len(self._last)

    def last(self, prefix: Sequence[Key]) -> tuple[int, int] | None:
        """The endpoint, and how many of the leading keys went there; None where nothing is remembered."""
        last, lives = self._last, self._lives
        depth = 1 << (len(prefix).bit_length() - 1) if prefix else 0
        while depth >= DEPTH_MIN:
            told = last.get(prefix[depth - 1])
            if told is not None and lives.get(told[0], 0) == told[1]:
                return told[0], depth
            depth >>= 1
        return None

    def sent(self, prefix: Sequence[Key], endpoint: int) -> None:
        """A prompt goes there now."""
        last, told, depth = self._last, (endpoint, self._lives.get(endpoint, 0)), DEPTH_MIN
        while depth <= len(prefix):
            key = prefix[depth - 1]
            last.pop(key, None)
            last[key] = told
            depth <<= 1
        while len(last) > KEYS_MAX:
            del last[next(iter(last))]

    def failed(self, prefix: Sequence[Key], endpoint: int) -> None:
        """It was not computed there."""
        depth = DEPTH_MIN
        while depth <= len(prefix):
            told = self._last.get(prefix[depth - 1])
            if told is not None and told[0] == endpoint:
                del self._last[prefix[depth - 1]]
            depth <<= 1

    def cleared(self, endpoint: int) -> None:
        """It holds nothing any more, or is no longer one of ours."""
        self._lives[endpoint] = self._lives.get(endpoint, 0) + 1

    def learn(self, looked_for: int, found: int) -> None:
        """So many tokens were looked for by this alone, and so many were there."""
        self.found += LEARNING_RATE * (min(1.0, found / looked_for) - self.found)
