"""The queue: a request's estimate, its permission and time to wait, and its exit.

Every end is reported once, with a Retry-After if coming back may help. Draining is a time limit for all requests.
"""

from __future__ import annotations

import math

from penstock.core.queueing import codel
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of
from penstock.core.queueing.quotas import DAY_S
from penstock.core.queueing.wait_forecast import RETRY_AFTER_S_MAX, retry_after_s
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values import retry
from penstock.core.values.actions import Action, Evict, Fail, Reject
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.request import WORK_PER_OUTPUT_TOKEN, Usage
from penstock.core.values.rows import LimitReached

NO_RETRY_AFTER = frozenset(
    {
        Reason.CONTEXT_LENGTH_EXCEEDED,
        Reason.MODEL_NOT_FOUND,
        Reason.ENDPOINT_NOT_FOUND,
        Reason.OPERATOR,
        Reason.UPSTREAM_ERROR,
        Reason.UPSTREAM_TIMEOUT,
        Reason.STREAM_BROKEN,
    }
)


def refuse(
    state: SchedulerState,
    entry: Entry,
    reason: Reason,
    now: float,
    limit: LimitReached | None = None,
    *,
    elsewhere: bool = False,
) -> Reject:
    """Reject a request that was not admitted.

    `limit`: the tenant's limit that it met; `elsewhere`: another of its models takes it.
    """
    entry.move(Event.REFUSED)
    state.recorder.refused(entry, limit)
    state.recorder.ended(entry, reason, None, now)
    after_s = None if limit is None else limit.retry_after_s
    most = RETRY_AFTER_S_MAX if after_s is None else DAY_S  # an estimate is uncertain, a limit's reset is known
    wait_s = retry_after_s(after_s, state.draw(), most) if reason not in NO_RETRY_AFTER else None
    return Reject(entry.id, reason, wait_s, limit=limit, elsewhere=elsewhere)


def reject(
    state: SchedulerState,
    entry: Entry,
    reason: Reason,
    now: float,
    actions: list[Action],
    *,
    limit: LimitReached | None = None,
) -> None:
    """Reject an admitted request, and refund its tenant. Adds to `actions`.

    `limit`: that of its tenant, if it is the reason.
    """
    if entry.state is not State.REJECTED:
        entry.move(Event.REFUSED)
    after_s = come_back_after_s(state, entry, reason, now)
    state.quotas.refund(entry.accounts, tokens=entry.estimated_tokens, now=now)
    state.recorder.refused(entry, limit)
    state.recorder.ended(entry, reason, None, now)
    forget(state, entry, now)
    actions.append(Reject(entry.id, reason, after_s, limit=limit))


def evict(
    state: SchedulerState, entry: Entry, reason: Reason, now: float, actions: list[Action], *, elsewhere: bool = False
) -> None:
    """End a queued request with `reason`. Adds to `actions`. `elsewhere`: another of its models takes it."""
    after_s = come_back_after_s(state, entry, reason, now)
    unqueue(state, entry, Event.EVICTED, now)
    state.forecast.left(entry, now)
    end(state, entry, None, now, reason)
    actions.append(Evict(entry.id, reason, after_s, elsewhere))


def fail(state: SchedulerState, entry: Entry, failure: Failure, now: float, actions: list[Action]) -> None:
    """End a dispatched request, whose lease is released, with the reason for `failure`. Adds to `actions`."""
    reason = retry.final_reason(failure)
    if failure is Failure.NOT_AN_ENGINE and not any(e.models and entry.model in e.models for e in state.pool):
        reason = Reason.MODEL_NOT_FOUND  # only the caller ever named it
    if failure in retry.REQUEST_REFUSED:  # the engine's refusal is the answer, and cost nothing
        entry.move(Event.FINISHED)
        end(state, entry, Usage(0, 0), now)
        actions.append(Fail(entry.id, reason, None))
        return
    began = entry.state is State.STREAMING or failure is Failure.BROKEN  # a first token is reported only of streams
    entry.move(Event.FAILED)
    end(state, entry, entry.presumed_usage() if began else None, now, reason)
    actions.append(Fail(entry.id, reason, come_back_after_s(state, entry, reason, now)))


