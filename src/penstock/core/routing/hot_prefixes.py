"""Which prefixes are asked for so often that another endpoint should hold them too?

A system prompt that everybody shares is held by one endpoint at first; if that were a reason to go there, all would
pile onto it. So uses are counted per prefix (the longest held anywhere), fading over half a minute. A prefix with
more than a few uses per endpoint that holds it is *hot*: it does not count, the request goes by load, and wherever it
goes there is one endpoint more that holds it. A conversation's own prefix grows with every turn, so it stays cool.
"""

from __future__ import annotations

from penstock.core.util.bounded_map import BoundedMap
from penstock.core.util.decaying import Decaying
from penstock.core.values.request import Key

FADE_S = 30.0
USES_MAX = 4.0  # per endpoint that holds it: computing it once more is then shared by that many
LARGE_TOKENS = 4_000  # about a second's work; longer work has to be shared by more endpoints
PREFIXES_MAX = 4_096  # counted keys


class HotPrefixes:
    """Recent uses of prefixes."""

    def __init__(self) -> None:
        self._uses: BoundedMap[Key, Decaying] = BoundedMap(PREFIXES_MAX)

    def used(self, key: Key, now: float) -> None:
        """Record the dispatch of a request; `key` is its longest prefix held anywhere."""
        self._uses.renewed_or(key, lambda: Decaying(FADE_S)).add(1.0, now)

    def uses(self, key: Key, now: float) -> float:
        """Returns how often a prefix was used recently; 0 if it is not remembered."""
        uses = self._uses.get(key)
        return uses.at(now) if uses is not None else 0.0

    def hot(self, key: Key, tokens: int, holders: int, now: float) -> bool:
        """True if a prefix of so many tokens should be held by more endpoints than the `holders` that it has."""
        return self.uses(key, now) > USES_MAX * holders * (1.0 + tokens / LARGE_TOKENS)
