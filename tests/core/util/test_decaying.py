"""Rates: found soon, forgotten, and not taken from a single moment."""

from __future__ import annotations

import math

import pytest

from penstock.core.util.decaying import Decaying, DecayingRate

WINDOW_S = 10.0


def test_an_amount_fades_by_its_age_and_asking_changes_nothing() -> None:
    amount = Decaying(10.0)
    assert amount.at(5.0) == 0.0
    amount.add(8.0, 100.0)
    amount.add(2.0, 100.0)
    assert (amount.at(100.0), amount.at_s) == (10.0, 100.0)
    assert [amount.at(now) for now in (105.0, 110.0, 105.0)] == [10.0 * math.exp(x) for x in (-0.5, -1.0, -0.5)]
    amount.add(1.0, 110.0)
    assert amount.at(110.0) == 10.0 * math.exp(-1.0) + 1.0
    amount.raise_to(3.0, 120.0)
    assert (amount.at(120.0), amount.at_s) == (3.0, 120.0)
    amount.raise_to(0.5, 130.0)
    assert amount.at(130.0) == 3.0 * math.exp(-1.0), "more of it remains"


def test_a_steady_rate_is_found_and_forgotten() -> None:
    rate = DecayingRate()
    for at in range(600):
        rate.note(at / 10)
    assert rate.per_s(60.0) == pytest.approx(10.0, rel=0.05)
    assert rate.per_s(200.0) < 0.01
    assert rate.elapsed_s(60.0) == 60.0


def test_amounts_count_for_what_they_are() -> None:
    rate = DecayingRate()
    for at in range(600):
        rate.note(at / 10, 5.0)
    assert rate.per_s(60.0) == pytest.approx(50.0, rel=0.05)


def test_before_anything_was_noted_it_is_none_and_not_measured() -> None:
    rate = DecayingRate()
    assert (rate.per_s(5.0), rate.elapsed_s(5.0), rate.since_s) == (0.0, 0.0, None)
    rate.note(0.0)
    assert rate.since_s == 0.0


def test_many_events_in_one_moment_are_counted_each() -> None:
    rate = DecayingRate()
    for _ in range(50):
        rate.note(1.0)
    window_s = WINDOW_S * -math.expm1(-2.0 / WINDOW_S)  # as if over two seconds, not over ten
    assert rate.per_s(1.0) == pytest.approx(50 / window_s)
