"""What a failure means, and how much trying again costs."""

from __future__ import annotations

import pytest

from penstock.core.outcome import Reason
from penstock.core.retry import BUDGET_BURST, Failure, RetryBudget, Verdict, final_reason, verdict

SPENDING = [Failure.CONNECT, Failure.RESET, Failure.SERVER_ERROR]


def judge(failure: Failure, attempts: int, budget: RetryBudget | None = None) -> Verdict:
    return verdict(failure, attempts=attempts, attempts_max=3, budget=budget or RetryBudget(0.2))


@pytest.mark.parametrize("failure", SPENDING)
def test_a_lost_connection_or_an_error_is_tried_again_until_attempts_are_spent(failure: Failure) -> None:
    assert [judge(failure, attempts) for attempts in (1, 2, 3)] == ["requeue", "requeue", "fail"]


def test_a_first_byte_time_out_is_tried_once_more() -> None:
    assert [judge(Failure.FIRST_BYTE_TIMEOUT, attempts) for attempts in (1, 2)] == ["requeue", "fail"]


@pytest.mark.parametrize("failure", [Failure.BUSY, Failure.MODEL_GONE])
def test_a_refusal_costs_nothing(failure: Failure) -> None:
    assert judge(failure, 100, RetryBudget(0.0)) is Verdict.REQUEUE


def test_after_the_first_byte_nothing_can_be_taken_back() -> None:
    assert judge(Failure.BROKEN, 1) is Verdict.FAIL


def test_without_a_budget_nothing_is_tried_again() -> None:
    assert judge(Failure.RESET, 1, RetryBudget(0.0)) is Verdict.FAIL


def test_retries_are_a_share_of_the_dispatches_in_the_long_run() -> None:
    budget = RetryBudget(0.25)
    spent = 0
    for _ in range(10_000):
        budget.dispatched()
        spent += budget.take()
    assert spent == pytest.approx(2500 + BUDGET_BURST, abs=2)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure.BROKEN, Reason.STREAM_BROKEN),
        (Failure.FIRST_BYTE_TIMEOUT, Reason.UPSTREAM_TIMEOUT),
        (Failure.RESET, Reason.UPSTREAM_ERROR),
        (Failure.MODEL_GONE, Reason.MODEL_NOT_FOUND),
    ],
)
def test_each_failure_ends_under_its_own_name(failure: Failure, reason: Reason) -> None:
    assert final_reason(failure) is reason
