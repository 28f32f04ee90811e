"""A memory that can't grow: a map that forgets keys that were not set for a long time.

Keys stand in two generations. A new key, or one of the elder generation that is set again, joins the younger; when that
has come to half the limit, it is the elder from then on, and what is left of the one before is forgotten. So as many as
half the limit, those that were set last, are always remembered; and to read, or to renew what is young, costs one
look-up. An exact order of age (an `OrderedDict`) cost some four times that with each set, a few microseconds of every
request.

What is forgotten is let go a few keys at a time: to free 50,000 at once would hold up everybody for many milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

LET_GO = 2  # with each key that joins: all are gone long before the next generation is


class BoundedMap(Generic[Key, Value]):
    """At most `limit` keys with their values; of those that were set last, at least half as many.

    Beside these, up to half as many values that are forgotten are held until they are let go.
    """

    __slots__ = ("_elder", "_forgotten", "_generation", "_young")

    def __init__(self, limit: int) -> None:
        self._generation = max(1, limit // 2)
        self._young: dict[Key, Value] = {}
        self._elder: dict[Key, Value] = {}
        self._forgotten: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._elder)

    def get(self, key: Key) -> Value | None:
        """The key's value; None where it is not remembered. The key grows no younger by it."""
        value = self._young.get(key)
        return value if value is not None else self._elder.get(key)

    def renewed(self, key: Key) -> Value | None:
        """The key's value, which counts as set now; None where it is not remembered."""
        value = self._young.get(key)
        if value is None and (value := self._elder.pop(key, None)) is not None:
            self._join(key, value)
        return value

    def renewed_or(self, key: Key, new: Callable[[], Value]) -> Value:
        """The key's value, which counts as set now; a `new` one where it is not remembered."""
        value = self.renewed(key)
        if value is None:
            value = new()
            self._join(key, value)
        return value

    def set(self, key: Key, value: Value) -> None:
        """Remember `value`. Its key is young now; if there are too many, the oldest make room."""
        if key in self._young:
            self._young[key] = value
        else:
            self._elder.pop(key, None)
            self._join(key, value)

    def pop(self, key: Key) -> Value | None:
        """Forget a key. Returns its value; None where it was not remembered."""
        value = self._young.pop(key, None)
        return value if value is not None else self._elder.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._young, self._elder, self._forgotten = {}, {}, {}

    def values(self) -> list[Value]:
        """Returns all values, those of the elder generation first."""
        return [*self._elder.values(), *self._young.values()]

    def _join(self, key: Key, value: Value) -> None:
        """Let a key that is in no generation join the younger."""
        for _ in range(min(LET_GO, len(self._forgotten))):
            self._forgotten.popitem()
        if len(self._young) >= self._generation:
            self._forgotten, self._elder, self._young = self._elder, self._young, {}
        self._young[key] = value