def end(state: SchedulerState, entry: Entry, usage: Usage | None, now: float, reason: Reason | None = None) -> None:
    """Settle and forget an admitted request. `usage=None` refunds the whole charge."""
    used, tree = 0, state.queues.bands[entry.band].tree
    if entry.counted_in is not None:
        state.promised.settle(entry, 0.0 if usage is None else usage.work)
    if usage is None:
        state.charges.refund(tree, entry)
    else:
        state.charges.settle(tree, entry, usage)
        used = usage.prompt_tokens + usage.completion_tokens
    state.recorder.ended(entry, reason, usage, now)
    if entry.request.turn is not None:
        state.gate.ended(entry, usage, now)
    if state.quotas.any:
        state.quotas.settle(entry.accounts, reserved=entry.estimated_tokens, used=used, now=now)
    del state.entries[entry.id]
    tree.release(entry.node)
    if state.watcher is not None:
        state.watcher.settled(entry, usage)


def forget(state: SchedulerState, entry: Entry, now: float) -> None:
    """Drop everything held of a request, including its place in the tree."""
    if entry.request.turn is not None:
        state.gate.ended(entry, None, now)
    del state.entries[entry.id]
    state.queues.bands[entry.band].tree.release(entry.node)


def unqueue(state: SchedulerState, entry: Entry, event: Event, now: float) -> None:
    """Take a queued request out of the queue and all counts, because of `event`."""
    state.queues.remove(entry, event)
    state.router.left(entry)
    entry.waited_s += now - entry.queued_since_s
    state.quotas.unqueued(entry.accounts, entry.request.body_bytes, entry.prompt_tokens)
    state.timers.cancel(entry.seq)
    if entry.affinity.may_wait:
        state.affinity.left(entry)


def come_back_after_s(state: SchedulerState, entry: Entry, reason: Reason, now: float) -> float | None:
    """Seconds after which a retry may help, for Retry-After; None if none would."""
    if reason in NO_RETRY_AFTER:
        return None
    if entry.pinned is None:
        wait_s = state.told_wait_s(entry, now)
    else:  # the queue's forecast does not cover one endpoint's slots
        endpoint = state.pool.get(entry.pinned)
        wait_s = None if endpoint is None else endpoint.frees_s(now)
    if held_s := state.pool.held_s(entry.request, now):
        wait_s = max(wait_s or 0.0, held_s)
    return retry_after_s(wait_s, state.draw())


TELLING_S_MAX = 5.0  # queueing off, models unknown: two probes that time out, and some; reports take milliseconds


def appraise(state: SchedulerState, entry: Entry, now: float, *, came_s: float) -> None:
    """Estimate the cost of a request that arrived at `came_s`, and find its flow and place in it."""
    request = entry.request
    estimate = state.estimator.estimate(request.tenant, request.model, contents_of(request), request.output_tokens_max)
    whole = True
    if state.pool.roles.any:
        short = estimate.prompt_tokens < state.settings.divided_tokens_min
        whole = not request.divisible or request.pinned is not None or short
    entry.expect(estimate, whole=whole)
    state.router.look(entry, now)
    state.affinity.arrived(entry, now)
    entry.work = entry.uncached_tokens + WORK_PER_OUTPUT_TOKEN * estimate.output_tokens
    band = state.queues.bands[request.band]
    own_s = math.inf if request.deadline_s is None else request.deadline_s
    band_s = band.settings.deadline_s
    entry.deadline_s = own_s if band_s is None else min(own_s, came_s + band_s)
    entry.key = (request.priority, state.order_keys[request.band](entry, came_s))
    state.allow(entry, band)
    state.place(entry, band)


