"""Sending: a request and an endpoint become a lease, and a lease that ends becomes a free slot.

A lease is taken in the step that pops its request. Whatever may have opened an endpoint touches it and pumps.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import NO_EPOCH, Lease
from penstock.core.endpoints.liveness import CHECK_S
from penstock.core.endpoints.roles import Role
from penstock.core.queueing import codel
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import NO_RETRY, Entry
from penstock.core.scheduling import waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Reason
from penstock.core.values.lifecycle import Event
from penstock.core.values.takeover import Underway

BAND_RANKS: Final = 1024  # engine priorities per band: pending requests of one tenant count up to that


def look_at(state: SchedulerState, endpoint: Endpoint, now: float) -> None:
    """Learn an endpoint's slots from our own answers, and set the timer that acts on it."""
    if endpoint.finds_slots:
        limit = endpoint.ledger.limit
        if limit.look_due(now):
            _look(state, endpoint, now)
        again_s = now if limit.shrunk else limit.looks_s(endpoint.ledger, now)
        if again_s != math.inf:
            state.look_again(endpoint, again_s)


def look(state: SchedulerState, endpoint: Endpoint, now: float) -> None:
    """Learn an endpoint's slots from our own answers, unless they were reported or set."""
    if endpoint.ledger.limit.look_due(now):
        _look(state, endpoint, now)


def _look(state: SchedulerState, endpoint: Endpoint, now: float) -> None:
    wanted = state.queues.waiting > 0 and state.pump.wants_slots(endpoint)
    if endpoint.looked(now, wanted=wanted):
        state.pool.changed()
        state.queues.touch(endpoint)


