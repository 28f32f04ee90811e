"""The states of a request: the table, and the page drawn from it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from penstock.core.values.lifecycle import (
    EVENT_MEANINGS,
    STATE_MEANINGS,
    TERMINAL,
    TRANSITIONS,
    Event,
    State,
    after,
    states_markdown,
)

PAGE = Path(__file__).parents[3] / "docs" / "states.md"


def test_the_page_is_drawn_from_the_table() -> None:
    assert PAGE.read_text() == states_markdown()


def test_every_state_and_event_is_explained() -> None:
    assert list(STATE_MEANINGS) == list(State)
    assert list(EVENT_MEANINGS) == list(Event)


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_the_module_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("penstock.core.values.lifecycle", run_name="__main__")
    assert capsys.readouterr().out == PAGE.read_text()


def test_an_ended_request_goes_nowhere_and_every_other_can_end() -> None:
    sources = {source for source, _ in TRANSITIONS}
    assert not sources & TERMINAL
    assert sources == set(State) - TERMINAL


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    assert after(State.WAITING, Event.DISPATCHED) is State.RUNNING
    with pytest.raises(AssertionError, match="a completed request cannot be dispatched"):
        after(State.COMPLETED, Event.DISPATCHED)
