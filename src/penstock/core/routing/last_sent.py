"""The last endpoint of a prompt with the same prefix, for a long time.

Our history forgets blocks beyond an engine's capacity, which with a small cache is nearly everything at once. Forgotten
blocks may still be there: an engine keeps running ones and evicts the least recently used, unreported. And whether it
is or not, there is no better place to look. So the last endpoint of each prompt is remembered for much longer, by a few
of its keys (at depths that grow by a fourth), and counts for as much of the prompt as was recently found by this alone,
where as much was sent to the endpoint since: an engine drops what rested longest, so that tells nearly all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Final

from penstock.core.values.located import Sought
from penstock.core.values.request import Key

KEYS_MAX: Final = 131_072  # remembered, those not used for the longest time forgotten first: some 10,000 prompts, 15 MB
FORGOTTEN_AT_ONCE = 1_024
DEPTH_MIN: Final = 2  # keys: the first one is everybody's system prompt, or of no use
DEEPEST = 1 << 20  # keys: of half a gigabyte; no body is as long
GROWTH = 4  # each depth is a fourth deeper than the last: the precision of a shared prefix
FOUND, LEARNING_RATE = 0.5, 0.02  # of the prompt: a first guess, and the minimal weight of an answer
AGES: Final = 40  # in doublings of the keys that were sent to an endpoint since


def _depths() -> tuple[int, ...]:
    depths = [DEPTH_MIN]
    while depths[-1] < DEEPEST:
        depths.append(depths[-1] + max(1, depths[-1] // GROWTH))
    return tuple(depths)


DEPTHS: Final = _depths()


class _Place:
    """A prompt's endpoint: one for all of its keys. Compiled, a tuple would be allocated for each of them."""

    __slots__ = ("endpoint", "keys")

    def __init__(self, endpoint: int, keys: int) -> None:
        self.endpoint = endpoint
        self.keys = keys  # that had been sent to the endpoint by then, in all


class LastSent:
    """Key → the endpoint that a prompt with it was sent to last, and how many keys had been sent there by then."""

    def __init__(self) -> None:
        self._last: dict[Key, _Place] = {}
        self._sent: dict[int, int] = {}  # keys, in all, by endpoint
        self.found = [FOUND] * AGES  #: by age, the hit rate of predictions by this alone
        self._looks = [0] * AGES

    def __len__(self) -> int:
        return len(self._last)

    def last(self, prefix: Sequence[Key], *, beyond: int = 0) -> Sought | None:
        """The endpoint, how many of the leading keys went there, and how long ago.

        None if at most `beyond` of the keys are remembered.
        """
        for depth in reversed(_within(prefix)):
            if depth <= beyond:
                break
            last = self._last.get(prefix[depth - 1])
            if last is not None:
                age = min(AGES - 1, (self._sent[last.endpoint] - last.keys).bit_length())
                return Sought(last.endpoint, depth, age)
        return None

    def sent(self, prefix: Sequence[Key], endpoint: int) -> None:
        """Note that a prompt goes to `endpoint` now."""
        last = self._last
        self._sent[endpoint] = sent = self._sent.get(endpoint, 0) + len(prefix)
        here = _Place(endpoint, sent)
        for depth in _within(prefix):
            key = prefix[depth - 1]
            if key in last:
                del last[key]
            last[key] = here
        if len(last) > KEYS_MAX:
            # A dict finds its first key by passing all that were deleted before it, up to some hundred thousand.
            for key in list(islice(last, FORGOTTEN_AT_ONCE)):
                del last[key]

    def failed(self, prefix: Sequence[Key], endpoint: int) -> None:
        """Forget that a prompt was sent to `endpoint`: it was not computed there."""
        for depth in _within(prefix):
            last = self._last.get(prefix[depth - 1])
            if last is not None and last.endpoint == endpoint:
                del self._last[prefix[depth - 1]]

    def cleared(self, endpoint: int) -> None:
        """Forget `endpoint`: its cache is empty, or it is gone.

        Seldom, and some milliseconds of work.
        """
        self._last = {key: last for key, last in self._last.items() if last.endpoint != endpoint}
        self._sent.pop(endpoint, None)

    def expected(self, sought: Sought) -> int:
        """Returns how many of the tokens looked for will be there."""
        return int(sought.amount * self.found[sought.age])

    def learn(self, sought: Sought, found: int) -> None:
        """Learn that `found` of the tokens looked for were there."""
        age = sought.age
        self._looks[age] += 1
        rate = max(LEARNING_RATE, 1.0 / (1 + self._looks[age]))  # a mean of all at first, the guess one of them
        self.found[age] += rate * (min(1.0, found / sought.amount) - self.found[age])


def _within(prefix: Sequence[Key]) -> tuple[int, ...]:
    """The depths of a prompt."""
    return DEPTHS[: bisect_right(DEPTHS, len(prefix))]
