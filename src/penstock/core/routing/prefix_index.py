"""Which endpoint holds how much of a prompt's prefix: a bounded index from block to endpoints.

A key stands for a block and all before it (a chain hash, made at the edge), so endpoints that hold a prefix are found
by one walk over its keys, with one set of endpoints (bits of an integer) that only shrinks: the cost does not depend on
how many endpoints there are, nor on how much each holds.

Each endpoint's keys are bounded. Least recently used keys are dropped first, by generations: stored or used keys go to
the young one; when that is full it becomes the old one, and unused keys of the previous old one are dropped, a few per
stored key. So no call pays for many. Memory, measured: up to 190 bytes for a key that one endpoint holds, 60 for each
further one (`benchmarks/scheduler.py --index` fills an index). For 64 endpoints without common blocks: at most 360 MB
of history, 1.6 GB of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.core.values.located import Levels, bits_of
from penstock.core.values.request import Key

HISTORY_KEYS_MAX = 30_000  # per endpoint: 15 MB of prompts, 4 million tokens
EXACT_KEYS_MAX = 131_072  # per endpoint: 2 million tokens in blocks of 16
KEYS_MIN = 64
GENERATIONS: Final = 3  # young, old, and the one that is being dropped
DROPS_PER_KEY: Final = 2  # more than one: so the dropped generation is gone before the next one is


def shared(one: Sequence[Key], other: Sequence[Key]) -> int:
    """Returns how many keys two prompts have in common. Each stands for all before it, so few have to be compared."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


class _Held:
    """The keys of one endpoint."""

    __slots__ = ("dropped", "keys_max", "old", "young")

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.young: dict[Key, None] = {}
        self.old: dict[Key, None] = {}
        self.dropped: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self.old) + len(self.dropped)


