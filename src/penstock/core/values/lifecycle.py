"""Which states a request goes through: one table, which the scheduler obeys and docs/states.md is drawn from."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a request is in its life."""

    ARRIVED = "arrived"  #: its head and body are here, nothing is decided
    WAITING = "waiting"  #: in a queue
    RUNNING = "running"  #: leased to an endpoint, no byte of the answer yet
    STREAMING = "streaming"  #: leased, and its answer has begun
    REJECTED = "rejected"
    EVICTED = "evicted"
    FAILED = "failed"
    COMPLETED = "completed"


class Event(StrEnum):
    """What moves it."""

    REFUSED = "refused"
    ADMITTED = "admitted"
    DISPATCHED = "dispatched"
    REQUEUED = "requeued"
    EVICTED = "evicted"
    FIRST_TOKEN = "first_token"  # noqa: S105
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.ARRIVED, Event.REFUSED): State.REJECTED,
    (State.ARRIVED, Event.ADMITTED): State.WAITING,
    (State.WAITING, Event.REFUSED): State.REJECTED,  # it found no slot at once, and no room to wait
    (State.WAITING, Event.DISPATCHED): State.RUNNING,
    (State.WAITING, Event.EVICTED): State.EVICTED,
    (State.WAITING, Event.CANCELLED): State.EVICTED,
    (State.RUNNING, Event.FIRST_TOKEN): State.STREAMING,
    (State.RUNNING, Event.REQUEUED): State.WAITING,
    (State.RUNNING, Event.FINISHED): State.COMPLETED,
    (State.RUNNING, Event.FAILED): State.FAILED,
    (State.RUNNING, Event.CANCELLED): State.FAILED,
    (State.STREAMING, Event.FINISHED): State.COMPLETED,
    (State.STREAMING, Event.FAILED): State.FAILED,
    (State.STREAMING, Event.CANCELLED): State.FAILED,
}

TERMINAL = frozenset({State.REJECTED, State.EVICTED, State.FAILED, State.COMPLETED})


def after(state: State, event: Event) -> State:
    """The state that follows, or an AssertionError: a transition that is not in the table is a bug of ours."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"a {state} request cannot be {event}"
    return following


def states_markdown() -> str:
    """The table as a Mermaid diagram and a list, for docs/states.md."""
    lines = [
        "# The life of a request",
        "",
        "Drawn from the table in `src/penstock/core/values/lifecycle.py` (`python -m penstock.core.values.lifecycle`).",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> arrived",
    ]
    lines += [f"    {source} --> {target}: {event}" for (source, event), target in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    lines += ["```", "", "| from | event | to |", "|---|---|---|"]
    lines += [f"| {source} | {event} | {target} |" for (source, event), target in TRANSITIONS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(states_markdown(), end="")