def admit_to_wait(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """Let a request wait that found nothing open, or reject it if it may not or if waiting would not help."""
    band = state.queues.bands[entry.band]
    reason = too_long(state, entry, band, now)
    if (limit := state.quotas.over_queued(entry.accounts)) is not None:
        reason = Reason.TENANT_LIMIT
    elif entry.wait_s_max <= 0.0 or (
        reason is None and (band.over_bounds() or not make_room(state, entry, now, actions))
    ):
        reason = Reason.QUEUE_FULL
    if reason is not None:
        unqueue(state, entry, Event.REFUSED, now)
        reject(state, entry, reason, now, actions, limit=limit)
    else:
        arm(state, entry, now)
        state.recorder.waits(entry, now)


def too_long(state: SchedulerState, entry: Entry, band: Band, now: float) -> Reason | None:
    """Returns why a request should not wait as long as forecast; None: it may."""
    if entry.held or (entry.deadline_s == math.inf and band.settings.shed_target_s is None):
        return None  # of one that is held it is not known how long it waits
    wait_s = state.estimated_wait_s(entry, now, refusing=True)
    first_token_s = state.forecast.first_token_s(entry, now)
    if wait_s is not None and now + wait_s + first_token_s > entry.deadline_s:
        if now + wait_s + state.forecast.soonest_s(entry, now) > entry.deadline_s:
            state.forecast.refused(entry.model, entry.deadline_s - now, now)
        return Reason.DEADLINE_INFEASIBLE
    return Reason.OVERLOAD if codel.refuses(band.settings, entry, wait_s, now) else None


def make_room(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> bool:
    """Displace requests of lower bands until the queue is within its bounds. False: the newcomer has to go."""
    victims = state.queues.displaced_by(entry) if state.queues.over_bounds() else []
    for victim in victims or ():
        evict(state, victim, Reason.DISPLACED, now, actions)
    return victims is not None


def enqueue(state: SchedulerState, entry: Entry, now: float) -> None:
    """Put `entry` into its flow's queue and all counts."""
    entry.queued_since_s = now
    band = state.queues.bands[entry.band]
    if entry.model not in band.tree.root.backlog and state.pump.holds(entry.model, band):
        band.tree.held.add(entry.model)
    state.queues.push(entry)
    state.quotas.queued(entry.accounts, entry.request.body_bytes, entry.prompt_tokens)
    entered(state, entry, now)


def entered(state: SchedulerState, entry: Entry, now: float) -> None:
    """Note that a request stands in its flow's queue."""
    state.router.waits(entry)
    codel.entered(state.queues.bands[entry.band].settings, entry, now)
    if state.quotas.at_limit(entry.accounts):
        state.capped.cap(entry)


def wait(state: SchedulerState, entry: Entry, now: float) -> None:
    """Queue a request without checking bounds: it was admitted before."""
    enqueue(state, entry, now)
    arm(state, entry, now)
    state.recorder.waits(entry, now)


def arm(state: SchedulerState, entry: Entry, now: float) -> None:
    """Set the timer of `entry`: it waits no longer than allowed, nor than waiting helps."""
    times = (may_wait_until_s(entry), helps_until_s(state, entry, now), shed_s(state, entry))
    state.timers.set(entry.seq, min(times))


def may_wait_until_s(entry: Entry) -> float:
    """Returns when `max_wait` ends a request's wait."""
    return entry.waits_since_s + entry.wait_s_max


def shed_s(state: SchedulerState, entry: Entry) -> float:
    """Returns when a request is shed if its queue is still too long; infinity: never."""
    return math.inf if entry.held else codel.due_s(state.queues.bands[entry.band].settings, entry)


def helps_until_s(state: SchedulerState, entry: Entry, now: float) -> float:
    """Returns the last moment at which sending may meet a request's deadline; infinity: it has none."""
    due_s = entry.deadline_s
    return due_s - state.forecast.soonest_s(entry, now) if due_s != math.inf else due_s


def time_is_up(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """Evict a request whose timer fired. Adds to `actions`.

    It waits on if first tokens now come sooner than when the timer was set, or if its queue has moved.
    """
    if helps_until_s(state, entry, now) <= now:
        evict(state, entry, Reason.DEADLINE_MISSED, now, actions)
    elif may_wait_until_s(entry) <= now:
        alive = state.pool.alive(entry.model)
        evict(state, entry, Reason.QUEUE_TIMEOUT if alive else Reason.NO_ENDPOINT, now, actions)
    elif shed_s(state, entry) <= now:
        evict(state, entry, Reason.OVERLOAD, now, actions)
    else:
        arm(state, entry, now)
