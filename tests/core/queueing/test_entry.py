"""A leaf: ordered by key and arrival, cheap to leave from anywhere, and no place left behind by earlier visits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.flow_queue import Leaf
from penstock.core.values.lifecycle import Event, State
from tests.core.drive import request


def waiting(seq: int, key: float | None = None) -> Entry:
    entry = Entry(request(f"r{seq}"), seq)
    entry.move(Event.ADMITTED)
    entry.key = (0, float(seq if key is None else key))
    return entry


def leave(leaf: Leaf, entry: Entry) -> None:
    entry.move(Event.DISPATCHED)
    leaf.remove(entry)


def test_an_empty_leaf_has_no_head() -> None:
    assert Leaf().head() is None
    assert list(Leaf().in_order()) == []


def test_ties_go_to_the_earlier_arrival() -> None:
    leaf = Leaf()
    for seq in (2, 1):
        leaf.push(waiting(seq, key=7.0))
    assert [entry.seq for entry in leaf.in_order()] == [1, 2]


def test_a_request_that_comes_back_takes_its_old_place_once() -> None:
    leaf, first, second = Leaf(), waiting(1), waiting(2)
    leaf.push(first)
    leaf.push(second)
    leave(leaf, first)
    first.move(Event.REQUEUED)
    leaf.push(first)
    assert [entry.seq for entry in leaf.in_order()] == [1, 2]
    assert len(leaf) == 2


def test_an_entry_shuns_an_endpoint_until_its_time_is_over() -> None:
    entry = waiting(1)
    assert not entry.excludes("a", 0.0)
    entry.own_retry().excluded = {"a": 1.0}
    assert entry.excludes("a", 0.9)
    assert not entry.excludes("a", 1.0)
    assert not entry.excludes("b", 0.0)


@given(st.lists(st.tuples(st.sampled_from(["push", "leave", "return"]), st.integers(0, 20), st.integers(0, 3))))
def test_it_agrees_with_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    leaf = Leaf()
    inside: list[Entry] = []
    outside: list[Entry] = []
    for seq, (verb, at, key) in enumerate(steps):
        if verb == "push":
            inside.append(waiting(seq, key))
            leaf.push(inside[-1])
        elif verb == "leave" and inside:
            entry = inside.pop(at % len(inside))
            leave(leaf, entry)
            outside.append(entry)
        elif verb == "return" and outside:
            entry = outside.pop(at % len(outside))
            entry.move(Event.REQUEUED)
            leaf.push(entry)
            inside.append(entry)
        expected = sorted(inside, key=lambda entry: (entry.key, entry.seq))
        assert list(leaf.in_order()) == expected
        assert leaf.head() is (expected[0] if expected else None)
        assert len(leaf) == len(expected)
        assert len(leaf._heap) <= 2 * len(leaf) + 17
    assert all(entry.state is State.WAITING for entry in inside)
