"""A memory that can't grow: a map that forgets the key that was set the longest time ago.

An `OrderedDict`, because it finds its first key at once: a plain dict passes all that were deleted before it, so a full
one that drops its oldest key with each new one takes up to a millisecond to find it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedMap(Generic[Key, Value]):
    """At most `limit` keys with their values."""

    __slots__ = ("_items", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Value | None:
        """The key's value; None where it is not remembered. The key grows no younger by it."""
        return self._items.get(key)

    def set(self, key: Key, value: Value) -> None:
        """Remember `value`: its key is the youngest now, and the oldest one makes room if there are too many."""
        items = self._items
        items[key] = value
        items.move_to_end(key)
        if len(items) > self.limit:
            items.popitem(last=False)

    def pop(self, key: Key) -> Value | None:
        """Forget a key. Returns its value; None where it was not remembered."""
        return self._items.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._items.clear()

    def values(self) -> list[Value]:
        """Returns all values, the oldest first."""
        return list(self._items.values())
