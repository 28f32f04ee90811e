"""What ended badly is counted with whose it was, in rows that no flood makes many."""

from __future__ import annotations

from penstock.core.values.catalogue import Outcome, Reason
from penstock.gateway.telemetry.failures import OTHERS, Failures, Kind, Mishap

FIRST_TOKENS_MAX = 512


def test_what_went_well_or_as_the_client_wished_is_no_failure() -> None:
    failures = Failures()
    failures.note("a", "gpu", Outcome.COMPLETED, None)
    failures.note("a", "", Outcome.EVICTED, Reason.CANCELLED)
    failures.note("a", "gpu", Outcome.FAILED, Reason.CLIENT_GONE)
    assert not failures.take()
    assert failures.ended == 3


def test_a_flood_is_one_row() -> None:
    failures = Failures()
    for _ in range(1_000):
        failures.note("a", "", Outcome.REJECTED, Reason.QUEUE_FULL)
    failures.note("a", "gpu", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
    failures.note("b", "gpu", Outcome.FAILED, Reason.STREAM_BROKEN)
    failures.note("b", "gpu", Outcome.FAILED, Reason.UPSTREAM_TIMEOUT)
    failures.retried("b", "gpu", "reset")
    assert failures.take() == {
        Mishap(Kind.REFUSED, "queue_full", "a", ""): 1_000,
        Mishap(Kind.EVICTED, "queue_timeout", "a", ""): 1,  # that it had been sent before is nobody's fault
        Mishap(Kind.BROKEN, "stream_broken", "b", "gpu"): 1,
        Mishap(Kind.FAILED, "upstream_timeout", "b", "gpu"): 1,
        Mishap(Kind.RETRIED, "reset", "b", "gpu"): 1,
    }
    assert not failures.take()
    assert failures.totals == {"refused": 1_000, "evicted": 1, "broken": 1, "failed": 1, "retried": 1}


def test_a_flood_of_names_is_counted_in_full_in_bounded_rows() -> None:
    failures = Failures()
    for at in range(5_000):
        failures.note(f"tenant-{at}", "", Outcome.REJECTED, Reason.QUEUE_FULL)
        failures.note(f"tenant-{at}", f"gpu-{at}", Outcome.FAILED, Reason.STREAM_BROKEN)
        for reason in Reason:
            failures.note(f"tenant-{at}", f"gpu-{at}", Outcome.FAILED, reason)
    rows = failures.take()
    assert len(rows) <= 512 + len(Kind)
    assert sum(rows.values()) == sum(failures.totals.values())
    assert rows[Mishap(Kind.FAILED, OTHERS, OTHERS, "")] > 0


def test_first_tokens_are_those_of_the_last_seconds() -> None:
    failures = Failures()
    assert failures.first_tokens_s(0.0) is None
    for at in range(100):
        failures.first_token(float(at))
        failures.first_tokens_s(at / 100)
    assert failures.first_tokens_s(1.0) == (50.0, 99.0)
    assert failures.first_tokens_s(10.505) == (75.0, 99.0), "older ones are forgotten"
    assert failures.first_tokens_s(60.0) is None
    for _ in range(10 * FIRST_TOKENS_MAX):
        failures.first_token(1.0)
    assert len(failures._fresh) == FIRST_TOKENS_MAX
    assert failures.first_tokens_s(60.0) == (1.0, 1.0)
    assert len(failures._first_tokens) == FIRST_TOKENS_MAX


def test_what_another_process_noted_counts_as_if_it_were_noted_here() -> None:
    worker, here = Failures(), Failures()
    for at in range(3):
        worker.note("a", "gpu", Outcome.FAILED, Reason.STREAM_BROKEN)
        worker.note("b", "", Outcome.COMPLETED, None)
        worker.first_token(0.5 + at)
    for labels, values in worker.told():
        here.add(labels, values)
    assert worker.told() == []
    here.add(["nonsense"], [1.0])
    here.add(["nonsense", "x", "y", "z"], [1.0])
    assert (here.ended, here.totals[Kind.BROKEN], here.first_tokens_s(1.0)) == (6, 3, (1.5, 2.5))
    assert here.take() == {Mishap(Kind.BROKEN, "stream_broken", "a", "gpu"): 3}
