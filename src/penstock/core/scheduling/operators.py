"""Operators: what they stop, put first and take out; and other settings, without anybody being lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import top
from penstock.core.scheduling import ends, sending
from penstock.core.scheduling.reconfigure import NeedsRestartError, compared, needing_restart, resettle
from penstock.core.scheduling.state import SchedulerState, account_of, by_arrival, keys_of
from penstock.core.values.actions import Abort, Action
from penstock.core.values.catalogue import Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.settings import Limits, SchedulerSettings, part_of, parts_of


class OperatorFacts:
    """What operators tell the scheduler: what they stop, put first and take out, and new settings."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def paused(self, model: str | None, *, now: float) -> list[Action]:
        """Send nothing of this model (None: of any) until `resumed`; requests that come wait."""
        state = self._state
        state.pauses.pause(model)
        state.holds_changed()
        state.wait_causes.look(now, at_once=True)
        return []

    def drained(self, model: str | None, *, now: float) -> list[Action]:  # noqa: ARG002
        """Let in nothing new of this model (None: of any) until `resumed`; requests that wait are served."""
        self._state.pauses.drain(model)
        return []

    def resumed(self, model: str | None, *, now: float) -> list[Action]:
        """Take a pause and a drain back; None: all of them."""
        state = self._state
        state.pauses.resume(model)
        state.holds_changed()
        state.forecast.resumed(model)
        return sending.pumped(state, now)

    def bumped(self, request_id: str, *, now: float) -> list[Action]:
        """Let a waiting request go next in its band, after those bumped before it. It still has to find room.

        Returns an empty list if no such request waits.
        """
        state = self._state
        entry = state.entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        state.queues.bands[entry.request.band].bumped.setdefault(entry.seq, entry)
        state.recorder.bumped(entry)
        return sending.pumped(state, now)

    def tenants_limited(self, limits: Mapping[str, Limits], *, now: float) -> list[Action]:
        """Hold tenants to `limits` from now on, all of them, also for what is here. `running=0` pauses a tenant."""
        state = self._state
        state.told_settings = replace(state.told_settings, tenants=limits)
        limits = parts_of(limits, state.gateways)
        state.settings = replace(state.settings, tenants=limits)
        state.quotas.reconfigured(limits, state.entries.values(), now)
        state.capped.uncap_all()
        state.under_share.judge_again(now)
        state.recorder.relined(_waiting(state), now)
        state.wait_causes.look(now, at_once=True)
        for endpoint in state.pool:
            state.queues.touch(endpoint)
        return sending.pumped(state, now)

    def budget_shared(self, tenant: str, period_s: float, left: float, *, now: float) -> list[Action]:
        """All gateways that share this budget of `tenant` have so much `left`. Nothing waits for that: returns
        nothing.
        """
        self._state.quotas.shared(tenant, period_s, left, now)
        return []

    def budget_apart(self, tenant: str, period_s: float, part: float, *, now: float) -> list[Action]:
        """The others that share this budget can't be heard: go on with `part` of it. Returns nothing."""
        self._state.quotas.apart(tenant, period_s, part, now)
        return []

    def all_evicted(self, request_ids: Iterable[str], *, now: float) -> list[Action]:
        """Take many requests out, as `evicted` does each, and hand out once what their going makes room for."""
        state, actions = self._state, list[Action]()
        for request_id in request_ids:
            _take_out(state, request_id, now, actions)
        sending.hand_out(state, now, actions)
        return actions

    def evicted(self, request_id: str, *, now: float) -> list[Action]:
        """Take a request out, as an operator wants it: one that waits is refused, one that runs is stopped at its
        endpoint.

        Returns an empty list if there is no such request.
        """
        return self.all_evicted((request_id,), now=now)

    def reconfigured(self, settings: SchedulerSettings, *, now: float) -> list[Action]:
        """Use other settings from now on. Nothing that waits or runs is lost.

        Raises NeedsRestartError, before anything changes, if what waits could not follow. Bands are matched by name.
        What waits keeps its time to wait, unless it gets more now, and its deadline.
        """
        state = self._state
        if keys := needing_restart(state.settings, settings):
            raise NeedsRestartError(keys)
        state.told_settings, settings = settings, part_of(settings, state.gateways)
        before, state.settings = state.settings, settings
        state.router.reconfigured(settings.routing, settings.router)
        _rearrange(state, before)
        state.groups.reconfigured(settings.router, state.charges, _waiting(state), by_arrival=by_arrival(settings))
        state.reserved.share = state.reserved_share()
        state.quotas.reconfigured(settings.tenants, state.entries.values(), now)
        state.pool.reconfigured(settings.health, stale_after_s=settings.stale_after_s)
        state.candidates.settings = settings.admission
        state.backfill.reconfigured(state.charges)
        state.promised.reconfigured()
        state.capped.uncap_all()
        state.holds_changed()
        state.under_share.judge_again(now)
        state.recorder.reconfigured(
            [band.name for band in settings.bands], settings.admission, state.entries.values(), now
        )
        state.budget.share = settings.retry_budget
        state.paced = state.has_pace_limit()
        for endpoint in state.pool:
            state.queues.touch(endpoint)
        return sending.pumped(state, now)

    def apportioned(self, gateways: int, *, now: float) -> list[Action]:
        """Decide with one gateway's part of all slots, bounds and limits, because so many decide each for itself.

        1: with all of them again. Settings are told as for one, and parted here.
        """
        state = self._state
        state.gateways = gateways
        state.pool.apportion(gateways)
        return self.reconfigured(state.told_settings, now=now)


