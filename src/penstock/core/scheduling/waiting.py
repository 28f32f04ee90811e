"""Waiting: who may wait, for how long, and what time does to those who do. Draining is time that ends for all."""

from __future__ import annotations

import math

from penstock.core.queueing import codel
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling.sending import Sending
from penstock.core.values.actions import Abort, Action
from penstock.core.values.lifecycle import Event
from penstock.core.values.outcome import Reason


class Waiting(Sending):
    """Those who wait, and time."""

    def next_deadline(self) -> float | None:
        """When `expire` must be called next, None for never."""
        due_s = self._timers.next()
        if self._look_s != math.inf:
            due_s = self._look_s if due_s is None else min(due_s, self._look_s)
        if not self._draining:
            return due_s
        times = (due_s, self._queue_until_s, self._stop_at_s)
        return min((time for time in times if time is not None), default=None)

    def _let_time_pass(self, now: float, actions: list[Action]) -> None:
        for key in self._timers.due(now):
            if isinstance(key, str):
                endpoint = self._pool.get(key)
                if endpoint is not None:
                    self._queues.touch(endpoint)
                    self._look_at(endpoint, now)
                continue
            entry = self._queues.find(key)
            if entry is not None:
                self._time_is_up(entry, now, actions)
        self._expire_drain(now, actions)
        self._hand_out(now, actions)

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        """Admit nothing more. What waits is served until `queue_until_s`, what runs may go on until `stop_at_s`."""
        self._draining = True
        self._queue_until_s = queue_until_s
        self._stop_at_s = stop_at_s
        actions: list[Action] = []
        self._expire_drain(now, actions)
        return actions

    def _admit_to_wait(self, entry: Entry, now: float, actions: list[Action]) -> None:
        """It found nothing open: may it wait, and would that help?"""
        band = self._queues.bands[entry.request.band]
        reason = self._too_long(entry, band, now)
        if self._quotas.over_queued(entry.account) is not None:
            reason = Reason.TENANT_LIMIT
        elif reason is None and (band.over_bounds() or not self._make_room(entry, now, actions)):
            reason = Reason.QUEUE_FULL
        if reason is not None:
            self._unqueue(entry, Event.REFUSED, now)
            self._reject(entry, reason, now, actions)
        else:
            self._arm(entry, now)
            self._groups.waits(entry)
            self._recorder.waits(entry, now)

    def _too_long(self, entry: Entry, band: Band, now: float) -> Reason | None:
        """Why it had better not wait for as long as is foreseen; most have all the time there is."""
        if entry.deadline_s == math.inf and band.settings.shed_target_s is None:
            return None
        wait_s = self._estimated_wait_s(entry, now, refusing=True)
        first_token_s = self._forecast.first_token_s(entry, now)
        if wait_s is not None and now + wait_s + first_token_s > entry.deadline_s:
            if now + wait_s + self._forecast.soonest_s(entry, now) > entry.deadline_s:
                self._forecast.refused(entry.model, entry.deadline_s - now, now)
            return Reason.DEADLINE_INFEASIBLE
        return Reason.OVERLOAD if codel.refuses(band.settings, entry, wait_s, now) else None

    def _make_room(self, entry: Entry, now: float, actions: list[Action]) -> bool:
        """Keep the queue within its bounds, at the cost of lower bands. False: the newcomer has to go."""
        victims = self._queues.displaced_by(entry) if self._queues.over_bounds() else []
        for victim in victims or ():
            self._evict(victim, Reason.DISPLACED, now, actions)
        return victims is not None

    def _enqueue(self, entry: Entry, now: float) -> None:
        entry.queued_since_s = now
        self._queues.push(entry)
        codel.entered(self._queues.bands[entry.request.band].settings, entry, now)
        self._quotas.queued(entry.account, entry.request.body_bytes, entry.estimate.prompt_tokens)
        if self._quotas.held(entry.account):
            self._capped.hold(entry)

    def _arm(self, entry: Entry, now: float) -> None:
        """See to it that nobody waits longer than it may, or than it helps."""
        times = (self._may_wait_until_s(entry), self._helps_until_s(entry, now), self._shed_s(entry))
        self._timers.set(entry.seq, min(times))

    def _may_wait_until_s(self, entry: Entry) -> float:
        return entry.waits_since_s + entry.wait_s_max

    def _shed_s(self, entry: Entry) -> float:
        return codel.due_s(self._queues.bands[entry.request.band].settings, entry)

    def _helps_until_s(self, entry: Entry, now: float) -> float:
        due_s = entry.deadline_s
        return due_s - self._forecast.soonest_s(entry, now) if due_s != math.inf else due_s

    def _time_is_up(self, entry: Entry, now: float, actions: list[Action]) -> None:
        """Its time has come, unless first tokens come sooner by now than when it was armed, or its queue moved on."""
        if self._helps_until_s(entry, now) <= now:
            self._evict(entry, Reason.DEADLINE_MISSED, now, actions)
        elif self._may_wait_until_s(entry) <= now:
            alive = self._pool.alive(entry.model)
            self._evict(entry, Reason.QUEUE_TIMEOUT if alive else Reason.NO_ENDPOINT, now, actions)
        elif self._shed_s(entry) <= now:
            self._evict(entry, Reason.OVERLOAD, now, actions)
        else:
            self._arm(entry, now)

    def _expire_drain(self, now: float, actions: list[Action]) -> None:
        stop = self._stop_at_s is not None and self._stop_at_s <= now
        if self._queue_until_s is not None and (stop or self._queue_until_s <= now):
            self._queue_until_s = None
            for band in self._queues.bands:
                for entry in list(band.entries.values()):
                    self._evict(entry, Reason.DRAINING, now, actions)
        if stop:
            self._stop_at_s = None
            for entry in self._leases.values():
                self._recorder.blamed(entry, Reason.DRAINING)
                actions.append(Abort(entry.request.id, Reason.DRAINING))
