"""Answers whose bodies do not come are as long as their time says."""

from __future__ import annotations

from penstock.gateway.epp.unseen import Paces


def test_nothing_is_known_before_a_stream_was_seen() -> None:
    assert Paces().tokens("a", 10.0) is None


def test_a_stream_is_as_long_as_its_time_by_the_pace_of_its_endpoint() -> None:
    paces = Paces()
    paces.learn("a", 2.0, 101)
    paces.learn("b", 4.0, 101)
    assert paces.tokens("a", 1.0) == 51
    assert paces.tokens("b", 1.0) == 26
    assert paces.tokens("c", 1.0) is None


def test_a_pace_forgets_what_was_long_ago() -> None:
    paces = Paces()
    paces.learn("a", 100.0, 1_001)
    for _ in range(200):
        paces.learn("a", 10.0, 1_001)
    assert paces.tokens("a", 10.0) == 1_001


def test_useless_streams_teach_nothing() -> None:
    paces = Paces()
    paces.learn("a", 5.0, 1)
    paces.learn("a", 0.0, 100)
    assert paces.tokens("a", 1.0) is None