def send_open(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Dispatch until no queued request may be sent to an open endpoint. Adds to `actions`."""
    while state.queues.waiting and (found := state.pump.next(now)) is not None:
        entry, endpoints = found
        if not in_time(state, entry, now):
            waiting.evict(state, entry, Reason.DEADLINE_MISSED, now, actions)
        else:
            actions.append(dispatch(state, entry, endpoints, now))


def send_all(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """With queueing off, send all queued requests whose model is served. Adds to `actions`.

    Such a request arrived before queueing was switched off, or waits for an endpoint to report its models.
    """
    for band in state.queues.bands:
        for model in band.tree.models():
            if not state.pauses.sends(model):
                continue
            for entry in list(band.tree.in_order([model])):
                if state.quotas.at_limit(entry.accounts):
                    continue
                endpoints = usable(state, entry, now)
                if not endpoints and not state.pool.roles.any:
                    break  # no endpoint with this model is alive: they wait for one
                if endpoints := [e for e in endpoints if not entry.excludes(e.name, now)]:
                    actions.append(dispatch(state, entry, endpoints, now))


def alone(state: SchedulerState, entry: Entry, now: float) -> list[Endpoint]:
    """Returns the endpoints open to a newcomer while nothing is queued; empty: it has to join the queue."""
    endpoints = state.pump.alone(entry, now)
    if not endpoints or (entry.deadline_s != math.inf and not in_time(state, entry, now)):
        return []
    if state.watcher is not None:
        state.watcher.sends_alone(entry, endpoints, now)
    return endpoints


def in_time(state: SchedulerState, entry: Entry, now: float) -> bool:
    """True if the first token may come before the request's deadline, or if it is sent to measure that."""
    if entry.deadline_s == math.inf:
        return True
    left_s = entry.deadline_s - now
    if left_s <= 0.0:
        return False
    forecast = state.forecast
    others_wait = sum([band.tree.root.backlog.get(entry.model, 0) for band in state.queues.bands]) > 1
    if (forecast.first_token_s(entry, now) if others_wait else forecast.soonest_s(entry, now)) <= left_s:
        return True
    if others_wait or not forecast.may_try(entry, now):
        return False
    state.recorder.tried(entry)
    return True


def dispatch_alone(state: SchedulerState, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
    """Send a request as if it had joined the queue and left it in the same moment. Returns its dispatch."""
    entry.visit += 1
    state.queues.bands[entry.band].tree.serve_at_once(entry.node)
    state.under_share.sent(entry, now)
    if state.promised.any:
        state.promised.sent(entry)
    return dispatch(state, entry, endpoints, now)


def dispatch(state: SchedulerState, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
    """Pop the request and take a lease at one of `endpoints`, in one step. Returns its dispatch."""
    if state.watcher is not None:
        state.watcher.sends(entry, endpoints, now)
    request, node = entry.request, entry.node
    band = state.queues.bands[request.band]
    tree = band.tree
    choice = state.router.choose(entry, endpoints, now)
    chosen = choice.endpoint
    divides = chosen.role is Role.PREFILL and not entry.whole
    answering = partners(state, entry, now) if divides else []
    state.charges.appraised(entry)
    if entry.seq in band.entries:
        leave_queue(state, entry, band, chosen, now)
    else:
        entry.move(Event.DISPATCHED)
    state.recorder.sent(entry, endpoints, choice, now)
    tree.lent(node)
    state.charges.dispatched(tree, entry)
    if state.quotas.any and state.quotas.started(entry.accounts):
        state.capped.cap(entry)
    state.lease_serial += 1
    lease = Lease(
        state.lease_serial,
        endpoint=chosen.name,
        epoch=chosen.ledger.epoch,
        request_id=request.id,
        now=now,
        prompt_tokens=entry.uncached_tokens,
        output_tokens=1 if divides else entry.output_tokens,
        streamed=divides or request.streamed,  # its single token ends a prefill, so that is seen
        cached_tokens=entry.cached_tokens,
        source=entry.source,
        keys_since=entry.keys_since,
        sought=entry.sought,
        prefix=request.prefix,
        twin_computing=entry.twin_computing,
    )
    ledger = chosen.ledger
    assert not state.settings.queue_enabled or len(ledger.leases) < ledger.limit.slots
    decode, decode_lease = None, None
    if divides:
        decode, decode_lease = reserve_decode(state, entry, answering, now)
        state.recorder.divided(entry, decode)
    _hold(state, entry, lease, band)
    if request.turn is not None:
        state.gate.sent(entry, chosen.name, now)
    if state.look_s == math.inf and chosen.liveness.warm and len(state.pool) > 1:
        state.look_s = now + CHECK_S
    ledger.add(lease)
    chosen.dispatches_total += 1
    state.pool.took_turn(chosen, endpoints, lease.serial)
    if state.affinity.spared:
        state.affinity.used(chosen)
    retry = entry.retry
    if retry is NO_RETRY or not (retry.attempts or retry.refusals or retry.recalls or retry.preemptions):
        state.budget.sent(now)
    queued = state.queues.waiting > 0 and any(request.model in b.tree.root.backlog for b in state.queues.bands)
    state.forecast.dispatched(entry, queued=queued, now=now)
    state.queues.touch(chosen)
    rank = None
    if state.settings.engine_priority:
        rank = request.band * BAND_RANKS + min(node.waiting + node.in_flight, BAND_RANKS - 1)
    made = Dispatch(
        request.id,
        chosen.name,
        lease.serial,
        entry.waited_s,
        rank,
        decode,
        decode_lease,
        entry.prompt_tokens,
        entry.output_tokens,
        max(0.0, lease.prefill_end_s - now),
    )
    if state.watcher is not None:
        state.watcher.sent(entry, made)
    return made


def take_on(state: SchedulerState, entry: Entry, underway: Underway, now: float) -> None:
    """Book a running lease that another scheduler granted, as `dispatch` would have, even beyond the slots."""
    request, tree = entry.request, state.queues.bands[entry.band].tree
    endpoint = state.pool.get(underway.endpoint)
    if endpoint is not None:
        state.router.took_over(entry, endpoint)
    state.charges.appraised(entry)
    entry.move(Event.DISPATCHED)
    divides = underway.decode is not None
    lease = Lease(
        underway.lease,
        endpoint=underway.endpoint,
        epoch=NO_EPOCH if endpoint is None else endpoint.ledger.epoch,
        request_id=request.id,
        now=now - underway.running_s,
        prompt_tokens=1 if underway.handed_over else entry.uncached_tokens,
        output_tokens=1 if divides else entry.output_tokens,
        streamed=divides or request.streamed,
        transferred_tokens=entry.prompt_tokens - 1 if underway.handed_over else 0,
    )
    tree.lent(entry.node)
    state.charges.dispatched(tree, entry)
    if state.quotas.started(entry.accounts, beyond=True):
        state.capped.cap(entry)
    if underway.decode is not None:
        assert underway.decode_lease is not None
        state.pending.take_on(entry, underway.decode, underway.decode_lease, now)
    state.under_share.sent(entry, now)
    _hold(state, entry, lease, state.queues.bands[request.band])
    if request.turn is not None and state.gate.on:
        state.gate.took_over(entry, underway.endpoint, now)
    streams = underway.begun and request.streamed
    if streams:
        entry.move(Event.FIRST_TOKEN)
    elif underway.begun:
        lease.reached_client()
    if endpoint is not None:
        endpoint.ledger.take_on(lease, now, begun=underway.output_tokens if streams else None)
        endpoint.liveness.forgive(now)
        state.queues.touch(endpoint)
        if state.look_s == math.inf and endpoint.liveness.warm and len(state.pool) > 1:
            state.look_s = now + CHECK_S
    if streams:
        entry.seen(max(1, underway.output_tokens))
        state.charges.progressed(tree, entry)


def reroute(state: SchedulerState, entry: Entry, before: Endpoint | None, after: Endpoint, now: float) -> None:
    """Move the lease of a request to `after`, where a proxy sent it. When is not known, so it shows no prompt speed."""
    old = entry.leased()
    state.router.failed(entry, old)
    if before is not None:
        before.ledger.remove(old, now)
    lease = Lease(
        old.serial,
        endpoint=after.name,
        epoch=after.ledger.epoch,
        request_id=old.request_id,
        now=old.dispatched_s,
        prompt_tokens=old.prompt_tokens + old.cached_tokens,
        output_tokens=old.output_tokens,
        streamed=entry.streamed,
    )
    if old.passed_on:
        lease.reached_client()
    entry.lease = lease
    after.ledger.take_on(lease, now, begun=None)
    lease.detoured()
    after.dispatches_total += 1
    state.router.took_over(entry, after)
    if entry.request.turn is not None:
        state.gate.sent(entry, after.name, now)
    state.recorder.rerouted(entry, after.name)
    state.queues.touch(after)


def _hold(state: SchedulerState, entry: Entry, lease: Lease, band: Band) -> None:
    """Keep the lease of a request of `band` until it ends."""
    entry.lease = lease
    state.leases[lease.serial] = entry
    if band.settings.preemptible and not entry.streamed:
        state.preemption.held[lease.serial] = entry.model


def leave_queue(state: SchedulerState, entry: Entry, band: Band, chosen: Endpoint, now: float) -> None:
    """Take a request that goes to the endpoint `chosen` out of the queue of `band`."""
    if entry.seq not in band.bumped:  # otherwise it is out of turn, and shows nothing of how far turns have come
        band.tree.serve(entry)
        if state.backfill.held:
            state.backfill.served(band.tree, entry)
    codel.leaves(band.settings, entry, now)
    waiting.unqueue(state, entry, Event.DISPATCHED, now)
    state.under_share.sent(entry, now)
    state.promised.sent(entry, chosen)
    if state.under_share.is_over_share(entry, now):
        state.stagger.sent(entry.uncached_tokens / chosen.ledger.speed.rate)


def usable(state: SchedulerState, entry: Entry, now: float) -> list[Endpoint]:
    """Returns the endpoints a request may be sent to without a turn; prefill ones only with one that can decode."""
    usable = state.pool.usable(entry.request, now, whole=entry.whole)
    if entry.whole or not state.pool.roles.any or partners(state, entry, now):
        return usable
    return [e for e in usable if e.role is not Role.PREFILL]


def partners(state: SchedulerState, entry: Entry, now: float) -> list[Endpoint]:
    """Returns the decode endpoints with room for a request; with queueing off, all healthy ones."""
    if state.settings.queue_enabled:
        return state.candidates.partners(entry, now)
    usable = state.pool.usable(entry.request, now, whole=True)
    return [e for e in usable if e.role is Role.DECODE]


def reserve_decode(state: SchedulerState, entry: Entry, partners: list[Endpoint], now: float) -> tuple[str, int]:
    """Take a slot at one of `partners` for the answer, while the prompt is computed elsewhere.

    Returns the endpoint's name and the lease's serial.
    """
    if state.watcher is not None:
        state.watcher.reserves(entry, partners, now)
    state.lease_serial += 1
    lease = state.pending.reserve(entry, partners, state.lease_serial, now)
    endpoint = state.pool[lease.endpoint]
    assert not state.settings.queue_enabled or len(endpoint.ledger.leases) <= endpoint.slots
    state.queues.touch(endpoint)
    return lease.endpoint, lease.serial


def release(state: SchedulerState, entry: Entry, now: float, *, abandoned: bool = False) -> Endpoint | None:
    """Give the slot back, exactly once. Returns its endpoint; None if that is gone.

    `abandoned`: the engine is not done yet.
    """
    lease = entry.lease
    assert lease is not None
    del state.leases[lease.serial]
    if state.preemption.held:
        state.preemption.held.pop(lease.serial, None)
    entry.lease = None
    if state.pending.leases and (answering := state.pending.drop(entry, now)) is not None:
        state.queues.touch(answering)
    state.recorder.released(entry)
    state.queues.bands[entry.band].tree.returned(entry.node)
    if state.quotas.any:
        for account in state.quotas.ended(entry.accounts):
            state.capped.uncap(account)
    state.under_share.ended(entry, now)
    endpoint = state.pool.holder(lease)
    if endpoint is not None:
        endpoint.ledger.remove(lease, now, abandoned=abandoned)
        state.queues.touch(endpoint)
    return endpoint