def _waiting(state: SchedulerState) -> list[Entry]:
    return [entry for entry in state.entries.values() if entry.state is State.WAITING]


def _take_out(state: SchedulerState, request_id: str, now: float, actions: list[Action]) -> None:
    entry = state.entries.get(request_id)
    if entry is None:
        return
    if entry.state is State.WAITING:
        ends.evict(state, entry, Reason.OPERATOR, now, actions)
    else:
        state.recorder.blamed(entry, Reason.OPERATOR)
        actions.append(Abort(request_id, Reason.OPERATOR))


def _rearrange(state: SchedulerState, before: SchedulerSettings) -> None:
    """Other bands, another order and other fairness, for who is here and who comes."""
    settings, entries, bands = state.settings, state.entries.values(), state.queues.bands
    heirs = state.queues.rearrange(settings.bands, settings.bounds)
    changed = compared(before, settings, bands, heirs)
    state.charges = account_of(settings)
    state.forecast.reconfigured(by_request=state.charges.by_request)
    state.order_keys = keys_of(settings)
    for entry in entries:
        old = bands[entry.request.band]
        rank = heirs.get(old, old).rank
        if old in changed.recounted:
            state.charges.recounted(entry, rank)
        if entry.state is State.WAITING:
            state.affinity.reconfigured(entry)
            if old in changed.reordered:
                entry.queue.ordered((entry.request.priority, state.order_keys[rank](entry, entry.queue.waits_since_s)))
    for band in changed.afresh:
        band.replant()
    resettle(
        entries, state.queues, bands, heirs, afresh=changed.afresh, place=lambda entry, band: _move(state, entry, band)
    )
    for entry in entries:
        allowed_s = state.wait_s_max(state.queues.bands[entry.request.band])
        entry.queue.allow(max(entry.queue.wait_s_max, allowed_s))
    for band in changed.reordered:
        band.tree.rekeyed()
    state.reweigh()


def _move(state: SchedulerState, entry: Entry, band: Band) -> None:
    """Find its place in another tree, with all that is known of its flow."""
    before = top(entry.node_of())
    state.place(entry, band)
    state.under_share.moved(before, top(entry.node_of()))
