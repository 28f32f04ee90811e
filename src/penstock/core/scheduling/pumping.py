"""Pumping: after a fact that may have opened an endpoint, dispatch all that can be, by preemption if need be."""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.scheduling import gating, sending
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action


def pumped(state: SchedulerState, now: float) -> list[Action]:
    """Dispatch whatever can be dispatched. Returns the result."""
    actions: list[Action] = []
    if state.queues.waiting or state.gate.stirred:
        hand_out(state, now, actions)
    return actions


def touched(state: SchedulerState, endpoint: Endpoint, now: float) -> list[Action]:
    """Look again at an endpoint that may have opened or closed. Returns the result."""
    state.queues.touch(endpoint)
    return pumped(state, now) if state.queues.waiting or state.gate.stirred else []


def hand_out(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Dispatch until no queued request may be sent. Adds to `actions`."""
    if state.gate.stirred and not state.pauses.halted:
        gating.look(state, now)
    if not state.settings.queue_enabled and state.queues.waiting:
        sending.send_all(state, now, actions)
    sending.send_open(state, now, actions)
    make_way(state, now, actions)
    if state.queues.waiting:
        state.wait_causes.look(now)


def make_way(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Preempt what queued requests of higher bands would gain by, if any band is preemptible. Adds to `actions`."""
    if state.preemption.on and state.queues.waiting and not state.pool.roles.any:
        from penstock.core.scheduling import preempting  # noqa: PLC0415 - few gateways have such bands

        preempting.make_way(state, now, actions)
