"""How does a request end: refused, evicted, failed or done, and what is settled when it does.

Each end is told once, with a Retry-After where coming back may help.
"""

from __future__ import annotations

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.quotas import DAY_S
from penstock.core.queueing.wait_forecast import RETRY_AFTER_S_MAX, retry_after_s
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values import retry
from penstock.core.values.actions import Action, Evict, Fail, Reject
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.request import Usage
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
    state: SchedulerState, entry: Entry, reason: Reason, now: float, limit: LimitReached | None = None
) -> Reject:
    """Reject a request that was not admitted. `limit`: that of its tenant, and when coming back may help."""
    entry.move(Event.REFUSED)
    state.recorder.refused(entry, limit)
    state.recorder.ended(entry, reason, None, now)
    after_s = None if limit is None else limit.retry_after_s
    most = RETRY_AFTER_S_MAX if after_s is None else DAY_S  # an estimate is no promise; what a limit says is known
    wait_s = retry_after_s(after_s, state.draw(), most) if reason not in NO_RETRY_AFTER else None
    return Reject(entry.request.id, reason, wait_s, limit)


def reject(
    state: SchedulerState,
    entry: Entry,
    reason: Reason,
    now: float,
    actions: list[Action],
    *,
    limit: LimitReached | None = None,
) -> None:
    """Reject an admitted request, and give its tenant back what was reserved for it. Adds to `actions`.

    `limit`: that of its tenant, where it is the reason.
    """
    if entry.state is not State.REJECTED:
        entry.move(Event.REFUSED)
    after_s = come_back_after_s(state, entry, reason, now)
    state.quotas.refund(entry.account, tokens=entry.estimated_tokens, now=now)
    state.recorder.refused(entry, limit)
    state.recorder.ended(entry, reason, None, now)
    forget(state, entry)
    actions.append(Reject(entry.request.id, reason, after_s, limit))


def evict(state: SchedulerState, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
    """Take a waiting request out of the queue for good; `reason` is what its client is told. Adds to `actions`."""
    after_s = come_back_after_s(state, entry, reason, now)
    unqueue(state, entry, Event.EVICTED, now)
    state.forecast.left(entry, now)
    end(state, entry, None, now, reason)
    actions.append(Evict(entry.request.id, reason, after_s))


def fail(state: SchedulerState, entry: Entry, failure: Failure, now: float, actions: list[Action]) -> None:
    """End a request that was dispatched, and whose lease is released, by what `failure` comes to. Adds to `actions`."""
    reason = retry.final_reason(failure)
    if failure is Failure.NOT_AN_ENGINE and not any(e.models and entry.model in e.models for e in state.pool):
        reason = Reason.MODEL_NOT_FOUND  # nobody but the caller ever named it
    if failure in retry.REQUEST_REFUSED:  # the engine's answer stands, and cost nothing
        entry.move(Event.FINISHED)
        end(state, entry, Usage(0, 0), now)
        actions.append(Fail(entry.request.id, reason, None))
        return
    began = entry.state is State.STREAMING or failure is Failure.BROKEN  # of what does not stream it is not told
    entry.move(Event.FAILED)
    end(state, entry, entry.presumed_usage() if began else None, now, reason)
    actions.append(Fail(entry.request.id, reason, come_back_after_s(state, entry, reason, now)))


def end(state: SchedulerState, entry: Entry, usage: Usage | None, now: float, reason: Reason | None = None) -> None:
    """Settle and forget an admitted request. `usage=None` refunds the whole charge."""
    used = 0
    state.promised.settle(entry, 0.0 if usage is None else usage.work)
    if usage is None:
        state.charges.refund(state.tree_of(entry), entry)
    else:
        state.charges.settle(state.tree_of(entry), entry, usage)
        used = usage.prompt_tokens + usage.completion_tokens
    state.recorder.ended(entry, reason, usage, now)
    state.quotas.settle(entry.account, reserved=entry.estimated_tokens, used=used, now=now)
    forget(state, entry)
    if state.watcher is not None:
        state.watcher.settled(entry, usage)


def forget(state: SchedulerState, entry: Entry) -> None:
    """Drop all that is held of a request, its place in the tree included."""
    del state.entries[entry.request.id]
    state.tree_of(entry).release(entry.node_of())


def unqueue(state: SchedulerState, entry: Entry, event: Event, now: float) -> None:
    """Take a waiting request out of the queue, because of `event`, and out of all that counts those who wait."""
    state.queues.remove(entry, event)
    entry.queue.left(now)
    state.quotas.unqueued(entry.account, entry.request.body_bytes, entry.estimate.prompt_tokens)
    state.timers.cancel(entry.seq)
    if entry.affinity.may_wait:
        state.affinity.left(entry)


def come_back_after_s(state: SchedulerState, entry: Entry, reason: Reason, now: float) -> float | None:
    """Seconds after which coming back may help, for Retry-After; None where it would not."""
    if reason in NO_RETRY_AFTER:
        return None
    wait_s = state.estimated_wait_s(entry, now)
    if entry.request.pinned is not None:  # what was learned of the queue tells nothing of this endpoint's slots
        endpoint = state.pool.get(entry.request.pinned)
        frees_s = None if endpoint is None else endpoint.frees_s(now)
        wait_s = max(wait_s or 0.0, frees_s or 0.0) or None
    if held_s := state.pool.held_s(entry.request, now):
        wait_s = max(wait_s or 0.0, held_s)
    return retry_after_s(wait_s, state.draw())
