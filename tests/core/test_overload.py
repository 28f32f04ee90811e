"""Retry-After: what waits, divided by how fast it has been leaving."""

from __future__ import annotations

import pytest

from penstock.core.overload import RETRY_AFTER_UNKNOWN_S, DrainRate, retry_after_s


def test_a_steady_rate_is_found() -> None:
    rate = DrainRate()
    for at in range(600):
        rate.dispatched(at / 10)
    assert rate.per_s(60.0) == pytest.approx(10.0, rel=0.1)


def test_the_rate_is_unknown_before_the_first_dispatch_and_long_after_the_last() -> None:
    rate = DrainRate()
    assert rate.per_s(0.0) is None
    rate.dispatched(0.0)
    assert rate.per_s(0.5) is not None
    assert rate.per_s(1000.0) is None


def test_nothing_is_known_before_the_first_dispatch() -> None:
    assert retry_after_s(None, 0.0) == RETRY_AFTER_UNKNOWN_S


def test_it_is_spread_and_bounded() -> None:
    assert retry_after_s(10.0, 0.0) == 10.0
    assert retry_after_s(10.0, 1.0) == 12.5
    assert retry_after_s(0.0, 0.5) == 1.0
    assert retry_after_s(1e9, 0.5) == 60.0
