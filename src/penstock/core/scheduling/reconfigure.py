"""Changing settings while requests are queued and running.

None is lost, and no queued request gets less time than it was promised. Bands are matched by name. The requests of a
band that is gone go on in the next lower one that stays, or in the lowest: so none rises, unless nothing is below.
Flows' past service stays counted, even if prices change; another fairness policy has another unit, so all flows start
equal. If queueing is switched off, all queued requests are sent at once; if it is switched on, an endpoint above its
slots gets nothing until enough of its requests have ended.
"""

from __future__ import annotations

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import top
from penstock.core.scheduling import gating, pumping, returning
from penstock.core.scheduling.state import SchedulerState, account_of, keys_of
from penstock.core.values.actions import Action
from penstock.core.values.lifecycle import State
from penstock.core.values.settings import SchedulerSettings, part_of


class NeedsRestartError(ValueError):
    """A setting changed that needs a restart. `key` is its path."""

    def __init__(self, key: str) -> None:
        super().__init__(f"cannot be changed without a restart: {key}")
        self.key = key


def reconfigured(state: SchedulerState, settings: SchedulerSettings, now: float) -> list[Action]:
    """Use other settings from now on. Returns the dispatched requests.

    Raises NeedsRestartError, before anything changes, if queued requests could not follow. These keep their deadline,
    and their time to wait unless it grows.
    """
    if state.settings.levels != settings.levels:  # flows hold requests with unknown other names
        raise NeedsRestartError("fairness.levels")
    state.told_settings, settings = settings, part_of(settings, state.gateways)
    before, state.settings = state.settings, settings
    state.router.reconfigured(settings.routing, settings.router)
    _rearrange(state, before)
    state.reserved.reconfigured(state.reserved_share())
    state.quotas.reconfigured(settings.tenants, state.entries.values(), now)
    state.pool.reconfigured(settings.health, stale_after_s=settings.stale_after_s, named_models=settings.named_models)
    state.candidates.settings = settings.admission
    state.backfill.reconfigured(state.charges)
    state.promised.reconfigured()
    state.capped.uncap_all()
    state.holds_changed()
    state.under_share.judge_again(now)
    state.recorder.reconfigured([band.name for band in settings.bands], state.entries.values(), now)
    state.budget.share = settings.retry_budget
    state.preemption.follow(settings.admission.preempted_share_max, bands=state.has_preemptible())
    state.paced = state.has_pace_limit()
    gating.follow(state, settings.gate, now)
    state.queues.touch_all(state.pool)
    actions: list[Action] = []
    returning.evict_unknown(state, now, actions)
    pumping.hand_out(state, now, actions)
    return actions


def _rearrange(state: SchedulerState, old: SchedulerSettings) -> None:
    """Apply other bands, order and fairness to all requests: each gets its band's new rank, or its heir's."""
    settings, entries, before = state.settings, state.entries.values(), state.queues.bands
    heirs = state.queues.rearrange(settings.bands, settings.bounds)
    state.charges = account_of(settings)
    state.forecast.reconfigured(by_request=state.charges.by_request)
    state.order_keys = keys_of(settings)
    now_of = [
        (band, was, settings.bands[heirs.get(band, band).rank]) for band, was in zip(before, old.bands, strict=True)
    ]
    recounted = [band for band, was, new in now_of if old.fairness_of(was) != settings.fairness_of(new)]
    reordered = [band for band, was, new in now_of if old.ordering_of(was) != settings.ordering_of(new)]
    for band in recounted:
        if band not in heirs:
            band.replant()  # its tree has another unit from now on
    adopted: dict[Band, list[Entry]] = {}
    for entry in entries:
        band = before[entry.band]
        heir = heirs.get(band, band)
        _reckon(state, entry, heir.rank, recounts=band in recounted, reorders=band in reordered)
        if entry.band != heir.rank:
            entry.became(entry.request.but(band=heir.rank))
        state.allow(entry, heir)
        if heir is not band:
            _move(state, entry, heir)
            if entry.state is State.WAITING:
                adopted.setdefault(heir, []).append(entry)
        elif band in recounted:
            _move(state, entry, band)
            if entry.state is State.WAITING and not entry.held:
                band.tree.push(entry)
    for band in state.queues.bands:
        if band in adopted:
            band.adopt(adopted[band])
    for band in reordered:
        band.tree.rekeyed()
    state.reweigh()


def _reckon(state: SchedulerState, entry: Entry, rank: int, *, recounts: bool, reorders: bool) -> None:
    """Count and order an entry by the rules of the band of `rank`."""
    if recounts:
        state.charges.recounted(entry, rank)
    if entry.state is State.WAITING:
        state.affinity.reconfigured(entry)
        if reorders:
            key = state.order_keys[rank](entry, entry.waits_since_s)
            entry.key = (entry.request.priority, key)


def _move(state: SchedulerState, entry: Entry, band: Band) -> None:
    """Move an entry to another tree, with everything known of its flow. One that waits has yet to be pushed there."""
    before = top(entry.node)
    state.place(entry, band)
    state.under_share.moved(before, top(entry.node))
    if entry.state is State.WAITING:
        entry.visit -= not entry.held
    else:
        band.tree.lent(entry.node)
