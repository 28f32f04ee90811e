"""Down, ejected, held: three verdicts, each with its own way back."""

from __future__ import annotations

import pytest

from penstock.core.health import HOLD_S, HOLD_S_MAX, Health, HealthSettings


def fresh() -> Health:
    return Health(HealthSettings(), up=True)


def test_three_failures_in_a_row_eject_and_each_time_twice_as_long() -> None:
    health, lengths = fresh(), []
    for at in range(0, 700, 100):
        for _ in range(2):
            health.failed(at)
            assert not health.ejected(at)
        health.failed(at)
        assert health.ejected(at)
        lengths.append(health.ejected_until_s - at)
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_one_good_answer_forgives_all() -> None:
    health = fresh()
    for _ in range(6):
        health.failed(0.0)
        health.refused(0.0)
    health.succeeded()
    assert not health.ejected(0.0)
    assert not health.held(0.0)
    health.failed(0.0)
    assert not health.ejected(0.0)


def test_refusals_in_a_row_hold_it_for_a_moment() -> None:
    health = fresh()
    health.refused(0.0)
    assert not health.held(0.0)
    health.refused(0.0)
    assert health.held_until_s == pytest.approx(HOLD_S)
    for _ in range(40):
        health.refused(0.0)
    assert health.held_until_s == HOLD_S_MAX


def test_only_a_probe_brings_it_back_and_with_a_clean_slate() -> None:
    health = fresh()
    for _ in range(3):
        health.failed(0.0)
    health.probed(up=True)
    assert health.ejected(0.0)  # it was up all the time
    health.probed(up=False)
    health.succeeded()
    ups = [health.up]
    health.probed(up=True)
    ups.append(health.up)
    assert ups == [False, True]
    assert not health.ejected(0.0)
