"""Waiting: what a newcomer will take, who may wait, for how long, and what time does to those who do.

Draining is time that ends for all.
"""

from __future__ import annotations

import math

from penstock.core.queueing import codel
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of
from penstock.core.scheduling import ends
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action
from penstock.core.values.catalogue import Reason
from penstock.core.values.lifecycle import Event
from penstock.core.values.request import WORK_PER_OUTPUT_TOKEN

TELLING_S_MAX = 5.0  # queueing off, models unknown: two probes that time out, and some; reports take milliseconds


def appraise(state: SchedulerState, entry: Entry, now: float, *, came_s: float) -> None:
    """Estimate what a request will cost, and find its flow and its place in there, for one that came at `came_s`."""
    request = entry.request
    estimate = state.estimator.estimate(request.tenant, request.model, contents_of(request), request.output_tokens_max)
    whole = True
    if state.pool.roles.any:
        short = estimate.prompt_tokens < state.settings.divided_tokens_min
        whole = not request.divisible or request.pinned is not None or short
    entry.expect(estimate, whole=whole)
    state.router.look(entry, now)
    state.affinity.arrived(entry, now)
    entry.charge.expect(entry.route.uncached_tokens + WORK_PER_OUTPUT_TOKEN * estimate.output_tokens)
    band = state.queues.bands[request.band]
    own_s = math.inf if request.deadline_s is None else request.deadline_s
    band_s = band.settings.deadline_s
    entry.queue.meet(own_s if band_s is None else min(own_s, came_s + band_s))
    entry.queue.ordered((request.priority, state.order_keys[request.band](entry, came_s)))
    entry.queue.allow(state.wait_s_max(band))
    state.place(entry, band)


def admit_to_wait(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """Let a request that found nothing open wait.

    Reject it, in `actions`, if it may not wait, or if waiting would not help.
    """
    band = state.queues.bands[entry.request.band]
    reason = too_long(state, entry, band, now)
    if (limit := state.quotas.over_queued(entry.account)) is not None:
        reason = Reason.TENANT_LIMIT
    elif reason is None and (band.over_bounds() or not make_room(state, entry, now, actions)):
        reason = Reason.QUEUE_FULL
    if reason is not None:
        ends.unqueue(state, entry, Event.REFUSED, now)
        ends.reject(state, entry, reason, now, actions, limit=limit)
    else:
        arm(state, entry, now)
        state.recorder.waits(entry, now)


def too_long(state: SchedulerState, entry: Entry, band: Band, now: float) -> Reason | None:
    """Returns the reason why a request had better not wait as long as is foreseen; None: it may."""
    if entry.queue.deadline_s == math.inf and band.settings.shed_target_s is None:
        return None
    wait_s = state.estimated_wait_s(entry, now, refusing=True)
    first_token_s = state.forecast.first_token_s(entry, now)
    if wait_s is not None and now + wait_s + first_token_s > entry.queue.deadline_s:
        if now + wait_s + state.forecast.soonest_s(entry, now) > entry.queue.deadline_s:
            state.forecast.refused(entry.model, entry.queue.deadline_s - now, now)
        return Reason.DEADLINE_INFEASIBLE
    return Reason.OVERLOAD if codel.refuses(band.settings, entry, wait_s, now) else None


def make_room(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> bool:
    """Keep the queue within its bounds, at the cost of lower bands. Returns False if the newcomer has to go."""
    victims = state.queues.displaced_by(entry) if state.queues.over_bounds() else []
    for victim in victims or ():
        ends.evict(state, victim, Reason.DISPLACED, now, actions)
    return victims is not None


def enqueue(state: SchedulerState, entry: Entry, now: float) -> None:
    """Put `entry` into its flow's queue, and into all that counts requests that wait."""
    entry.queue.entered(now)
    band = state.queues.bands[entry.request.band]
    if entry.model not in band.tree.root.backlog and state.pump.holds(entry.model, band):
        band.tree.held.add(entry.model)
    state.queues.push(entry)
    codel.entered(band.settings, entry, now)
    state.quotas.queued(entry.account, entry.request.body_bytes, entry.estimate.prompt_tokens)
    if state.quotas.at_limit(entry.account):
        state.capped.cap(entry)


def wait(state: SchedulerState, entry: Entry, now: float) -> None:
    """Queue a request that may wait, whatever the bounds: it was admitted before."""
    enqueue(state, entry, now)
    arm(state, entry, now)
    state.recorder.waits(entry, now)


def arm(state: SchedulerState, entry: Entry, now: float) -> None:
    """Set the timer of `entry`, so that it waits no longer than it may, or than waiting helps."""
    times = (may_wait_until_s(entry), helps_until_s(state, entry, now), shed_s(state, entry))
    state.timers.set(entry.seq, min(times))


def may_wait_until_s(entry: Entry) -> float:
    """Returns until when `max_wait` lets a request wait."""
    return entry.queue.waits_since_s + entry.queue.wait_s_max


def shed_s(state: SchedulerState, entry: Entry) -> float:
    """Returns when a request is shed if its queue still stands then; infinity: never."""
    return codel.due_s(state.queues.bands[entry.request.band].settings, entry)


def helps_until_s(state: SchedulerState, entry: Entry, now: float) -> float:
    """Returns until when sending a request may still meet its deadline; infinity: it has none."""
    due_s = entry.queue.deadline_s
    return due_s - state.forecast.soonest_s(entry, now) if due_s != math.inf else due_s


def time_is_up(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """Evict a request whose timer went off, by what is over for it. Adds to `actions`.

    If first tokens come sooner by now than when the timer was armed, or its queue moved on, it waits on.
    """
    if helps_until_s(state, entry, now) <= now:
        ends.evict(state, entry, Reason.DEADLINE_MISSED, now, actions)
    elif may_wait_until_s(entry) <= now:
        alive = state.pool.alive(entry.model)
        ends.evict(state, entry, Reason.QUEUE_TIMEOUT if alive else Reason.NO_ENDPOINT, now, actions)
    elif shed_s(state, entry) <= now:
        ends.evict(state, entry, Reason.OVERLOAD, now, actions)
    else:
        arm(state, entry, now)
