"""Preemption: work of a preemptible band gives its slot back to a request of a higher band.

Model: a queued request of a higher band that only lacks a slot, and gets none soon by the forecast, takes that of the
youngest preemptible lease, of the lowest band, of which the client has seen nothing. The youngest, because what is lost
is the time since its dispatch. The slot has to be for that request: not while it waits for a look-up or for another
endpoint, and not if the preempted band would be owed its share at once and take it again. That lease is aborted, and
its request goes back to its place in the queue with its age.
`preemptions_max` bounds how often that happens to one request; a token bucket bounds the lost slot time to
`admission.max_preempted_share` of all slot time (it may go into debt by one lease). With it a batch fills all idle
slots: a slot that it holds counts as free when slots are reserved for flows under their share.

Preemption is for slots alone. Nothing is preempted for memory or prompt room, in pools with roles, at engines that
continue aborted requests, or for the benefit of the same band. Source: preemption of best-effort tasks in cluster
schedulers (Borg); the road not taken is to leave it to the engine: vLLM and SGLang never end a running request for want
of a slot unless told to, and cannot put it back in a queue that others share.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.dispatch import admission
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling import returning, sending
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Cause
from penstock.core.values.lifecycle import State

SOON_S = 0.02  # an engine step or two: an abort frees a slot no sooner (vLLM: 34 ms)


def make_way(state: SchedulerState, now: float, actions: list[Action]) -> None:
    """Preempt leases until no queued request of a higher band would gain by it. Adds to `actions`.

    Ends: each round takes a lease, and a round that sends no request of a higher band is the last one.
    """
    while (found := _victim(state, now)) is not None:
        victim, lease, endpoint = found
        state.preemption.lost(now - lease.began_s)
        returning.recall(state, victim, lease, now)
        victim.own_retry().preemptions += 1
        returning.requeue(state, victim, now, actions, failure=Cause.PREEMPTED, endpoint=endpoint)
        before = len(actions)
        sending.send_open(state, now, actions)
        sent = [state.entries[a.request_id] for a in actions[before:] if isinstance(a, Dispatch)]
        if not sent or min([entry.band for entry in sent]) >= victim.band:
            break
    if state.pump.outdated:
        sending.send_open(state, now, actions)


def _victim(state: SchedulerState, now: float) -> tuple[Entry, Lease, Endpoint] | None:
    """Returns the lease to preempt, with its request and endpoint; None: no request would gain by it."""
    bands = state.queues.bands
    lower = [band for band in bands if band.settings.preemptible and band.tree.root.in_flight]
    if not lower or not sum([band.tree.root.waiting for band in bands[: lower[-1].rank]]):
        return None
    owed = state.promised.owed()
    lower = [band for band in lower if band not in owed]
    if not state.preemption.allows(now, sum([e.slots for e in state.pool if e.in_service])):
        return None
    for band in bands:
        beneath = {one.rank for one in lower if one.rank > band.rank}
        if not beneath or not band.tree.root.waiting:
            continue
        for model in list(band.tree.root.backlog):
            head = None if state.pump.holds(model, band) else state.capped.head(band, [model])
            if head is not None and not state.quotas.at_limit(head.accounts):
                found = _youngest(state, head, band, beneath, now)
                if found is not None:
                    return found
    return None


def _youngest(
    state: SchedulerState, head: Entry, band: Band, beneath: set[int], now: float
) -> tuple[Entry, Lease, Endpoint] | None:
    """Returns the youngest preemptible lease, of the lowest band, at an endpoint where `head` only lacks a slot."""
    endpoints = list(_lacking_a_slot(state, head, band, now))
    if not endpoints:
        return None
    ahead = sum([one.tree.root.backlog.get(head.model, 0) for one in state.queues.bands[: band.rank + 1]])
    soon = sum([endpoint.frees_within(SOON_S, now) for endpoint in endpoints])
    if soon >= ahead:
        for endpoint in endpoints:
            state.look_again(endpoint, now + SOON_S)
        return None
    best: tuple[Entry, Lease, Endpoint] | None = None
    for endpoint in endpoints:
        for lease in endpoint.ledger.leases.values():
            entry = state.leases[lease.serial]
            if entry.band not in beneath or not _preemptible(state, entry, lease):
                continue
            if state.promised.any and _takes_it_again(state, entry, endpoint, now):
                continue
            if best is None or (entry.band, lease.began_s) > (best[0].request.band, best[1].began_s):
                best = entry, lease, endpoint
    return best


def _preemptible(state: SchedulerState, entry: Entry, lease: Lease) -> bool:
    """True if a running request may go back to the queue: its client has seen nothing of the answer."""
    if entry.state is not State.RUNNING or lease.passed_on or lease.pending or lease.first_token_s is not None:
        return False
    if entry.retry.preemptions >= state.settings.admission.preemptions_max or entry.pinned is not None:
        return False
    return returning.may_wait(state, entry)


def _takes_it_again(state: SchedulerState, entry: Entry, endpoint: Endpoint, now: float) -> bool:
    """True if the preempted request itself would be next: without it its band is owed, and the slot is open to it."""
    ceiling = state.queues.bands[entry.band].settings.ceiling
    return endpoint.ledger.load(now) - 1 < endpoint.slots * ceiling and state.promised.owed_with(entry)


def _lacking_a_slot(state: SchedulerState, head: Entry, band: Band, now: float) -> Iterator[Endpoint]:
    """Yields the endpoints that would take `head` if one lease less were there."""
    settings = state.settings.admission
    for endpoint, verdict in list(band.closed.items()):
        if (
            verdict.cause is not Cause.SLOTS_FULL
            or not endpoint.serves(head.model)
            or head.excludes(endpoint.name, now)
        ):
            continue
        ledger = endpoint.ledger
        if ledger.lingers or state.affinity.spurns(head, endpoint, now):
            continue
        if ledger.load(now) - 1 >= ledger.limit.slots * band.settings.ceiling:
            continue
        queued = ledger.engine_queue(now)
        if queued > 0 and queued + 1 >= band.settings.engine_waiting_max:
            continue  # the aborted request counts as queued there until the engine has stopped
        if admission.misfit(head, endpoint, admission.room(endpoint, settings, now=now), now=now) is None:
            yield endpoint
