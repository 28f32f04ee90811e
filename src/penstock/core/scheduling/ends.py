"""How does a request end: refused, evicted, failed or done, and what is settled when it does.

Each end is told once, with a Retry-After where coming back may help.
"""

from __future__ import annotations

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.wait_forecast import retry_after_s
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values import retry
from penstock.core.values.actions import Action, Evict, Fail, Reject
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.outcome import Reason
from penstock.core.values.request import Usage
from penstock.core.values.retry import Failure


class Ends(SchedulerState):
    """Ends of requests."""

    def _refuse(self, entry: Entry, reason: Reason, now: float, after_s: float | None = None) -> Reject:
        """Refuse what was not even looked at."""
        entry.move(Event.REFUSED)
        self._recorder.ended(entry, reason, None, now)
        wait_s = retry_after_s(after_s, self._draw()) if reason not in _NO_RETRY_AFTER else None
        return Reject(entry.request.id, reason, wait_s)

    def _reject(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        if entry.state is not State.REJECTED:
            entry.move(Event.REFUSED)
        after_s = self._retry_after_s(entry, reason, now)
        self._quotas.refund(entry.account, tokens=entry.estimated_tokens, now=now)
        self._recorder.ended(entry, reason, None, now)
        self._forget(entry)
        actions.append(Reject(entry.request.id, reason, after_s))

    def _evict(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        after_s = self._retry_after_s(entry, reason, now)
        self._unqueue(entry, Event.EVICTED, now)
        self._forecast.left(entry, now)
        self._end(entry, None, now, reason)
        actions.append(Evict(entry.request.id, reason, after_s))

    def _fail(self, entry: Entry, failure: Failure, now: float, actions: list[Action]) -> None:
        reason = retry.final_reason(failure)
        began = entry.state is State.STREAMING or failure is Failure.BROKEN  # of what does not stream it is not told
        entry.move(Event.FAILED)
        self._end(entry, entry.presumed_usage() if began else None, now, reason)
        actions.append(Fail(entry.request.id, reason, self._retry_after_s(entry, reason, now)))

    def _end(self, entry: Entry, usage: Usage | None, now: float, reason: Reason | None = None) -> None:
        """An admitted request is over: settle what it was charged. None: it used nothing."""
        used = 0
        self._promised.settle(entry, 0.0 if usage is None else usage.work)
        if usage is None:
            self._charges.refund(self._tree(entry), entry)
        else:
            self._charges.settle(self._tree(entry), entry, usage)
            used = usage.prompt_tokens + usage.completion_tokens
        self._recorder.ended(entry, reason, usage, now)
        self._quotas.settle(entry.account, reserved=entry.estimated_tokens, used=used, now=now)
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.request.id]
        self._tree(entry).release(entry.node_of())

    def _unqueue(self, entry: Entry, event: Event, now: float) -> None:
        self._queues.remove(entry, event)
        entry.waited_s += now - entry.queued_since_s
        self._quotas.unqueued(entry.account, entry.request.body_bytes, entry.estimate.prompt_tokens)
        self._timers.cancel(entry.seq)
        if entry.choosy:
            self._affinity.left(entry)
        if entry.siblings:
            self._groups.left(entry)

    def _retry_after_s(self, entry: Entry, reason: Reason, now: float) -> float | None:
        if reason in _NO_RETRY_AFTER:
            return None
        return retry_after_s(self._estimated_wait_s(entry, now), self._draw())


_NO_RETRY_AFTER = frozenset(
    {
        Reason.MODEL_NOT_FOUND,
        Reason.ENDPOINT_NOT_FOUND,
        Reason.OPERATOR,
        Reason.UPSTREAM_ERROR,
        Reason.UPSTREAM_TIMEOUT,
        Reason.STREAM_BROKEN,
    }
)
