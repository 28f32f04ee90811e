"""Which requests move away from an engine before their first byte?

A request that waits inside an engine can be neither reordered nor moved there. Our side can end it and queue it anew,
its age kept, as long as nothing of an answer came; what the engine has computed of its prompt by then is lost.
"""

from __future__ import annotations

import math

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.liveness import CHECK_S, LATE_S
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling import returning, sending
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action
from penstock.core.values.catalogue import Cause

RECALLS_MAX = 2  # of one request: each time the work of a prompt may be lost
WAITED_SHARE_MAX = 0.5  # of the longest wait: what has waited that long stays in the engine, where no time-out ends it


def look_who_moves(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Find the endpoints that make no progress, and requeue their requests that have no first byte."""
    stood_still = now - state.look_s > LATE_S
    state.look_s = now + CHECK_S if state.leases and len(state.pool) > 1 else math.inf
    for endpoint in state.pool:
        liveness = endpoint.liveness
        if stood_still:
            liveness.forgive(now)
        was_stuck = liveness.stuck_s is not None
        liveness.look(endpoint.ledger, now)
        if was_stuck and liveness.stuck_s is None:
            state.queues.touch(endpoint)
    for endpoint in state.pool:
        liveness = endpoint.liveness
        if liveness.stuck_s is None and liveness.strain > 1.0 and state.pool.others_move(endpoint, now):
            liveness.found_stuck(now)
            endpoint.failure, endpoint.failed_s = Cause.STUCK, now
            state.queues.touch(endpoint)
        if liveness.stuck_s is not None:
            _from_stuck(state, endpoint, now, actions)
    state.doubts = state.look_s < math.inf and any(endpoint.liveness.doubted for endpoint in state.pool)


def _from_stuck(state: SchedulerState, endpoint: Endpoint, now: float, actions: list[Action]) -> None:
    """What has no first byte at a stuck endpoint goes back to the queue, where it can be served elsewhere."""
    liveness, ledger = endpoint.liveness, endpoint.ledger
    for lease in list(ledger.leases.values()):
        if lease.first_token_s is not None or lease.pending or lease.passed_on:
            continue
        entry = state.leases[lease.serial]
        if liveness.gives_up(lease, ledger, now) and _served_elsewhere(state, entry, now):
            liveness.gave_up(lease, now)
            _recall(state, entry, lease, now)
            returning.requeue(state, entry, now, actions, failure=Cause.STUCK, endpoint=endpoint)


def surplus(state: SchedulerState, endpoint: Endpoint, now: float, actions: list[Action]) -> None:
    """What waits inside an engine whose size was found by sending more than it runs goes back to the queue.

    The last that was sent first, for the engine begins with what came first. The request loses nothing by it: its age
    decides when it is sent again.
    """
    for lease in endpoint.surplus(now):
        entry = state.leases[lease.serial]
        if _may_wait(state, entry):
            _recall(state, entry, lease, now)
            returning.requeue(state, entry, now, actions, failure=Cause.ENGINE_QUEUE, endpoint=endpoint)


def _recall(state: SchedulerState, entry: Entry, lease: Lease, now: float) -> None:
    state.router.failed(entry, lease)
    sending.release(state, entry, now, abandoned=True)
    entry.own_retry().recalls += 1


def _may_wait(state: SchedulerState, entry: Entry) -> bool:
    """Whether it can wait in the queue again, and will not be refused for that."""
    if not state.settings.queue_enabled or state.draining or state.pauses.halted:
        return False
    if entry.retry.recalls >= RECALLS_MAX or not entry.whole or entry.queue.deadline_s < math.inf:
        return False
    return entry.queue.wait_s_max == math.inf or entry.queue.waited_s < WAITED_SHARE_MAX * entry.queue.wait_s_max


def _served_elsewhere(state: SchedulerState, entry: Entry, now: float) -> bool:
    """Whether another endpoint may serve it, and in time."""
    request = entry.request
    if entry.retry.recalls >= RECALLS_MAX or not entry.whole or request.pinned is not None or request.home is not None:
        return False
    if entry.queue.wait_s_max <= entry.queue.waited_s or not sending.in_time(state, entry, now):
        return False
    others = [
        e for e in sending.usable(state, entry, now) if e.liveness.stuck_s is None and not entry.excludes(e.name, now)
    ]
    if not state.settings.queue_enabled and (
        state.quotas.at_limit(entry.account) or not state.pauses.sends(entry.model)
    ):
        return False
    return bool(others)
