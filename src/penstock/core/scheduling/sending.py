"""Sending: a request and an endpoint that the pump found become a lease; and a lease that ends, a free slot.

A lease is taken in the same step that pops its request. Whatever may have opened an endpoint touches it and pumps.
"""

from __future__ import annotations

import math

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.movement import CHECK_S
from penstock.core.endpoints.roles import Role
from penstock.core.queueing import codel
from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling.ends import Ends
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.lifecycle import Event
from penstock.core.values.outcome import Reason

BAND_RANKS = 1024  # engine priorities per band: pending requests of one tenant count up to that


class Sending(Ends):
    """Dispatches and leases."""

    def _pumped(self, now: float) -> list[Action]:
        actions: list[Action] = []
        self._hand_out(now, actions)
        return actions

    def _touched(self, endpoint: Endpoint, now: float) -> list[Action]:
        self._queues.touch(endpoint)
        return self._pumped(now) if self._queues.waiting else []

    def _look_at(self, endpoint: Endpoint, now: float) -> None:
        """What our own answers show of an endpoint's size, where nobody told it."""
        if endpoint.adaptive is None:
            return
        if endpoint.look_due(now) and endpoint.looked(now, wanted=self._pump.wants_slots(endpoint)):
            self._pool.changed()
            self._queues.touch(endpoint)
        self._look_again(endpoint, endpoint.looks_s(now))

    def _hand_out(self, now: float, actions: list[Action]) -> None:
        """Dispatch until nothing that waits may be sent."""
        if not self._settings.queue_enabled and self._queues.waiting:
            self._send_all(now, actions)
        while self._queues.waiting and (found := self._pump.next(now)) is not None:
            entry, endpoints = found
            if not self._in_time(entry, now):
                self._evict(entry, Reason.DEADLINE_MISSED, now, actions)
            else:
                actions.append(self._dispatch(entry, endpoints, now))
        if self._queues.waiting:
            self._waits.look(now)

    def _send_all(self, now: float, actions: list[Action]) -> None:
        """With queueing off nobody waits for a slot: who waited before it was switched off, or waits for an endpoint to
        tell what it serves, goes where its model is served.
        """
        for band in self._queues.bands:
            for model in band.tree.models():
                if not self._pauses.sends(model):
                    continue
                for entry in list(band.tree.in_order([model])):
                    if self._quotas.held(entry.account):
                        continue
                    endpoints = self._usable(entry, now)
                    if not endpoints and not self._pool.roles.any:
                        break  # nobody who serves it is alive: they wait for one, for as long as they may
                    if endpoints := [e for e in endpoints if not entry.shuns(e.name, now)]:
                        actions.append(self._dispatch(entry, endpoints, now))

    def _alone(self, entry: Entry, now: float) -> list[Endpoint]:
        """Where a newcomer may go when nobody else waits; empty: it has to join the queue to find out."""
        endpoints = self._pump.alone(entry, now)
        return endpoints if endpoints and self._in_time(entry, now) else []

    def _in_time(self, entry: Entry, now: float) -> bool:
        """Whether its first token may come by its deadline if it is sent now; or it is sent to find out."""
        if entry.deadline_s == math.inf:
            return True
        left_s = entry.deadline_s - now
        if left_s <= 0.0:
            return False
        forecast = self._forecast
        others_wait = sum([band.tree.root.backlog.get(entry.model, 0) for band in self._queues.bands]) > 1
        if (forecast.first_token_s(entry, now) if others_wait else forecast.soonest_s(entry, now)) <= left_s:
            return True
        if others_wait or not forecast.may_try(entry, now):
            return False
        self._recorder.tried(entry)
        return True

    def _dispatch_alone(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        """Send it as if it had joined the queue and left it in the same moment."""
        entry.visit += 1
        self._tree(entry).serve_at_once(entry.node_of())
        self._under_share.sent(entry, now)
        self._promised.sent(entry)
        dispatch = self._dispatch(entry, endpoints, now)
        self._groups.sent(entry, self._pool[dispatch.endpoint], now)
        return dispatch

    def _dispatch(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        """Pop the request and take the lease, in one step."""
        request, tree, node = entry.request, self._tree(entry), entry.node_of()
        chosen = self._router.choose(entry, endpoints, now)
        divides = chosen.role is Role.PREFILL and not entry.whole
        partners = self._partners(entry, now) if divides else []
        entry.cost = self._charges.estimated_cost(entry)
        band = self._queues.bands[request.band]
        if entry.seq in band.entries:
            self._leave_queue(entry, band, chosen, now)
        else:
            entry.move(Event.DISPATCHED)
        self._recorder.sent(entry, endpoints, chosen, now)
        entry.follows = None
        tree.lent(node)
        self._charges.dispatched(tree, entry)
        if self._quotas.started(entry.account):
            self._capped.hold(entry)
        self._lease_serial += 1
        lease = Lease(
            self._lease_serial,
            endpoint=chosen.name,
            epoch=chosen.ledger.epoch,
            request_id=request.id,
            now=now,
            prompt_tokens=entry.uncached_tokens,
            output_tokens=entry.estimate.output_tokens,
            streamed=request.streamed,
        )
        lease.cached_tokens, lease.source = entry.cached_tokens, entry.source
        lease.prefix, lease.twin_computing = request.prefix, entry.twin_computing
        lease.keys_since, lease.sought = entry.keys_since, entry.sought
        assert not self._settings.queue_enabled or len(chosen.ledger.leases) < chosen.slots
        decode = None
        if divides:
            lease.output_tokens, lease.streamed = 1, True  # its one token ends it, so its prefill's end is seen
            decode = self._reserve_decode(entry, partners, now)
            self._recorder.divided(entry, decode)
        entry.lease = lease
        self._leases[lease.serial] = entry
        if self._look_s == math.inf and chosen.movement.warm and len(self._pool) > 1:  # one alone is not judged
            self._look_s = now + CHECK_S
        chosen.ledger.add(lease)
        chosen.dispatches_total += 1
        chosen.last_lease = lease.serial
        self._affinity.used(chosen)
        if not entry.attempts and not entry.refusals and not entry.recalls:
            self._budget.sent(now)
        queued = self._queues.waiting > 0 and any(request.model in b.tree.root.backlog for b in self._queues.bands)
        self._forecast.dispatched(entry, queued=queued, now=now)
        self._queues.touch(chosen)
        rank = None
        if self._settings.engine_priority:
            rank = request.band * BAND_RANKS + min(node.waiting + node.in_flight, BAND_RANKS - 1)
        return Dispatch(request.id, chosen.name, lease.serial, entry.waited_s, rank, decode)

    def _leave_queue(self, entry: Entry, band: Band, chosen: Endpoint, now: float) -> None:
        """It waited, and goes to an endpoint."""
        self._groups.sent(entry, chosen, now)
        if entry.follows is None:
            if entry.seq not in band.bumped:  # else it is out of turn, and says nothing of how far turns have come
                band.tree.serve(entry)
            codel.leaves(band.settings, entry, now)
        self._unqueue(entry, Event.DISPATCHED, now)
        self._under_share.sent(entry, now)
        self._promised.sent(entry)
        if self._under_share.is_modest(entry, now):
            self._stagger.sent(entry.uncached_tokens / chosen.ledger.prefill.rate)

    def _usable(self, entry: Entry, now: float) -> list[Endpoint]:
        """Where it may be sent without waiting for its turn: prefill endpoints only with one that would answer it."""
        usable = self._pool.usable(entry.request, now, whole=entry.whole)
        if entry.whole or not self._pool.roles.any or self._partners(entry, now):
            return usable
        return [e for e in usable if e.role is not Role.PREFILL]

    def _partners(self, entry: Entry, now: float) -> list[Endpoint]:
        """The decode endpoints that may be leased for it: those with room, or where slots do not limit, the well."""
        if self._settings.queue_enabled:
            return self._candidates.partners(entry, now)
        usable = self._pool.usable(entry.request, now, whole=True)
        return [e for e in usable if e.role is Role.DECODE]

    def _reserve_decode(self, entry: Entry, partners: list[Endpoint], now: float) -> str:
        self._lease_serial += 1
        lease = self._pending.reserve(entry, partners, self._lease_serial, now)
        endpoint = self._pool[lease.endpoint]
        assert not self._settings.queue_enabled or len(endpoint.ledger.leases) <= endpoint.slots
        self._queues.touch(endpoint)
        return lease.endpoint

    def _release(self, entry: Entry, now: float, *, given_up: bool = False) -> Endpoint | None:
        """Give the slot back, exactly once; `given_up`: the engine is not done yet. None when its endpoint is gone."""
        lease = entry.held()
        del self._leases[lease.serial]
        entry.lease = None
        if self._pending.leases and (answering := self._pending.drop(entry, now)) is not None:
            self._queues.touch(answering)
        self._recorder.released(entry)
        self._tree(entry).returned(entry.node_of())
        if self._quotas.ended(entry.account):
            self._capped.let_go(entry.account)
        self._reserved.freed(entry.model, now)
        endpoint = self._pool.holder(lease)
        if endpoint is not None:
            endpoint.ledger.remove(lease, now, given_up=given_up)
            self._queues.touch(endpoint)
        return endpoint
