"""Which stories are kept when there is no room for all: by max-min fairness at each level, the newest of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from penstock.core.explain.kept import newest_of_each


def counted(paths: Sequence[tuple[str, ...]], room: int) -> Counter[str]:
    return Counter("/".join(paths[at]) for at in newest_of_each(paths, room))


def test_a_part_that_is_not_needed_goes_to_the_others() -> None:
    paths = [("a", "x")] * 10 + [("b", "x")] * 100 + [("c", "x")] * 2
    assert counted(paths, 52) == {"a/x": 10, "b/x": 40, "c/x": 2}


def test_each_keeps_its_newest() -> None:
    paths = [("a",), ("b",)] * 3
    assert newest_of_each(paths, 4) == {2, 3, 4, 5}


def test_a_group_with_many_inside_has_one_part() -> None:
    paths = [("crowd", str(at)) for at in range(50)] + [("one", "x")] * 20
    assert counted(paths, 20)["one/x"] == 10


def test_more_groups_than_room_keep_the_newest_of_them() -> None:
    paths = [(str(at),) for at in range(10)]
    assert newest_of_each(paths, 3) == {7, 8, 9}


def test_the_room_is_used_and_nobody_has_less_than_a_larger_one_could_give() -> None:
    random = Random(5)
    for _ in range(200):
        paths = [(random.choice("aaaabbc"), random.choice("xy")) for _ in range(random.randint(1, 60))]
        room = random.randint(0, 70)
        kept = newest_of_each(paths, room)
        assert len(kept) == min(room, len(paths))
        have, had = Counter(paths[at][0] for at in kept), Counter(path[0] for path in paths)
        short = [have[name] for name in had if have[name] < had[name]]
        assert not short or max(have[name] for name in had) <= min(short) + 1
