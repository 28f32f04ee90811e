"""A map that forgets the key that was set the longest time ago."""

from __future__ import annotations

from penstock.core.util.bounded_map import BoundedMap


def test_the_key_that_was_set_the_longest_time_ago_makes_room() -> None:
    made: BoundedMap[str, int] = BoundedMap(2)
    made.set("a", 1)
    made.set("b", 2)
    made.set("a", 3)
    made.set("c", 4)
    assert (made.get("a"), made.get("b"), made.get("c"), len(made)) == (3, None, 4, 2)


def test_reading_keeps_no_key_young() -> None:
    made: BoundedMap[str, int] = BoundedMap(2)
    made.set("a", 1)
    made.set("b", 2)
    assert made.get("a") == 1
    made.set("c", 3)
    assert made.values() == [2, 3]


def test_what_is_taken_out_or_cleared_is_forgotten() -> None:
    made: BoundedMap[str, int] = BoundedMap(3)
    for at, key in enumerate("abc"):
        made.set(key, at)
    assert (made.pop("b"), made.pop("b"), made.values()) == (1, None, [0, 2])
    made.clear()
    assert (len(made), made.get("a")) == (0, None)
