"""Which states a request goes through: one table, which the scheduler obeys and docs/states.md is drawn from."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """A request's state."""

    ARRIVED = "arrived"
    WAITING = "waiting"
    RUNNING = "running"
    STREAMING = "streaming"
    REJECTED = "rejected"
    EVICTED = "evicted"
    FAILED = "failed"
    COMPLETED = "completed"


class Event(StrEnum):
    """An event that changes a request's state."""

    REFUSED = "refused"
    ADMITTED = "admitted"
    DISPATCHED = "dispatched"
    REQUEUED = "requeued"
    EVICTED = "evicted"
    FIRST_TOKEN = "first_token"  # noqa: S105
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


STATE_MEANINGS: dict[State, str] = {
    State.ARRIVED: "the request's head and body are here, and nothing is decided",
    State.WAITING: "the request is in the queue",
    State.RUNNING: "the request has a lease on an endpoint, and no byte of the answer has come",
    State.STREAMING: "the request has a lease, and its answer has begun",
    State.REJECTED: "refused on arrival, instead of being queued",
    State.EVICTED: "removed from the queue without an answer",
    State.FAILED: "sent to an endpoint, without a complete answer",
    State.COMPLETED: "an engine's own answer reached the client",
}

EVENT_MEANINGS: dict[Event, str] = {
    Event.REFUSED: "no such model, a limit is reached, the queue is full, or the wait would be too long",
    Event.ADMITTED: "the request enters the queue; it may leave it in the same step",
    Event.DISPATCHED: "a lease is taken, and the request is sent",
    Event.REQUEUED: "the endpoint refused, failed or stalled before the first byte, and the request is queued again",
    Event.EVICTED: "its time in the queue is over, a higher band needs its place, or an operator removed it",
    Event.FIRST_TOKEN: "the first token of a streamed answer came",
    Event.FINISHED: "the last byte of the answer was read from the engine",
    Event.FAILED: "the dispatch failed, and the request may not be retried",
    Event.CANCELLED: "the client closed the connection",
}

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.ARRIVED, Event.REFUSED): State.REJECTED,
    (State.ARRIVED, Event.ADMITTED): State.WAITING,
    (State.WAITING, Event.REFUSED): State.REJECTED,  # it found no slot at once, and no room to wait
    (State.WAITING, Event.DISPATCHED): State.RUNNING,
    (State.WAITING, Event.EVICTED): State.EVICTED,
    (State.WAITING, Event.CANCELLED): State.EVICTED,
    (State.WAITING, Event.FINISHED): State.COMPLETED,  # its lease was taken back while the end of its answer came
    (State.RUNNING, Event.FIRST_TOKEN): State.STREAMING,
    (State.RUNNING, Event.REQUEUED): State.WAITING,
    (State.RUNNING, Event.FINISHED): State.COMPLETED,
    (State.RUNNING, Event.FAILED): State.FAILED,
    (State.RUNNING, Event.CANCELLED): State.FAILED,
    (State.STREAMING, Event.FINISHED): State.COMPLETED,
    (State.STREAMING, Event.FAILED): State.FAILED,
    (State.STREAMING, Event.CANCELLED): State.FAILED,
}

#: The same, by the state that is left.
FOLLOWING: Final[dict[State, dict[Event, State]]] = {
    state: {event: then for (before, event), then in TRANSITIONS.items() if before is state} for state in State
}

TERMINAL = frozenset({State.REJECTED, State.EVICTED, State.FAILED, State.COMPLETED})


def after(state: State, event: Event) -> State:
    """The state that follows, or an AssertionError: a transition that is not in the table is a bug of ours."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"a {state} request cannot be {event}"
    return following
