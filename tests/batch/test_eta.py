"""Who will be late: from how fast a tenant's items end, on a clock of the test's own."""

from __future__ import annotations

from penstock.batch.eta import CompletionEta, Outlook
from penstock.batch.values import Batch


def batch(name: str, done: int, *, total: int = 1000, tenant: str = "a", deadline: float = 600.0) -> Batch:
    return Batch(
        name, tenant, "", "/v1/embeddings", "f", "1h", 0.0, deadline, "in_progress", None, None, None,
        total, done, 0, 0, 0, 0, 0, 0, "{}", '["m"]', "[]", "{}",
    )  # fmt: skip


def look(pace: CompletionEta, batches: list[Batch], at: float) -> list[Outlook]:
    return pace.look(batches, wall=at, now=at)


def test_a_steady_rate_predicts_the_end() -> None:
    pace = CompletionEta()
    for second in range(61):
        [outlook] = look(pace, [batch("b", 2 * second)], float(second))
    assert abs(outlook.per_s - 2.0) < 0.1
    assert outlook.estimated_end is not None
    assert abs(outlook.estimated_end - (60 + 880 / 2)) < 25
    assert not outlook.misses_window


def test_earlier_batches_of_the_tenant_count_and_other_tenants_do_not() -> None:
    pace = CompletionEta()
    for second in range(61):
        rows = look(
            pace, [batch("first", second), batch("next", 0, deadline=700), batch("other", 0, tenant="b")], float(second)
        )
    found = {row.id: row for row in rows}
    first, following = found["first"], found["next"]
    assert first.estimated_end is not None
    assert following.estimated_end is not None
    assert following.estimated_end - first.estimated_end > 900
    assert first.misses_window
    assert following.misses_window
    assert found["other"].estimated_end is None


def test_a_batch_that_stands_still_will_be_late_and_one_just_begun_is_given_time() -> None:
    pace = CompletionEta()
    assert not look(pace, [batch("b", 0)], 0.0)[0].misses_window
    assert not look(pace, [batch("b", 0)], 30.0)[0].misses_window
    assert look(pace, [batch("b", 0)], 61.0)[0].misses_window


def test_earlier_ends_do_not_count_for_the_rate() -> None:
    pace = CompletionEta()
    look(pace, [batch("b", 900)], 0.0)
    assert look(pace, [batch("b", 900)], 10.0)[0].per_s == 0.0


def test_a_clock_set_back_by_half_a_day_changes_no_pace() -> None:
    pace = CompletionEta()
    for second in range(61):
        put_back = 12 * 3600.0 if second > 30 else 0.0
        [outlook] = pace.look([batch("b", 2 * second)], wall=50_000.0 + second - put_back, now=float(second))
    assert abs(outlook.per_s - 2.0) < 0.1
