"""The known locations of a cached prompt, and their source."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from penstock.core.values.request import PREFIX_ENDS, Request, keys_within

Levels = list[tuple[int, int]]  # endpoints as bits, and how many of the leading blocks they hold


def bits_of(bits: int) -> Iterator[int]:
    """Yields the numbers of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


class Source(StrEnum):
    """The source of a cached prefix."""

    HISTORY = "history"  #: our own dispatches
    KV_EVENTS = "kv_events"  #: the engine's KV events
    LMCACHE = "lmcache"  #: LMCache's controller or coordinator


class Located:
    """The known locations of a cached prompt."""

    __slots__ = ("_bits", "_tokens_per_chunk", "_uneven", "levels", "said", "told", "version")

    def __init__(self, bits: dict[int, int]) -> None:
        self._bits = bits  # of the endpoints that history knows, by their index; kept by the index of prefixes
        self.levels: Levels = []  # by our history
        self.version = -1  # of our history, if that is the only source
        self._tokens_per_chunk = 0.0
        self._uneven = False  # keys stand for chunks that grow
        self.told: dict[int, int] = {}  # tokens by endpoint index, from sources better than our history
        self.said: dict[int, Source] = {}  # and these sources

    def measured(self, request: Request, prompt_tokens: int) -> None:
        """Returns the part of the prompt that the request's keys cover, for so many tokens."""
        self._uneven = request.prefix_grows
        self._tokens_per_chunk = prompt_tokens * request.prefix_chunk_bytes / max(1, request.body_bytes)

    def tokens_at(self, depth: int) -> int:
        """Returns how many tokens `depth` leading keys stand for."""
        return int((PREFIX_ENDS[depth - 1] if self._uneven and depth else depth) * self._tokens_per_chunk)

    def keys_in(self, tokens: int) -> int:
        """Returns how many leading keys stand for so many `tokens`."""
        chunks = round(tokens / self._tokens_per_chunk) if self._tokens_per_chunk else 0
        return keys_within(chunks) if self._uneven else chunks

    def tokens(self, endpoint: int) -> int:
        """Returns how many tokens of the prompt an endpoint (by index) is believed to hold."""
        if endpoint in self.told:
            return self.told[endpoint]
        return self.tokens_at(self.depth(endpoint)) if self.levels else 0

    def depth(self, endpoint: int) -> int:
        """Returns how many of the prompt's leading blocks an endpoint (by index) was sent, by our history."""
        bit = self._bits.get(endpoint, 0)
        for bits, depth in self.levels:
            if bits & bit:
                return depth
        return 0

    @property
    def most(self) -> int:
        """The most that any endpoint holds."""
        if not self.told:
            return self.tokens_at(self.levels[-1][1]) if self.levels else 0
        most = max(self.told.values())
        for bits, depth in reversed(self.levels):
            if any(bits & bit and endpoint not in self.told for endpoint, bit in self._bits.items()):
                return max(most, self.tokens_at(depth))
        return most

    def leave_out(self, doubted: int) -> None:
        """Forget our history of the endpoints in `doubted` (a bit for each index)."""
        self.levels = [(bits & ~doubted, depth) for bits, depth in self.levels if bits & ~doubted]


NOWHERE: Final = Located({})


class Sought:
    """A lookup's result: how much of the prompt, in keys or in tokens, and how long ago it was sent there."""

    __slots__ = ("age", "amount", "endpoint")

    def __init__(self, endpoint: int, amount: int, age: int) -> None:
        self.endpoint = endpoint  #: its index in the pool
        self.amount = amount
        self.age = age  #: in doublings of the keys that were sent there since
