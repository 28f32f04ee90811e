"""A split gives each model its exact share, and a session always the same model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.endpoints.splits import Split


def everything(_: str) -> bool:
    return True


def picks(
    split: Split, count: int, session: str | None = None, serves: Callable[[str], bool] = everything
) -> list[str]:
    return [split.pick(session, serves) for _ in range(count)]


def test_choices_come_in_turns_and_not_in_runs() -> None:
    assert "".join(picks(Split({"a": 5, "b": 1, "c": 1}), 7)) == "aabacaa"


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1_000_000), min_size=2), count=st.integers(1, 300)
)
def test_after_any_number_of_requests_each_model_is_within_two_of_its_share(
    weights: dict[str, int], count: int
) -> None:
    counted, whole = Counter(picks(Split(weights), count)), sum(weights.values())
    for name, weight in weights.items():
        assert abs(counted[name] - count * weight / whole) <= 2


def test_a_model_of_weight_0_gets_nothing() -> None:
    assert set(picks(Split({"a": 1, "b": 0}), 20)) == {"a"}


def test_a_session_stays_with_one_model_and_others_make_up_for_it() -> None:
    split = Split({"a": 9, "b": 1})
    sessions = {f"s{n}": Counter(picks(split, 3, f"s{n}")) for n in range(200)}
    assert all(len(counted) == 1 for counted in sessions.values())
    of_sessions = Counter(next(iter(counted)) for counted in sessions.values())
    assert 5 <= of_sessions["b"] <= 40
    whole = Counter({name: 3 * count for name, count in of_sessions.items()}) + Counter(picks(split, 400))
    assert whole == {"a": 900, "b": 100}


def test_a_session_keeps_its_model_in_another_process_and_most_do_when_weights_change() -> None:
    names = [f"s{n}" for n in range(1000)]
    before = [Split({"a": 9, "b": 1}).pick(name, everything) for name in names]
    assert [Split({"b": 1, "a": 9}).pick(name, everything) for name in names] == before
    after = [Split({"a": 8, "b": 2}).pick(name, everything) for name in names]
    moved = sum(one != other for one, other in zip(before, after, strict=True))
    assert moved == after.count("b") - before.count("b") < 150, "only those that the larger share needs"


def test_sessions_that_all_want_one_model_do_not_shut_out_the_others_for_ever() -> None:
    split = Split({"a": 1, "b": 1})
    only_a = next(name for name in map(str, range(100)) if Split({"a": 1, "b": 1}).pick(name, everything) == "a")
    picks(split, 10_000, only_a)
    assert Counter(picks(split, 600))["a"] >= 200


@pytest.mark.parametrize("session", [None, "s"])
def test_a_model_that_is_not_served_has_no_share_while_others_are(session: str | None) -> None:
    split = Split({"a": 1, "b": 1})
    assert set(picks(split, 10, session, lambda name: name == "b")) == {"b"}
    assert set(picks(split, 10, session, lambda _: False)) <= {"a", "b"}
    if session is None:
        assert Counter(picks(split, 20)) == {"a": 10, "b": 10}, "and it does not have to be made up for"


def test_of_several_preferences_the_first_that_tells_models_apart_counts_before_the_next() -> None:
    split = Split({"a": 1, "b": 1, "c": 1})
    assert split.pick(None, lambda name: name != "a", lambda name: name in "ac") == "c"
    assert split.pick(None, lambda _: False, lambda name: name == "b") == "b", "one that none meets is ignored"


def test_a_request_that_moves_takes_its_turn_along() -> None:
    split = Split({"a": 1, "b": 1})
    for _ in range(20):
        chosen = split.pick(None, everything)
        if chosen == "b":
            assert split.pick(None, lambda name: name == "a", left="b") == "a"
    assert Counter(picks(split, 40))["b"] >= 20, "b got nothing of its turns, so it is not behind for having lost them"
