"""Named times: the earliest first, one per name, and never more memory than names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.util.timers import Timers

STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "earlier", "cancel", "due"]), st.integers(0, 5), st.integers(0, 9)),
    max_size=200,
)


def test_a_later_setting_replaces_an_earlier_one() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1.0)
    timers.set("a", 2.0)
    assert timers.due(1.5) == []
    assert timers.next() == 2.0


def test_set_earlier_never_postpones() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 2.0)
    timers.set_earlier("a", 3.0)
    assert timers.next() == 2.0
    timers.set_earlier("a", 1.0)
    assert timers.next() == 1.0


def test_a_name_set_and_cancelled_for_ever_keeps_the_heap_small() -> None:
    timers: Timers[str] = Timers()
    for _ in range(1000):
        timers.set("a", 5.0)
        timers.cancel("a")
    timers.set("a", 5.0)
    assert len(timers._heap) <= 2 * len(timers) + 64
    assert timers.due(5.0) == ["a"]
    assert timers.next() is None


@given(STEPS)
def test_it_agrees_with_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, float] = {}
    for verb, key, when in steps:
        if verb == "set":
            timers.set(key, when)
            model[key] = when
        elif verb == "earlier":
            timers.set_earlier(key, when)
            model[key] = min(when, model.get(key, when))
        elif verb == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            due = timers.due(when)
            assert sorted(due) == sorted(key for key, at in model.items() if at <= when)
            assert [model[key] for key in due] == sorted(model[key] for key in due)
            model = {key: at for key, at in model.items() if at > when}
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
