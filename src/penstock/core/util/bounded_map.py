"""A memory that can't grow: a map that forgets keys that were not set for a long time.

Keys stand in two generations. A new key, or one of the elder generation that is set again, joins the younger; when that
reaches half the limit, it becomes the elder, and the rest of the previous one is forgotten. So the last half of the
limit is always remembered, and reading, or renewing a young key, costs one look-up. An exact order of age (an
`OrderedDict`) cost some four times that with each set, a few microseconds of every request.

Forgotten keys are freed in small steps: freeing 50,000 at once would block for many milliseconds.
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
        """Returns the key's value, or None. The key grows no younger by it."""
        value = self._young.get(key)
        return value if value is not None else self._elder.get(key)

    def renewed(self, key: Key) -> Value | None:
        """Returns the key's value, which counts as set now, or None."""
        value = self._young.get(key)
        if value is None and (value := self._elder.pop(key, None)) is not None:
            self._join(key, value)
        return value

    def renewed_or(self, key: Key, new: Callable[[], Value]) -> Value:
        """Returns the key's value, which counts as set now, or a `new` one."""
        value = self._young.get(key)
        if value is None:
            value = self._elder.pop(key, None)
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
        """Forget a key. Returns its value, or None."""
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