class PrefixIndex:
    """Block key → endpoints, which are named by their index in the pool."""

    def __init__(self, keys_max: int = HISTORY_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._holders: dict[Key, int] = {}  # key -> bits
        self._held: dict[int, _Held] = {}  # endpoint -> its keys
        self._endpoint_of: dict[int, int] = {}  # number of a bit -> endpoint
        self.bits: dict[int, int] = {}  # endpoint -> its bit in `levels`; of known ones
        self.version = 0  # another one whenever `levels` may answer otherwise

    def __len__(self) -> int:
        """Distinct keys."""
        return len(self._holders)

    def held(self, endpoint: int) -> int:
        """Returns the number of keys of an endpoint; 0 for an unknown one."""
        held = self._held.get(endpoint)
        return 0 if held is None else len(held)

    def knows(self, endpoint: int) -> bool:
        """True if an endpoint is known, even with nothing held."""
        return endpoint in self._held

    def store(self, endpoint: int, keys: Sequence[Key]) -> None:
        """Note that an endpoint holds the blocks with these `keys` now, or used them."""
        held = self._joined(endpoint)
        holders, bit = self._holders, self.bits[endpoint]
        young, old, dropped = held.young, held.old, held.dropped
        for first in keys:
            if first not in young:
                break
        else:
            return
        self.version += 1
        for key in keys[keys.index(first) :]:  # usually only the last blocks are new
            # The holders are checked first, because they were just looked up: each look into another table costs a
            # cache miss.
            bits = holders.get(key, 0)
            if not bits & bit:
                holders[key] = bits | bit
            elif key in young:
                continue
            elif key in old:
                del old[key]
            else:
                del dropped[key]
            young[key] = None
            if dropped:
                for _ in range(min(DROPS_PER_KEY, len(dropped))):
                    self._unhold(dropped.popitem()[0], bit)
            if len(young) * GENERATIONS >= held.keys_max:
                self._age(held, bit)
                young, old, dropped = held.young, held.old, held.dropped

    def remove(self, endpoint: int, keys: Iterable[Key]) -> None:
        """Note that an endpoint no longer holds the blocks with these `keys`."""
        held = self._held.get(endpoint)
        if held is None:
            return
        self.version += 1
        bit = self.bits[endpoint]
        for key in keys:
            for generation in (held.young, held.old, held.dropped):
                if key in generation:
                    del generation[key]
                    self._unhold(key, bit)
                    break

    def clear(self, endpoint: int) -> None:
        """Note that `endpoint` holds nothing, or nothing any more."""
        self.version += 1
        held = self._joined(endpoint)
        bit = self.bits[endpoint]
        for generation in (held.young, held.old, held.dropped):
            for key in generation:
                self._unhold(key, bit)
            generation.clear()

    def forget(self, endpoint: int) -> None:
        """Forget that there was such an `endpoint`."""
        if endpoint in self._held:
            self.clear(endpoint)
            del self._held[endpoint]
            del self._endpoint_of[self.bits.pop(endpoint).bit_length() - 1]

    def since(self, endpoint: int, key: Key) -> int:
        """Returns how many keys at most an endpoint stored or used since it did so with this one, by generations."""
        held = self._held.get(endpoint)
        if held is None:
            return 0
        if key in held.young:
            return len(held.young)
        return len(held.young) + len(held.old) if key in held.old else len(held)

    def limit(self, endpoint: int, keys_max: int) -> None:
        """Assume from now on that an endpoint holds at most `keys_max` blocks."""
        held = self._joined(endpoint)
        held.keys_max = max(KEYS_MIN, min(keys_max, self._keys_max))
        if not held.dropped and len(held.young) * GENERATIONS >= held.keys_max:
            self._age(held, self.bits[endpoint])

    def limit_of(self, endpoint: int) -> int:
        """Returns how many keys an endpoint is believed to hold at most."""
        held = self._held.get(endpoint)
        return self._keys_max if held is None else held.keys_max

    def match(self, keys: Sequence[Key]) -> dict[int, int]:
        """Returns how many of the leading blocks each endpoint holds; those that hold none are left out."""
        return {self._endpoint_of[n]: depth for bits, depth in self.levels(keys) for n in bits_of(bits)}

    def levels(self, keys: Sequence[Key]) -> Levels:
        """Returns the same by depth: which endpoints (as bits) hold exactly so many of the blocks, the fewest first."""
        levels: Levels = []
        if not keys:
            return levels
        holders_of = self._holders.get
        bits, depth = holders_of(keys[0], 0), 0
        if not bits:
            return levels
        before: int | None = bits
        for holding in map(holders_of, keys):
            if holding is not before:  # neighbours are mostly held by the same
                before, still = holding, bits & (holding or 0)
                if still != bits:
                    levels.append((bits & ~still, depth))
                    if not still:
                        return levels
                    bits = still
            depth += 1
        levels.append((bits, depth))
        return levels

    def holders(self, key: Key) -> int:
        """Returns the endpoints (as bits) that hold a block, and so all before it."""
        return self._holders.get(key, 0)

    def depth(self, keys: Sequence[Key], endpoints: Iterable[int]) -> int:
        """Returns how many of the leading blocks one of the `endpoints` holds, at most."""
        bits = sum([self.bit(endpoint) for endpoint in endpoints])
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if self._holders.get(keys[middle - 1], 0) & bits:
                low = middle
            else:
                high = middle - 1
        return low

    def bit(self, endpoint: int) -> int:
        """Returns the endpoint's bit in `levels`; 0 if it is unknown."""
        return self.bits.get(endpoint, 0)

    def endpoint_of(self, number: int) -> int:
        """Returns the endpoint of this bit."""
        return self._endpoint_of[number]

    def _joined(self, endpoint: int) -> _Held:
        held = self._held.get(endpoint)
        if held is not None:  # it may hold nothing
            return held
        number = next(n for n in range(len(self._endpoint_of) + 1) if n not in self._endpoint_of)
        self._endpoint_of[number] = endpoint
        self.bits[endpoint] = 1 << number
        held = self._held[endpoint] = _Held(self._keys_max)
        return held

    def _age(self, held: _Held, bit: int) -> None:
        while held.dropped:  # only after its limit was lowered
            self._unhold(held.dropped.popitem()[0], bit)
        held.young, held.old, held.dropped = held.dropped, held.young, held.old

    def _unhold(self, key: Key, bit: int) -> None:
        bits = self._holders[key]
        if bits == bit:  # the usual case
            del self._holders[key]
        else:
            self._holders[key] = bits & ~bit
