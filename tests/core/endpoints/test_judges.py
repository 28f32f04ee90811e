"""One judge at a time finds the size of an engine that reports none, and each can be named."""

from __future__ import annotations

from typing import Literal

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.explain.explanation import Explanation
from penstock.core.values.observation import Observation
from penstock.core.values.settings import EndpointSpec
from tests.core.drive import request, scheduler, the_lease


def unsized(**told: int) -> CheckedScheduler:
    """An engine `e` of unknown size, beside others of known sizes."""
    made = scheduler(None, **told)
    made.endpoint_added(EndpointSpec("e", 2, frozenset("m"), adaptive_slots=True), now=0.0)
    return made


def sized_by(made: CheckedScheduler, now: float) -> dict[str, str]:
    return {endpoint.name: endpoint.slots_by for endpoint in made.snapshot(now=now).endpoints}


def test_the_page_is_the_judge_while_it_counts_then_own_streams_then_whole_answers() -> None:
    made = unsized()
    assert sized_by(made, 0.0) == {"e": ""}, "nothing was seen yet"
    lease = the_lease(made.arrived(request("stream", streamed=True), now=0.1))
    made.first_token(lease, now=0.2)
    made.observed("e", Observation(0.5, running=1, waiting=0, progress=1.0), now=0.5)
    assert sized_by(made, 0.5) == {"e": "page"}
    for at in (1.0, 1.5):
        made.observed("e", None, now=at)
    made.finished(lease, None, now=2.0)
    assert sized_by(made, 2.0) == {"e": "streams"}
    whole = the_lease(made.arrived(request("whole"), now=10.0))
    made.finished(whole, None, now=11.0)
    assert sized_by(made, 11.0) == {"e": "answers"}


def test_a_size_that_is_told_has_no_judge_and_explain_counts_the_others() -> None:
    made = unsized(told=1)
    for number in range(8):
        made.arrived(request(f"r{number}", streamed=True), now=0.1)
    made.observed("e", Observation(0.5, running=2, waiting=0, progress=1.0), now=0.5)
    assert sized_by(made, 0.5) == {"told": "", "e": "page"}
    waits = made.explain("r7", now=0.5)
    assert isinstance(waits, Explanation)
    assert waits.slots_by == {"page": 1}


@pytest.mark.parametrize("by_hand", [8, "auto"])
def test_an_operator_who_sets_the_size_ends_the_search(by_hand: int | Literal["auto"]) -> None:
    made = unsized()
    made.arrived(request("r", streamed=True), now=0.1)
    made.observed("e", Observation(0.5, running=1, waiting=0, progress=1.0), now=0.5)
    made.endpoint_changed("e", slots=by_hand, now=1.0)
    made.observed("e", Observation(1.5, running=1, waiting=0, progress=2.0), now=1.5)
    assert sized_by(made, 1.5) == {"e": "" if by_hand == 8 else "page"}


def test_a_page_that_shows_no_queue_is_believed_while_requests_are_on_their_way() -> None:
    """A busy engine takes seconds to take whole answers in: it had 2 of 256 slots by the time of its answers."""
    made = unsized()
    for number in range(64):
        made.arrived(request(f"r{number}"), now=0.0)
    for at, running in ((1.0, 2), (2.5, 2), (4.0, 4), (5.5, 4), (7.0, 8)):
        made.observed("e", Observation(at, running=running, waiting=0, queued=0, progress=at), now=at)
        assert sized_by(made, at) == {"e": "page"}
    assert made.snapshot(now=7.0).endpoints[0].slots >= 16
