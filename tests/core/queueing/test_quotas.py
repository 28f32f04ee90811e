"""Limits of a tenant: what holds, what refuses, and whether the accounts stay true."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.queueing.quotas import Quotas, TokenBucket
from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import Limits


def one(**limits: int) -> Quotas:
    return Quotas({"a": Limits(**limits)})


def refused(tenants: Quotas, tokens: int, now: float) -> tuple[str, float]:
    """Which limit, and when to come again."""
    reached = tenants.admit(("a",), tokens=tokens, now=now)
    assert reached is not None
    assert reached.retry_after_s is not None
    return reached.limit, round(reached.retry_after_s, 6)


# Rates


def test_a_minutes_worth_may_come_at_once_and_the_next_gets_a_retry_after() -> None:
    tenants = one(requests_per_minute=6)
    assert [tenants.admit(("a",), tokens=1, now=100.0) for _ in range(6)] == [None] * 6
    assert refused(tenants, 1, 100.0) == ("requests_per_minute", 10.0)
    assert tenants.admit(("a",), tokens=1, now=109.9) is not None
    assert tenants.admit(("a",), tokens=1, now=110.0) is None


def test_whoever_waits_as_told_is_let_in() -> None:
    tenants = one(requests_per_minute=7, tokens_per_minute=1_300)
    now = 1e6 + 0.1
    for _ in range(200):
        reached = tenants.admit(("a",), tokens=333, now=now)
        if reached is not None:
            now += reached.retry_after_s or 0.0
            assert tenants.admit(("a",), tokens=333, now=now) is None


def test_what_is_refused_is_not_charged() -> None:
    tenants = one(requests_per_minute=60, tokens_per_minute=100)
    tenants.admit(("a",), tokens=90, now=0.0)
    assert refused(tenants, 50, 0.0) == ("tokens_per_minute", 24.0)
    (snapshot,) = tenants.snapshot(0.0)
    assert (snapshot.requests_left, snapshot.tokens_left) == (59.0, 10.0)


def test_what_is_told_is_the_limit_as_it_is_set() -> None:
    tenants = one(requests_per_minute=7)
    for _ in range(7):
        assert tenants.admit(("a",), tokens=1, now=0.0) is None
    reached = tenants.admit(("a",), tokens=1, now=0.0)
    assert reached is not None
    assert (reached.limit, reached.most) == ("requests_per_minute", 7)


def test_of_two_limits_the_one_that_lasts_longer_is_reported() -> None:
    tenants = one(requests_per_minute=1, tokens_per_minute=6_000)
    tenants.admit(("a",), tokens=6_000, now=0.0)
    assert refused(tenants, 100, 0.0) == ("requests_per_minute", 60.0)


def test_a_days_worth_may_come_at_once_and_comes_back_evenly() -> None:
    tenants = one(tokens_per_day=86_400)
    assert [tenants.admit(("a",), tokens=43_200, now=0.0) for _ in range(2)] == [None] * 2
    assert refused(tenants, 3_600, 0.0) == ("tokens_per_day", 3_600.0)
    assert refused(tenants, 3_600, 1_800.0) == ("tokens_per_day", 1_800.0)
    assert tenants.room("a", 0.0) == 0.0
    assert tenants.room("a", 1.0) > 0.0
    assert tenants.admit(("a",), tokens=3_600, now=3_600.0) is None
    tenants.settle(("a",), reserved=3_600, used=7_200, now=3_600.0)
    assert tenants.snapshot(3_600.0)[0].tokens_day_left == -3_600.0
    allowance = tenants.allowance(("a",), 3_600.0)
    assert allowance is not None
    assert (allowance.requests, allowance.tokens) == (None, None)
    assert allowance.tokens_day is not None
    assert (allowance.tokens_day.limit, allowance.tokens_day.remaining) == (86_400, 0)


def test_a_request_has_to_fit_into_the_minute_and_into_the_day() -> None:
    tenants = one(tokens_per_minute=6_000, tokens_per_day=7_200)
    assert tenants.admit(("a",), tokens=6_000, now=0.0) is None
    assert refused(tenants, 600, 0.0) == ("tokens_per_minute", 6.0)
    assert refused(tenants, 1_800, 60.0) == ("tokens_per_day", 7_140.0)
    tenants.refund(("a",), tokens=6_000, now=60.0)
    assert tenants.admit(("a",), tokens=1_800, now=60.0) is None


@pytest.mark.parametrize(
    ("limit", "left"), [(10_000, 9_100.0), (1_000, 100.0), (950, 50.0), (900, 0.0), (500, 0.0), (1, 0.0)]
)
def test_what_was_spent_of_a_day_stays_spent_under_another_limit(limit: int, left: float) -> None:
    tenants = one(tokens_per_day=1_000, requests_per_minute=10)
    tenants.admit(("a",), tokens=900, now=0.0)
    tenants.reconfigured({"a": Limits(tokens_per_day=limit, tokens_per_minute=50, requests_per_minute=20)}, (), 0.0)
    (snapshot,) = tenants.snapshot(0.0)
    assert (snapshot.tokens_day_left, snapshot.tokens_left, snapshot.requests_left) == (left, 50.0, 19.0)


@pytest.mark.parametrize(("limit", "left"), [(10_000, 8_800.0), (1_100, -100.0), (1_000, -200.0), (500, -200.0)])
def test_a_debt_is_paid_by_a_higher_limit_and_not_raised_by_a_lower_one(limit: int, left: float) -> None:
    tenants = one(tokens_per_day=1_000)
    tenants.admit(("a",), tokens=1_000, now=0.0)
    tenants.settle(("a",), reserved=1_000, used=1_200, now=0.0)
    tenants.reconfigured({"a": Limits(tokens_per_day=limit)}, (), 0.0)
    (snapshot,) = tenants.snapshot(0.0)
    assert snapshot.tokens_day_left == left


@given(st.lists(st.tuples(st.integers(1, 2_000), st.integers(0, 500)), max_size=20))
def test_no_change_of_a_limit_gives_more_than_its_own_difference(changes: list[tuple[int, int]]) -> None:
    tenants, size = one(tokens_per_day=1_000), 1_000
    for limit, tokens in changes:
        tenants.admit(("a",), tokens=tokens, now=0.0)
        before = tenants.snapshot(0.0)[0].tokens_day_left
        tenants.reconfigured({"a": Limits(tokens_per_day=limit)}, (), 0.0)
        after = tenants.snapshot(0.0)[0].tokens_day_left
        assert before is not None
        assert after is not None
        assert min(before, 0.0) <= after <= min(float(limit), before + max(0, limit - size))
        size = limit


def test_a_request_larger_than_a_minutes_worth_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    tenants = one(tokens_per_minute=60)
    assert tenants.admit(("a",), tokens=150, now=0.0) is None
    assert refused(tenants, 1, 0.0) == ("tokens_per_minute", 91.0)
    assert tenants.admit(("a",), tokens=150, now=149.0) is not None
    assert tenants.admit(("a",), tokens=150, now=150.0) is None


def test_a_refund_leaves_no_trace() -> None:
    tenants = one(requests_per_minute=5, tokens_per_minute=100)
    before = tenants.snapshot(0.0)
    tenants.admit(("a",), tokens=70, now=0.0)
    tenants.refund(("a",), tokens=70, now=0.0)
    assert tenants.snapshot(0.0) == before


def test_a_refund_needs_no_rate_of_either_kind() -> None:
    for tenants in (one(requests_per_minute=5), one(tokens_per_minute=5), one(running=5), Quotas({})):
        before = tenants.snapshot(0.0)
        assert tenants.admit(("a",), tokens=3, now=0.0) is None
        tenants.refund(("a",), tokens=3, now=0.0)
        assert tenants.snapshot(0.0) == before


def test_settling_corrects_in_both_directions_and_may_leave_a_debt() -> None:
    tenants = one(tokens_per_minute=600)
    tenants.admit(("a",), tokens=500, now=0.0)
    tenants.settle(("a",), reserved=500, used=100, now=0.0)
    assert tenants.snapshot(0.0)[0].tokens_left == 500.0
    tenants.admit(("a",), tokens=100, now=0.0)
    tenants.settle(("a",), reserved=100, used=700, now=0.0)
    assert tenants.snapshot(0.0)[0].tokens_left == -200.0
    assert refused(tenants, 10, 0.0) == ("tokens_per_minute", 21.0)


def test_nothing_is_hoarded_beyond_a_minutes_worth() -> None:
    bucket = TokenBucket(60)
    bucket.take(60, 0.0)
    assert bucket.left(3_600.0) == 60.0
    bucket.take(-30, 3_600.0)
    assert bucket.left(3_600.0) == 60.0


AMOUNTS = st.integers(1, 400)
STEPS = st.lists(st.tuples(st.floats(0, 30), AMOUNTS), min_size=1, max_size=120)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), STEPS)
def test_what_is_let_in_stays_within_rate_and_burst_from_any_moment_on(
    per_minute: int, steps: list[tuple[float, int]]
) -> None:
    tenants = one(tokens_per_minute=per_minute)
    now, admitted = 0.0, list[tuple[float, int]]()
    for pause_s, tokens in steps:
        now += pause_s
        if tenants.admit(("a",), tokens=tokens, now=now) is None:
            admitted.append((now, tokens))
    rate = per_minute / 60
    for first, (since, _) in enumerate(admitted):
        total = 0
        for at, tokens in admitted[first:]:
            total += tokens
            beyond = max(0, tokens - per_minute)
            assert total <= rate * (at - since) + per_minute + beyond + 1e-6


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(AMOUNTS, st.integers(0, 2_000), st.booleans()), max_size=60))
def test_what_is_charged_in_the_end_is_what_was_used(requests: list[tuple[int, int, bool]]) -> None:
    """At one moment, so that nothing refills: full bucket − left = used by those let in, whatever was estimated."""
    size = 10_000
    tenants = one(tokens_per_minute=size, requests_per_minute=size)
    under_way: list[tuple[int, int]] = []
    used = n_requests = 0
    for tokens, truth, is_refunded in requests:
        if tenants.admit(("a",), tokens=tokens, now=5.0) is not None:
            continue
        if is_refunded:
            tenants.refund(("a",), tokens=tokens, now=5.0)
        else:
            under_way.append((tokens, truth))
            used += truth
            n_requests += 1
        if len(under_way) > 3:
            reserved, actually = under_way.pop(0)
            tenants.settle(("a",), reserved=reserved, used=actually, now=5.0)
    for reserved, actually in under_way:
        tenants.settle(("a",), reserved=reserved, used=actually, now=5.0)
    (snapshot,) = tenants.snapshot(5.0)
    assert snapshot.tokens_left == pytest.approx(size - used)
    assert snapshot.requests_left == pytest.approx(size - n_requests)


# What waits and what runs


def test_the_queue_of_a_tenant_is_bounded_by_count_and_bytes() -> None:
    tenants = one(queued=2, queued_bytes=100)
    tenants.queued(("a",), 40, 0)
    tenants.queued(("a",), 60, 0)
    assert tenants.over_queued(("a",)) is None
    tenants.queued(("a",), 0, 0)
    assert tenants.over_queued(("a",)) == LimitReached("queued", 2)
    tenants.unqueued(("a",), 40, 0)
    tenants.unqueued(("a",), 0, 0)
    tenants.queued(("a",), 41, 0)
    assert tenants.over_queued(("a",)) == LimitReached("queued_bytes", 100)


def test_the_queue_of_a_tenant_is_bounded_by_estimated_tokens_too() -> None:
    tenants = one(queued_tokens=100)
    tenants.queued(("a",), 0, 60)
    assert tenants.over_queued(("a",)) is None
    tenants.queued(("a",), 0, 41)
    assert tenants.over_queued(("a",)) == LimitReached("queued_tokens", 100)
    tenants.unqueued(("a",), 0, 60)
    assert tenants.over_queued(("a",)) is None


def test_a_tenant_at_its_running_limit_is_held_until_one_ends() -> None:
    tenants = one(running=2)
    assert not tenants.at_limit(("a",))
    assert [tenants.started(("a",)), tenants.started(("a",))] == [False, True]
    assert tenants.at_limit(("a",))
    assert tenants.full(("a",)) == LimitReached("running", 2)
    assert [tenants.ended(("a",)), tenants.ended(("a",))] == [["a"], []]
    assert not tenants.at_limit(("a",))
    assert tenants.full(("a",)) is None


def test_counts_never_go_below_nothing_and_a_held_tenant_starts_nothing() -> None:
    tenants = one(running=1)
    with pytest.raises(AssertionError):
        tenants.ended(("a",))
    with pytest.raises(AssertionError):
        tenants.unqueued(("a",), 0, 0)
    tenants.started(("a",))
    with pytest.raises(AssertionError):
        tenants.started(("a",))


def test_a_tenant_without_limits_is_not_even_known() -> None:
    tenants = Quotas({"free": Limits(), "a": Limits(running=1)})
    for name in (("free",), ("stranger",)):
        assert tenants.admit(name, tokens=10**9, now=0.0) is None
        tenants.settle(name, reserved=1, used=2, now=0.0)
        tenants.queued(name, 10**9, 0)
        assert tenants.over_queued(name) is None
        tenants.unqueued(name, 10**9, 0)
        assert not any((tenants.started(name), tenants.at_limit(name), tenants.ended(name)))
    assert [snapshot.name for snapshot in tenants.snapshot(0.0)] == ["a"]


def test_the_snapshot_shows_what_a_limited_tenant_has() -> None:
    tenants = one(running=3, queued=5, tokens_per_minute=60)
    tenants.admit(("a",), tokens=30, now=10.0)
    tenants.queued(("a",), 7, 0)
    tenants.started(("a",))
    (snapshot,) = tenants.snapshot(20.0)
    assert (snapshot.running, snapshot.queued, snapshot.queued_bytes) == (1, 1, 7)
    assert (snapshot.requests_left, snapshot.tokens_left) == (None, 40.0)
    assert snapshot.limits == Limits(running=3, queued=5, tokens_per_minute=60)
