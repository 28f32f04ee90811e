"""What does time do: whose wait is over, what looks again, who shows no movement, and when does a drain end?"""

from __future__ import annotations

import math

from penstock.core.endpoints.movement import CHECK_S, LATE_S
from penstock.core.scheduling import ends, recalling, sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Abort, Action
from penstock.core.values.catalogue import Cause, Reason


class TimeFacts:
    """What the scheduler is told of time: that it passed, and when all has to end."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def expire(self, *, now: float) -> list[Action]:
        """Let time pass, and return what follows.

        Requests that waited too long are evicted; what time may have opened is looked at again, and so is which engines
        move.
        """
        state = self._state
        actions: list[Action] = []
        if now >= state.look_s:
            _look_who_moves(state, now, actions)
        _let_time_pass(state, now, actions)
        return actions

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        """Admit nothing more. What waits is served until `queue_until_s`, what runs may go on until `stop_at_s`."""
        state = self._state
        state.draining = True
        state.queue_until_s = queue_until_s
        state.stop_at_s = stop_at_s
        actions: list[Action] = []
        _expire_drain(state, now, actions)
        return actions


def _let_time_pass(state: SchedulerState, now: float, actions: list[Action]) -> None:
    for key in state.timers.due(now):
        if isinstance(key, str):
            endpoint = state.pool.get(key)
            if endpoint is not None:
                state.queues.touch(endpoint)
                sending.look(state, endpoint, now)
                if endpoint.overfull:
                    recalling.surplus(state, endpoint, now, actions)
                state.look_again(endpoint, endpoint.looks_s(now))
            continue
        entry = state.queues.find(key)
        if entry is not None:
            waiting.time_is_up(state, entry, now, actions)
    _expire_drain(state, now, actions)
    sending.hand_out(state, now, actions)


def _expire_drain(state: SchedulerState, now: float, actions: list[Action]) -> None:
    stop = state.stop_at_s is not None and state.stop_at_s <= now
    if state.queue_until_s is not None and (stop or state.queue_until_s <= now):
        state.queue_until_s = None
        for band in state.queues.bands:
            for entry in list(band.entries.values()):
                ends.evict(state, entry, Reason.DRAINING, now, actions)
    if stop:
        state.stop_at_s = None
        for entry in state.leases.values():
            state.recorder.blamed(entry, Reason.DRAINING)
            actions.append(Abort(entry.request.id, Reason.DRAINING))


def _look_who_moves(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Find out who shows no movement, and take back what has no first byte there."""
    stood_still = now - state.look_s > LATE_S
    state.look_s = now + CHECK_S if state.leases and len(state.pool) > 1 else math.inf
    for endpoint in state.pool:
        movement = endpoint.movement
        if stood_still:
            movement.forgive(now)
        was_stuck = movement.stuck_s is not None
        movement.look(endpoint.ledger, now)
        if was_stuck and movement.stuck_s is None:
            state.queues.touch(endpoint)
    for endpoint in state.pool:
        movement = endpoint.movement
        if movement.stuck_s is None and movement.strain > 1.0 and state.pool.others_move(endpoint, now):
            movement.found_stuck(now)
            endpoint.failure, endpoint.failed_s = Cause.STUCK, now
            state.queues.touch(endpoint)
        if movement.stuck_s is not None:
            recalling.from_stuck(state, endpoint, now, actions)
    state.doubts = state.look_s < math.inf and any(endpoint.movement.doubted for endpoint in state.pool)
