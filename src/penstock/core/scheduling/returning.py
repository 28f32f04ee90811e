"""Failures: their evidence about the endpoint, and the next step of the request.

Before anything of an answer came, a request can go back to the queue with its age kept, or elsewhere at once; the
engine's work on its prompt is lost. So can one that is queued inside an engine: because its engine makes no progress,
or because more was sent than the engine runs.
"""

from __future__ import annotations

import math

from penstock.core.dispatch import fit
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.liveness import CHECK_S, LATE_S
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling import sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values import retry
from penstock.core.values.actions import Action, Evict, Requeue
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import Event

# Failures that are answers, so the process behind them runs.
_ANSWERS = frozenset(
    {Failure.BUSY, Failure.SERVER_ERROR, Failure.KEY_REFUSED, Failure.MODEL_GONE, Failure.NOT_AN_ENGINE}
)


def well(state: SchedulerState, endpoint: Endpoint, now: float, *, refused: bool = False) -> None:
    """The endpoint answered. A request that it `refused` shows that it is well, but not that it is an engine."""
    health = endpoint.health
    changes = now < health.ejected_until_s
    health.succeeded()
    if not refused:
        state.pool.answered += 1
        changes = endpoint.proof.succeeded() or changes
    if changes:
        state.health_changed(now)
    state.queues.touch(endpoint)


def blame(
    state: SchedulerState, endpoint: Endpoint, model: str, failure: Failure, now: float, *, retry_after_s: float
) -> None:
    """A request for `model` failed there. `retry_after_s`: how long its engine asked to be left alone."""
    if failure in retry.REQUEST_REFUSED:
        endpoint.liveness.moves(now)
        well(state, endpoint, now, refused=True)
        return
    endpoint.failure, endpoint.failed_s = failure, now
    if failure is Failure.CONNECT:
        endpoint.health.probed(up=False, now=now)
        state.router.down(endpoint)
    elif failure is Failure.BUSY:
        endpoint.health.refused(now, retry_after_s)
    elif failure is Failure.NOT_AN_ENGINE:
        endpoint.proof.struck(now)
    elif failure is Failure.KEY_REFUSED:
        endpoint.proof.refuses_key(now)
    elif failure is Failure.MODEL_GONE:
        if not endpoint.proof.stands and state.pool.stands_in(endpoint, model):
            endpoint.proof.struck(now)
    elif failure is not Failure.STALE:
        endpoint.health.failed(now)
    if failure in _ANSWERS:
        endpoint.liveness.moves(now)
    state.queues.touch(endpoint)
    state.health_changed(now)


def reported(state: SchedulerState, endpoint: Endpoint, failure: Failure, now: float) -> None:
    """Note what a proxy reports as a `failure`: it judges no endpoint, and a refused request shows that it answers."""
    if failure in retry.REQUEST_REFUSED:
        endpoint.liveness.moves(now)
        well(state, endpoint, now, refused=True)
    else:
        endpoint.failure, endpoint.failed_s = failure, now


def seen_through(state: SchedulerState, endpoint: Endpoint, now: float) -> None:
    """Close an endpoint that refuses everything at once, if others serve all of its models."""
    if state.pool.replaces(endpoint):
        endpoint.proof.close(now)
        state.health_changed(now)


# Failures that cost no engine's work: not counted as attempts, once per endpoint.
FREE_ELSEWHERE = frozenset({Failure.KEY_REFUSED, Failure.MODEL_GONE, Failure.NOT_AN_ENGINE})
ONCE = FREE_ELSEWHERE | retry.REQUEST_REFUSED  # the endpoint would answer the same again
AVOID_S = 1.0  # a request that failed at an endpoint is tried elsewhere for that long
REFUSED_AVOID_S = 0.1  # a request that was refused; doubles with each refusal of the same request
REFUSED_AVOID_S_MAX = 2.0


