"""Our counters and histograms print what prometheus_client's own would print."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from penstock.core.values.catalogue import Outcome
from penstock.gateway.telemetry import series
from penstock.gateway.telemetry.metrics import Metrics  # it switches prometheus_client's `_created` series off

BOUNDS = (0.001, 0.5, 1, 10)
assert Metrics is not None


def page(*families: series.Counter | series.Histogram) -> bytes:
    return "".join(line for family in families for line in family.lines()).encode()


@settings(max_examples=25)
@given(st.lists(st.one_of(st.sampled_from((0.0, *BOUNDS)), st.floats(0, 100))))
def test_a_histogram_prints_what_the_librarys_own_prints(values: list[float]) -> None:
    theirs_registry = CollectorRegistry()
    theirs = prometheus_client.Histogram(
        "wait_seconds", "Waits.", ["band", "outcome"], buckets=BOUNDS, registry=theirs_registry
    )
    ours = series.Histogram("wait_seconds", "Waits.", ["band", "outcome"], bounds=BOUNDS)
    for histogram in (theirs, ours):
        histogram.labels("standard", Outcome.COMPLETED)
        for value in values:
            histogram.labels("batch", Outcome.EVICTED).observe(value)
    assert generate_latest(theirs_registry) == page(ours)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 1000)))
def test_a_counter_prints_what_the_librarys_own_prints(amounts: list[int]) -> None:
    theirs_registry = CollectorRegistry()
    theirs = prometheus_client.Counter("tokens", "Tokens.", ["kind"], registry=theirs_registry)
    ours = series.Counter("tokens", "Tokens.", ["kind"])
    for counter in (theirs, ours):
        counter.labels("prompt")
        for amount in amounts:
            counter.labels('a "quoted"\nname').inc(amount)
    assert generate_latest(theirs_registry) == page(ours)


def test_a_series_that_was_removed_is_no_longer_printed_and_starts_anew() -> None:
    counter = series.Counter("dispatches", "Leases granted.", ["endpoint"])
    counter.labels("gone").inc(3)
    counter.remove("gone")
    counter.remove("never-there")
    assert b"gone" not in page(counter)
    counter.labels("gone").inc()
    assert b'dispatches_total{endpoint="gone"} 1.0' in page(counter)


def test_a_counter_never_shrinks() -> None:
    with pytest.raises(AssertionError):
        series.Counter("tokens", "Tokens.").labels().inc(-1)
