"""What becomes of a request whose endpoint did not serve it: back into the queue, elsewhere at once, or failed?"""

from __future__ import annotations

import math

from penstock.core.dispatch import fit
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling import ends, sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values import retry
from penstock.core.values.actions import Action, Evict, Requeue
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import Event
from penstock.core.values.retry import Verdict

FREE_ELSEWHERE = frozenset(
    {Failure.KEY_REFUSED, Failure.MODEL_GONE, Failure.NOT_AN_ENGINE}
)  # costs nobody work; once per endpoint
ONCE = FREE_ELSEWHERE | retry.REQUEST_REFUSED  # it would answer the same again
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
    """Let a request wait again with its age kept, away from the endpoint that did not serve it.

    `failure`: a cause where it was taken back (`recalling.py`). After an engine's queue or a stale connection the same
    endpoint may be next.
    `endpoint`: None where it is gone.
    """
    state.charges.refund(state.tree_of(entry), entry)
    state.promised.settle(entry, 0.0)
    state.recorder.requeued(entry, failure, endpoint.name if endpoint is not None else "", now)
    if endpoint is not None and failure not in (Cause.ENGINE_QUEUE, Failure.STALE):
        avoid_s = math.inf if failure in ONCE else AVOID_S
        if failure is Failure.BUSY:
            avoid_s = min(REFUSED_AVOID_S * 2 ** min(entry.retry.refusals - 1, 16), REFUSED_AVOID_S_MAX)
        retry = entry.own_retry()
        retry.excluded = {name: until for name, until in retry.excluded.items() if until > now}
        retry.excluded[endpoint.name] = now + avoid_s
    over = state.draining and state.queue_until_s is None
    elsewhere: list[Endpoint] = []
    waits = state.settings.queue_enabled and entry.request.pinned is None
    if not waits and not over and state.pauses.sends(entry.model):
        elsewhere = [e for e in sending.usable(state, entry, now) if not entry.excludes(e.name, now)]
        if state.quotas.at_limit(entry.account):
            elsewhere = []
    if not waits and not over and not elsewhere and not (state.pauses.halted and entry.request.pinned is None):
        assert isinstance(failure, Failure), "what can't wait is taken back only where it can go elsewhere"
        ends.fail(state, entry, failure, now, actions)  # it can't wait, so this was its last answer
        return
    entry.move(Event.REQUEUED)
    actions.append(Requeue(entry.request.id, failure))
    left_s = entry.queue.wait_s_max - entry.queue.waited_s
    if elsewhere:
        actions.append(sending.dispatch(state, entry, elsewhere, now))
    elif over or left_s <= 0:
        entry.move(Event.EVICTED)
        reason = Reason.DRAINING if over else Reason.QUEUE_TIMEOUT
        ends.end(state, entry, None, now, reason)
        actions.append(Evict(entry.request.id, reason, ends.come_back_after_s(state, entry, reason, now)))
    else:
        state.router.look(entry, now)
        state.under_share.returned(entry, now)
        waiting.wait(state, entry, now)


def verdict(state: SchedulerState, entry: Entry, failure: Failure, endpoint: Endpoint | None, now: float) -> Verdict:
    """Count a failure, and judge whether the request goes back to the queue. `endpoint`: None where it is gone."""
    if failure is Failure.BUSY:
        entry.own_retry().refusals += 1
    elif failure not in FREE_ELSEWHERE:
        entry.own_retry().attempts += 1
    elif not others_serve(state, entry, endpoint, now) and not (
        failure in (Failure.KEY_REFUSED, Failure.NOT_AN_ENGINE) and state.pool.telling
    ):
        return Verdict.FAIL
    if entry.request.pinned is not None and failure is not Failure.STALE:
        return Verdict.FAIL
    if failure in retry.REQUEST_REFUSED and (endpoint is None or not _may_fit(state, entry, failure, endpoint, now)):
        return Verdict.FAIL
    return retry.verdict(
        failure,
        attempts=entry.retry.attempts,
        attempts_max=state.settings.attempts_max,
        budget=state.budget,
        now=now,
        under_way=len(state.leases),
    )


def others_serve(state: SchedulerState, entry: Entry, endpoint: Endpoint | None, now: float) -> bool:
    """True if another endpoint has the model, as far as is known, however it fares now."""
    return any(e is not endpoint and e.serves(entry.model) and not entry.excludes(e.name, now) for e in state.pool)


def _may_fit(state: SchedulerState, entry: Entry, failure: Failure, refused_by: Endpoint, now: float) -> bool:
    """True if another endpoint, in service, may take what this one refused."""
    for e in state.pool:
        serves = e is not refused_by and e.in_service and e.serves(entry.model)
        if serves and not entry.excludes(e.name, now) and fit.may_take(e, entry, failure, refused_by):
            return True
    return False


def evict_unknown(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Take out of the queue what waits for models that, as is known now, no endpoint serves."""
    for band in state.queues.bands:
        unknown = {model for model in band.tree.models() if state.pool.knows(model, now) is False}
        for entry in [e for e in band.entries.values() if e.request.model in unknown] if unknown else ():
            ends.evict(state, entry, Reason.MODEL_NOT_FOUND, now, actions)


def evict_falling_back(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Take out of the queue what need not wait for an endpoint to come back, for another model is asked instead."""
    for band in state.queues.bands:
        gone = {model for model in band.tree.models() if not state.pool.alive(model)}
        for entry in [e for e in band.entries.values() if e.request.falls_back and e.model in gone] if gone else ():
            ends.evict(state, entry, Reason.NO_ENDPOINT, now, actions)
