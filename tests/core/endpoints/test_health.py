"""Down, ejected, held: three verdicts, each with its own way back."""

from __future__ import annotations

import pytest

from penstock.core.endpoints.health import Health, Presence
from penstock.core.values.settings import HealthSettings

TRIAL_LEASES = 2


def fresh() -> Health:
    return Health(HealthSettings(), up=True)


def test_three_failures_in_a_row_eject_and_then_each_one_twice_as_long() -> None:
    health, lengths = fresh(), []
    for _ in range(2):
        health.failed(0.0)
        assert not health.ejected(0.0)
    at = 0.0
    for _ in range(7):
        health.failed(at)
        assert health.ejected(at)
        lengths.append(health.ejected_until_s - at)
        at = health.ejected_until_s + 1.0
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_returning_endpoint_gets_twice_as_many_each_round() -> None:
    health = fresh()
    assert health.trial is None
    health.probed(up=False, presence=Presence.LOADING, now=0.0)
    assert health.presence is Presence.LOADING
    health.probed(up=True, now=0.0)
    allowed: list[int | None] = [health.trial]
    for answers in (2, 4, 2):
        for _ in range(answers):
            health.answered(16)
        allowed.append(health.trial)
    assert allowed == [2, 6, 14, None]


@pytest.mark.parametrize(("slots", "first"), [(4, 2), (8, 2), (16, 4), (64, 16)])
def test_an_engine_that_was_restarted_begins_with_a_quarter_of_its_slots(slots: int, first: int) -> None:
    health = fresh()
    health.probed(up=False, now=0.0)
    health.probed(up=True, now=0.0, slots=slots)
    assert not health.on_trial(first - 1, 0.0)
    assert health.on_trial(first, 0.0)
    for _ in range(3):
        health.failed(1.0)
    assert health.on_trial(2, 2.0), "after an ejection it is two"


def test_an_ejected_endpoint_is_on_trial_when_its_time_is_over() -> None:
    health = fresh()
    for _ in range(3):
        health.failed(0.0)
    health.succeeded()  # one good answer
    health.failed(1.0)
    assert not health.ejected(1.0)
    assert health.on_trial(TRIAL_LEASES, 1.0)
    assert not health.on_trial(TRIAL_LEASES - 1, 1.0)
    assert not health.on_trial(TRIAL_LEASES, 11.0)


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
    assert health.held_until_s == pytest.approx(0.1)
    for _ in range(40):
        health.refused(0.0)
    assert health.held_until_s == 5.0


def test_only_a_probe_brings_it_back_and_with_a_clean_slate() -> None:
    health = fresh()
    for _ in range(3):
        health.failed(0.0)
    health.probed(up=True, now=0.0)
    assert health.ejected(0.0)  # it was up all the time
    health.probed(up=False, now=0.0)
    health.succeeded()
    ups = [health.up]
    health.probed(up=True, now=0.0)
    ups.append(health.up)
    assert ups == [False, True]
    assert not health.ejected(0.0)


def test_what_went_on_while_the_probe_went_wrong_is_no_part_of_the_trial() -> None:
    health = fresh()
    health.probed(up=False, now=0.0)
    health.probed(up=True, now=0.0, leases=5)
    assert not health.on_trial(6, 0.0)
    assert health.on_trial(5 + TRIAL_LEASES, 0.0)
    health.answered(slots=64)
    assert not health.on_trial(5 + TRIAL_LEASES, 0.0)
