"""Which endpoints can't take a request: while another one can, it waits for that one, and holds up nobody else."""

from __future__ import annotations

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Contents, Usage
from tests.core.drive import ends, request, requeued, scheduler, sent, the_lease

LONG = Contents(40_000)  # bytes: about 10,000 tokens
PICTURE = Contents(100, pictures=1)


def two(small: int | None = 4096, large: int | None = 32_768) -> CheckedScheduler:
    made = scheduler(a=1, b=1)
    for name, context in (("a", small), ("b", large)):
        made.endpoint_changed(name, contexts={} if context is None else {"m": context}, now=0.0)
    return made


def test_a_long_prompt_waits_for_the_large_context_and_short_ones_pass_it() -> None:
    made = two()
    first = made.arrived(request("first", contents=LONG), now=0.0)
    assert sent(first) == [("first", "b")]
    assert sent(made.arrived(request("second", contents=LONG), now=0.1)) == []
    short = made.arrived(request("short"), now=0.2)
    assert sent(short) == [("short", "a")]
    assert sent(made.finished(the_lease(short), Usage(10, 1), now=0.3)) == []
    assert sent(made.finished(the_lease(first), Usage(10_000, 1), now=0.4)) == [("second", "b")]


@pytest.mark.parametrize(("small", "large"), [(4096, 4096), (None, None), (4096, 8192)])
def test_where_nobody_is_known_to_fit_anybody_is_asked(small: int | None, large: int | None) -> None:
    made = two(small, large)
    actions = made.arrived(request("r", contents=LONG), now=0.0)
    assert sent(actions) == [("r", "a")]


def test_an_unknown_context_may_fit() -> None:
    assert sent(two(4096, None).arrived(request("r", contents=LONG), now=0.0)) == [("r", "b")]


def test_where_the_large_one_is_away_the_small_one_is_asked() -> None:
    made = two()
    made.endpoint_down("b", now=0.0)
    actions = made.arrived(request("r", contents=LONG), now=0.0)
    assert sent(actions) == [("r", "a")]
    actions = made.failed(the_lease(actions), Failure.TOO_LONG, now=0.1)
    assert ends(actions) == [("r", "failed", "upstream_error")], "the driver passes the engine's refusal on"
    assert [e.state for e in made.snapshot(now=0.1).endpoints] == ["up", "down"]


def test_each_input_of_several_has_a_context_of_its_own() -> None:
    several = Contents(40_000, inputs=10, answers=0)
    assert sent(two().arrived(request("r", contents=several), now=0.0)) == [("r", "a")]


def test_a_refused_kind_is_asked_elsewhere_and_remembered_until_the_engine_comes_back() -> None:
    made = two(None, None)
    actions = made.arrived(request("one", contents=PICTURE), now=0.0)
    actions = made.failed(the_lease(actions), Failure.MODALITY, now=0.1)
    assert (requeued(actions), sent(actions)) == (["one"], [("one", "b")])
    made.finished(the_lease(actions), Usage(10, 1), now=0.2)
    actions = made.arrived(request("two", contents=PICTURE), now=0.3)
    assert sent(actions) == [("two", "b")]
    assert ends(made.failed(the_lease(actions), Failure.MODALITY, now=0.4)) == [("two", "failed", "upstream_error")]
    made.endpoint_down("a", now=1.0)
    made.endpoint_up("a", now=2.0)
    assert sent(made.arrived(request("three", contents=PICTURE), now=3.0)) == [("three", "a")]
