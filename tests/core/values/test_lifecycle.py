"""The states of a request: one table."""

from __future__ import annotations

import pytest

from penstock.core.values.lifecycle import (
    EVENT_MEANINGS,
    STATE_MEANINGS,
    TERMINAL,
    TRANSITIONS,
    Event,
    State,
    after,
)


def test_every_state_and_event_is_explained() -> None:
    assert list(STATE_MEANINGS) == list(State)
    assert list(EVENT_MEANINGS) == list(Event)


def test_an_ended_request_goes_nowhere_and_every_other_can_end() -> None:
    sources = {source for source, _ in TRANSITIONS}
    assert not sources & TERMINAL
    assert sources == set(State) - TERMINAL


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    assert after(State.WAITING, Event.DISPATCHED) is State.RUNNING
    with pytest.raises(AssertionError, match="a completed request cannot be dispatched"):
        after(State.COMPLETED, Event.DISPATCHED)
