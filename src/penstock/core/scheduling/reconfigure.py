"""Changing settings while requests are queued and running.

None is lost, and no queued request gets less time than it was promised. Bands are matched by name. The requests of a
band that is gone go on in the next lower one that stays, or in the lowest: so none rises, unless nothing is below.
Flows' past service stays counted, even if prices change; another fairness policy has another unit, so all flows start
equal. If queueing is switched off, all queued requests are sent at once; if it is switched on, an endpoint above its
slots gets nothing until enough of its requests have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import top
from penstock.core.queueing.queues import Queues
from penstock.core.scheduling import pumping
from penstock.core.scheduling.state import SchedulerState, account_of, keys_of
from penstock.core.values.actions import Action
from penstock.core.values.lifecycle import State
from penstock.core.values.settings import SchedulerSettings, part_of


class NeedsRestartError(ValueError):
    """Settings changed that need a restart. `keys` are their paths."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"cannot be changed without a restart: {', '.join(keys)}")
        self.keys = tuple(keys)


def needing_restart(old: SchedulerSettings, new: SchedulerSettings) -> list[str]:
    """Returns the paths of changed settings that queued requests could not follow."""
    fixed = {
        "fairness.levels": old.levels == new.levels,  # flows hold requests with unknown other names
    }
    return [key for key, same in fixed.items() if not same]


class Changed:
    """The bands affected by a change, including those that are gone."""

    def __init__(self) -> None:
        self.afresh: list[Band] = []  #: their trees use another unit from now on
        self.recounted: list[Band] = []  #: their requests are counted otherwise where they go on
        self.reordered: list[Band] = []  #: and ordered otherwise


def compared(
    old: SchedulerSettings, new: SchedulerSettings, before: Sequence[Band], heirs: dict[Band, Band]
) -> Changed:
    """Returns the bands whose requests get another policy or order, in their own band or its heir."""
    changed = Changed()
    for band, was in zip(before, old.bands, strict=True):
        heir = heirs.get(band, band)
        now = new.bands[heir.rank]
        if old.fairness_of(was) != new.fairness_of(now):
            changed.recounted.append(band)
            if heir is band:
                changed.afresh.append(band)
        if old.ordering_of(was) != new.ordering_of(now):
            changed.reordered.append(band)
    return changed


def resettle(
    entries: Iterable[Entry],
    queues: Queues,
    before: Sequence[Band],
    heirs: dict[Band, Band],
    *,
    afresh: Collection[Band],
    place: Callable[[Entry, Band], None],
) -> None:
    """Give every request its band's new rank, and a new place in a tree if its old one is gone.

    `afresh`: the bands whose trees are new. `place` finds an entry's node and charges it.
    """
    moved: dict[Band, list[Entry]] = {}
    for entry in entries:
        old = before[entry.request.band]
        band = heirs.get(old, old)
        if entry.request.band != band.rank:
            entry.became(replace(entry.request, band=band.rank))
        if band is old and band not in afresh:
            continue
        place(entry, band)
        if entry.state is State.WAITING:
            entry.queue.uprooted()
            if band is old:
                band.tree.push(entry)
            else:
                moved.setdefault(band, []).append(entry)
        else:
            band.tree.lent(entry.node_of())
    for band in queues.bands:
        if band in moved:
            band.adopt(moved[band])


def reconfigured(state: SchedulerState, settings: SchedulerSettings, now: float) -> list[Action]:
    """Use other settings from now on. Returns the dispatched requests.

    Raises NeedsRestartError, before anything changes, if queued requests could not follow. These keep their deadline,
    and their time to wait unless it grows.
    """
    if keys := needing_restart(state.settings, settings):
        raise NeedsRestartError(keys)
    state.told_settings, settings = settings, part_of(settings, state.gateways)
    before, state.settings = state.settings, settings
    state.router.reconfigured(settings.routing, settings.router)
    _rearrange(state, before)
    state.reserved.share = state.reserved_share()
    state.quotas.reconfigured(settings.tenants, state.entries.values(), now)
    state.pool.reconfigured(settings.health, stale_after_s=settings.stale_after_s, named_models=settings.named_models)
    state.candidates.settings = settings.admission
    state.backfill.reconfigured(state.charges)
    state.promised.reconfigured()
    state.capped.uncap_all()
    state.holds_changed()
    state.under_share.judge_again(now)
    state.recorder.reconfigured([band.name for band in settings.bands], settings.admission, state.entries.values(), now)
    state.budget.share = settings.retry_budget
    state.preemption.follow(settings.admission.preempted_share_max, bands=state.has_preemptible())
    state.paced = state.has_pace_limit()
    for endpoint in state.pool:
        state.queues.touch(endpoint)
    return pumping.pumped(state, now)


def _rearrange(state: SchedulerState, before: SchedulerSettings) -> None:
    """Apply other bands, order and fairness to all requests."""
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
        state.allow(entry, state.queues.bands[entry.request.band])
    for band in changed.reordered:
        band.tree.rekeyed()
    state.reweigh()


def _move(state: SchedulerState, entry: Entry, band: Band) -> None:
    """Move an entry to another tree, with everything known of its flow."""
    before = top(entry.node_of())
    state.place(entry, band)
    state.under_share.moved(before, top(entry.node_of()))
