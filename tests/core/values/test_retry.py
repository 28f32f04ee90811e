"""What a failure means, and how much trying again costs."""

from __future__ import annotations

import math

import pytest

from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.retry import RetryBudget, final_reason, may_retry

RETRIES_MIN = 10
WINDOW_S = 10

SPENDING = [Failure.CONNECT, Failure.RESET, Failure.SERVER_ERROR]


def judge(failure: Failure, attempts: int, budget: RetryBudget | None = None) -> bool:
    return may_retry(failure, attempts=attempts, attempts_max=3, budget=budget or RetryBudget(0.2))


@pytest.mark.parametrize("failure", SPENDING)
def test_a_lost_connection_or_an_error_is_tried_again_until_attempts_are_spent(failure: Failure) -> None:
    assert [judge(failure, attempts) for attempts in (1, 2, 3)] == [True, True, False]


def test_a_first_byte_time_out_is_tried_once_more() -> None:
    assert [judge(Failure.FIRST_BYTE_TIMEOUT, attempts) for attempts in (1, 2)] == [True, False]


@pytest.mark.parametrize("failure", [Failure.BUSY, Failure.MODEL_GONE])
def test_a_refusal_costs_nothing(failure: Failure) -> None:
    assert judge(failure, 100, RetryBudget(0.0))


def test_after_the_first_byte_nothing_can_be_taken_back() -> None:
    assert not judge(Failure.BROKEN, 1)


def test_without_a_budget_nothing_is_tried_again() -> None:
    assert not judge(Failure.RESET, 1, RetryBudget(0.0))


def retried(budget: RetryBudget, requests: int, *, per_s: float = math.inf, under_way: int = 0) -> int:
    """How many of so many requests, all of which fail, are tried again."""
    spent = 0
    for number in range(requests):
        now = number / per_s
        budget.sent(now)
        spent += budget.take(now, under_way=under_way)
    return spent


def test_of_a_burst_that_fails_a_share_is_tried_again_and_no_more() -> None:
    assert retried(RetryBudget(0.2), 300) == 60


def test_retries_are_a_share_of_the_requests_in_the_long_run() -> None:
    assert retried(RetryBudget(0.25), 10_000, per_s=100) == pytest.approx(2500, rel=0.01)


def test_a_few_are_tried_again_whatever_the_share_and_again_when_a_window_is_over() -> None:
    assert retried(RetryBudget(0.01), 50) == RETRIES_MIN
    assert retried(RetryBudget(0.01), 10 * WINDOW_S, per_s=1) == pytest.approx(10 * WINDOW_S, abs=RETRIES_MIN)


def test_what_has_been_under_way_for_long_counts_like_what_was_just_sent() -> None:
    budget = RetryBudget(0.5)
    assert sum(budget.take(1e6, under_way=200) for _ in range(200)) == 100


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
