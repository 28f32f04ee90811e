"""A high quantile of the last values: near enough to the true one, and forgetful."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.quantile import RECOMPUTE_EVERY, WINDOW, RecentQuantile


def test_until_there_are_values_it_is_the_default() -> None:
    assert RecentQuantile(0.95, 7.0).value == 7.0


def test_the_first_values_count_at_once() -> None:
    quantile = RecentQuantile(0.95, 7.0)
    quantile.add(1.0)
    assert quantile.value == 1.0
    quantile.add(3.0)
    assert quantile.value == 3.0


def test_it_is_near_the_true_quantile() -> None:
    quantile, random = RecentQuantile(0.95, 0.0), Random(1)
    for _ in range(1000):
        quantile.add(random.random())
    assert quantile.value == pytest.approx(0.95, abs=0.04)


def test_what_was_long_ago_is_forgotten() -> None:
    quantile = RecentQuantile(0.95, 0.0)
    for value in [100.0] * WINDOW + [1.0] * (WINDOW + RECOMPUTE_EVERY):
        quantile.add(value)
    assert quantile.value == 1.0
