"""A map that forgets keys that were not set for a long time."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from penstock.core.util.bounded_map import BoundedMap


def test_keys_that_were_not_set_for_a_long_time_make_room() -> None:
    made: BoundedMap[str, int] = BoundedMap(4)
    for at, key in enumerate("abcd"):
        made.set(key, at)
    made.set("a", 4)
    assert made.values() == [2, 3, 4]
    made.set("e", 5)
    made.set("f", 6)
    assert (made.get("a"), made.get("c"), made.get("e"), made.get("f"), len(made)) == (4, None, 5, 6, 3)


def test_reading_keeps_no_key_young_and_renewing_does() -> None:
    made: BoundedMap[str, int] = BoundedMap(4)
    for at, key in enumerate("abcd"):
        made.set(key, at)
    assert (made.get("a"), made.renewed("b"), made.renewed("z")) == (0, 1, None)
    assert (made.renewed_or("b", lambda: 7), made.renewed_or("e", lambda: 4)) == (1, 4)
    made.set("f", 5)
    assert (made.get("a"), made.get("b"), made.get("e")) == (None, 1, 4)


def test_what_is_taken_out_or_cleared_is_forgotten() -> None:
    made: BoundedMap[str, int] = BoundedMap(3)
    for at, key in enumerate("abc"):
        made.set(key, at)
    assert (made.pop("b"), made.pop("b"), made.values()) == (1, None, [2])
    made.clear()
    assert (len(made), made.get("c")) == (0, None)


def test_no_more_than_the_limit_and_never_less_than_the_half_that_was_set_last() -> None:
    random, limit = Random(7), 50
    made: BoundedMap[int, int] = BoundedMap(limit)
    true: OrderedDict[int, int] = OrderedDict()
    for step in range(20_000):
        key = random.randrange(random.choice((20, 60, 1_000)))
        if random.random() < 0.3 and made.renewed(key) is not None:
            true.move_to_end(key)
        else:
            made.set(key, step)
            true[key] = step
            true.move_to_end(key)
        assert len(made) <= limit
        assert len(made._forgotten) <= limit // 2
        if step % 50 == 0:
            last = list(true.items())[-(limit // 2) :]
            assert [made.get(key) for key, _ in last] == [value for _, value in last]
            assert all(true[key] == made.get(key) for key in list(made._young) + list(made._elder))


def test_what_is_forgotten_is_let_go_bit_by_bit_and_is_gone_before_more_is_forgotten() -> None:
    made: BoundedMap[int, int] = BoundedMap(1_000)
    most = 0
    for key in range(10_000):
        before = len(made._forgotten)
        made.set(key, key)
        assert len(made._forgotten) > before - 3
        if len(made._young) == 1:
            assert before == 0
        most = max(most, len(made._forgotten))
    assert most == 500