def requeue(
    state: SchedulerState,
    entry: Entry,
    now: float,
    actions: list[Action],
    *,
    failure: Failure | Cause,
    endpoint: Endpoint | None,
) -> None:
    """Queue a request again with its age kept, away from the endpoint that did not serve it (None: it is gone).

    `failure`: a cause if it was recalled. After an engine's queue or a stale connection the same endpoint may be next.
    """
    state.charges.refund(state.queues.bands[entry.band].tree, entry)
    state.promised.settle(entry, 0.0)
    state.recorder.requeued(entry, failure, endpoint.name if endpoint is not None else "", now)
    if endpoint is not None and failure not in (Cause.ENGINE_QUEUE, Cause.PREEMPTED, Failure.STALE):
        avoid_s = math.inf if failure in ONCE else AVOID_S
        if failure is Failure.BUSY:
            avoid_s = min(REFUSED_AVOID_S * 2 ** min(entry.retry.refusals - 1, 16), REFUSED_AVOID_S_MAX)
        retry = entry.own_retry()
        retry.excluded = {name: until for name, until in retry.excluded.items() if until > now}
        retry.excluded[endpoint.name] = now + avoid_s
    over = state.draining and state.queue_until_s is None
    elsewhere: list[Endpoint] = []
    waits = state.settings.queue_enabled and entry.pinned is None
    if not waits and not over and state.pauses.sends(entry.model):
        elsewhere = [e for e in sending.usable(state, entry, now) if not entry.excludes(e.name, now)]
        if state.quotas.at_limit(entry.accounts):
            elsewhere = []
    if not waits and not over and not elsewhere and not (state.pauses.halted and entry.pinned is None):
        assert isinstance(failure, Failure), "a request that can't wait is recalled only if it can go elsewhere"
        waiting.fail(state, entry, failure, now, actions)  # it can't wait, so this failure is its end
        return
    entry.move(Event.REQUEUED)
    actions.append(Requeue(entry.id, failure))
    left_s = entry.wait_s_max - entry.waited_s
    if elsewhere:
        actions.append(sending.dispatch(state, entry, elsewhere, now))
    elif over or (left_s <= 0 < entry.waited_s):
        entry.move(Event.EVICTED)
        reason = Reason.DRAINING if over else Reason.QUEUE_TIMEOUT
        waiting.end(state, entry, None, now, reason)
        actions.append(Evict(entry.id, reason, waiting.come_back_after_s(state, entry, reason, now)))
    else:
        state.router.look(entry, now)
        state.under_share.returned(entry, now)
        waiting.wait(state, entry, now)


def may_retry(state: SchedulerState, entry: Entry, failure: Failure, endpoint: Endpoint | None, now: float) -> bool:
    """Count a failure. Returns True if the request is retried. `endpoint`: None if it is gone."""
    if failure is Failure.BUSY:
        entry.own_retry().refusals += 1
    elif failure not in FREE_ELSEWHERE:
        entry.own_retry().attempts += 1
    elif not others_serve(state, entry, endpoint, now) and not (
        failure in (Failure.KEY_REFUSED, Failure.NOT_AN_ENGINE) and state.pool.telling
    ):
        return False
    if entry.pinned is not None and failure is not Failure.STALE:
        return False
    if failure in retry.REQUEST_REFUSED and (endpoint is None or not _may_fit(state, entry, failure, endpoint, now)):
        return False
    return retry.may_retry(
        failure,
        attempts=entry.retry.attempts,
        attempts_max=state.settings.attempts_max,
        budget=state.budget,
        now=now,
        under_way=len(state.leases),
    )


def others_serve(state: SchedulerState, entry: Entry, endpoint: Endpoint | None, now: float) -> bool:
    """True if another endpoint has the model, healthy or not."""
    return any(e is not endpoint and e.serves(entry.model) and not entry.excludes(e.name, now) for e in state.pool)


def _may_fit(state: SchedulerState, entry: Entry, failure: Failure, refused_by: Endpoint, now: float) -> bool:
    """True if another endpoint in service may accept what this one refused."""
    if state.affinity.only(entry, now) is not None:
        return False
    for e in state.pool:
        serves = e is not refused_by and e.in_service and e.serves(entry.model)
        if serves and not entry.excludes(e.name, now) and fit.may_take(e, entry, failure, refused_by, now):
            return True
    return False


