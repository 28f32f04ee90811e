"""Operators: what they stop, put first and take out; and other settings, without anybody being lost."""

from __future__ import annotations

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import top
from penstock.core.scheduling.endpoints import Endpoints
from penstock.core.scheduling.reconfigure import NeedsRestartError, compared, needing_restart, resettle
from penstock.core.scheduling.state import account_of, by_arrival, keys_of
from penstock.core.values.actions import Abort, Action
from penstock.core.values.lifecycle import State
from penstock.core.values.outcome import Reason
from penstock.core.values.settings import SchedulerSettings


class Operators(Endpoints):
    """Operators' verbs."""

    def paused(self, model: str | None, *, now: float) -> list[Action]:
        """Nothing of this model (None: of any) is sent until `resumed`; who comes waits."""
        self._pauses.pause(model)
        self._waits.look(now, at_once=True)
        return []

    def drained(self, model: str | None, *, now: float) -> list[Action]:  # noqa: ARG002
        """Nothing new of this model (None: of any) is let in until `resumed`; who waits is served."""
        self._pauses.drain(model)
        return []

    def resumed(self, model: str | None, *, now: float) -> list[Action]:
        """Take a pause and a drain back; None: all of them."""
        self._pauses.resume(model)
        self._forecast.resumed(model)
        return self._pumped(now)

    def bumped(self, request_id: str, *, now: float) -> list[Action]:
        """A waiting request goes next in its band, after those bumped before it. It still has to find room."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        self._queues.bands[entry.request.band].bumped.setdefault(entry.seq, entry)
        self._recorder.bumped(entry)
        return self._pumped(now)

    def evicted(self, request_id: str, *, now: float) -> list[Action]:
        """An operator takes a request out: who waits is refused, what runs is stopped at its endpoint."""
        entry = self._entries.get(request_id)
        if entry is None:
            return []
        if entry.state is not State.WAITING:
            self._recorder.blamed(entry, Reason.OPERATOR)
            return [Abort(request_id, Reason.OPERATOR)]
        actions: list[Action] = []
        self._evict(entry, Reason.OPERATOR, now, actions)
        self._hand_out(now, actions)
        return actions

    def reconfigured(self, settings: SchedulerSettings, *, now: float) -> list[Action]:
        """Other settings from now on. Nothing that waits or runs is lost; raises before anything changes if it can't.

        Bands are matched by name. What waits keeps its time to wait, unless it gets more now, and its deadline.
        """
        if keys := needing_restart(self._settings, settings):
            raise NeedsRestartError(keys)
        before, self._settings = self._settings, settings
        self._router.reconfigured(settings.routing, settings.router)
        self._rearrange(before)
        waiting = [entry for entry in self._entries.values() if entry.state is State.WAITING]
        self._groups.reconfigured(settings.router, self._charges, waiting, by_arrival=by_arrival(settings))
        self._reserved.share = self._reserved_share()
        self._quotas.reconfigured(settings.tenants, self._entries.values(), now)
        self._pool.reconfigured(settings.health, stale_after_s=settings.stale_after_s)
        self._candidates.settings = settings.admission
        self._backfill.reconfigured(self._charges)
        self._promised.reconfigured()
        self._capped.let_all_go()
        self._under_share.judged_anew(now)
        self._recorder.reconfigured(
            [band.name for band in settings.bands], settings.admission, self._entries.values(), now
        )
        self._budget.share = settings.retry_budget
        self.paced = self._has_pace_limit()
        for endpoint in self._pool:
            self._queues.touch(endpoint)
        return self._pumped(now)

    def _rearrange(self, before: SchedulerSettings) -> None:
        """Other bands, another order and other fairness, for who is here and who comes."""
        settings, entries, bands = self._settings, self._entries.values(), self._queues.bands
        heirs = self._queues.rearrange(settings.bands, settings.bounds)
        changed = compared(before, settings, bands, heirs)
        self._charges = account_of(settings)
        self._forecast.reconfigured(by_request=self._charges.by_request)
        self._keys = keys_of(settings)
        for entry in entries:
            old = bands[entry.request.band]
            rank = heirs.get(old, old).rank
            if old in changed.recounted:
                self._charges.recounted(entry, rank)
            if entry.state is State.WAITING:
                self._affinity.reconfigured(entry)
                if old in changed.reordered:
                    entry.key = (entry.request.priority, self._keys[rank](entry, entry.waits_since_s))
        for band in changed.afresh:
            band.replant()
        resettle(entries, self._queues, bands, heirs, afresh=changed.afresh, place=self._move)
        for entry in entries:
            entry.wait_s_max = max(entry.wait_s_max, self._wait_s_max(self._queues.bands[entry.request.band]))
        for band in changed.reordered:
            band.tree.rekeyed()
        self._reweigh()

    def _move(self, entry: Entry, band: Band) -> None:
        """Find its place in another tree, with all that is known of its flow."""
        before = top(entry.node_of())
        self._place(entry, band)
        self._under_share.moved(before, top(entry.node_of()))