def evict_unknown(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Evict queued requests for models that no endpoint serves, as is known now."""
    for band in state.queues.bands:
        unknown = {model for model in band.models() if state.pool.knows(model, now) is False}
        for entry in [e for e in band.entries.values() if e.model in unknown] if unknown else ():
            waiting.evict(state, entry, Reason.MODEL_NOT_FOUND, now, actions)


def evict_going_elsewhere(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Evict queued requests whose model has no endpoint now, and which another model may serve."""
    for band in state.queues.bands:
        gone = {model for model in band.models() if not state.works(model, now)}
        waits = [entry for entry in band.entries.values() if entry.model in gone] if gone else ()
        for entry in [entry for entry in waits if state.goes_elsewhere(entry.request, now)]:
            elsewhere = state.other_works(entry.request, now)
            waiting.evict(state, entry, Reason.NO_ENDPOINT, now, actions, elsewhere=elsewhere)


RECALLS_MAX = 2  # of one request: each may lose the work on its prompt
WAITED_SHARE_MAX = 0.5  # of `max_wait`: a request that waited longer stays in the engine, where no time-out ends it


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
    """Requeue the requests of a stuck endpoint that have no first byte and can be served elsewhere."""
    liveness, ledger = endpoint.liveness, endpoint.ledger
    for lease in list(ledger.leases.values()):
        if lease.first_token_s is not None or lease.pending or lease.passed_on:
            continue
        entry = state.leases[lease.serial]
        if liveness.gives_up(lease, ledger, now) and _served_elsewhere(state, entry, now):
            liveness.gave_up(lease, now)
            recall(state, entry, lease, now)
            entry.own_retry().recalls += 1
            requeue(state, entry, now, actions, failure=Cause.STUCK, endpoint=endpoint)


def surplus(state: SchedulerState, endpoint: Endpoint, now: float, actions: list[Action]) -> None:
    """Requeue requests that are queued inside an engine, the last sent first, because it begins with the first.

    More was sent than it runs, to measure its slots. The requests lose nothing: their age decides their next turn.
    """
    for lease in endpoint.ledger.limit.surplus(endpoint.ledger):
        entry = state.leases[lease.serial]
        if entry.retry.recalls < RECALLS_MAX and not entry.request.carried and may_wait(state, entry):
            recall(state, entry, lease, now)
            entry.own_retry().recalls += 1
            requeue(state, entry, now, actions, failure=Cause.ENGINE_QUEUE, endpoint=endpoint)


def recall(state: SchedulerState, entry: Entry, lease: Lease, now: float) -> None:
    """Take a request back from an engine that goes on until it notices."""
    state.router.failed(entry, lease)
    sending.release(state, entry, now, abandoned=True)


def may_wait(state: SchedulerState, entry: Entry) -> bool:
    """Whether a request can be queued again without being refused."""
    if not state.settings.queue_enabled or state.draining or state.pauses.halted:
        return False
    if not entry.whole or entry.deadline_s < math.inf:
        return False
    return entry.wait_s_max == math.inf or entry.waited_s < WAITED_SHARE_MAX * entry.wait_s_max


def _served_elsewhere(state: SchedulerState, entry: Entry, now: float) -> bool:
    """Whether another endpoint may serve a request in time."""
    request = entry.request
    if entry.retry.recalls >= RECALLS_MAX or not entry.whole or request.pinned is not None or request.home is not None:
        return False
    if request.carried:
        return False
    if entry.wait_s_max <= entry.waited_s or not sending.in_time(state, entry, now):
        return False
    others = [
        e for e in sending.usable(state, entry, now) if e.liveness.stuck_s is None and not entry.excludes(e.name, now)
    ]
    if not state.settings.queue_enabled and (
        state.quotas.at_limit(entry.accounts) or not state.pauses.sends(entry.model)
    ):
        return False
    return bool(others)
