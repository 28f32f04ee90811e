"""Invariants of the scheduler, checked after every fact that may send or end something.

`CheckedScheduler` replaces a `Scheduler`. It keeps a second set of books from the actions alone, and after
each fact compares them with the scheduler's, recomputes the scheduler's memory, and raises `AssertionError` at the
first difference:

- each request ends once, every action names a request that it is valid for, and charges are true;
- leases held equal slots in use, in the books, in the scheduler and in the ledgers; none is granted past the limit;
- the queues keep their bounds, make room by displacing the youngest of the lowest band, and tenants keep their limits;
- no request waits past `max_wait` or its deadline; each dispatch is the choice of a naive pump (`oracle.py`), so no
  sendable request waits. The sums of the trees are recomputed (`tree_check.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Literal

from penstock.conformance.oracle import Oracle
from penstock.conformance.tree_check import check_tree
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.health import Presence
from penstock.core.endpoints.roles import Role
from penstock.core.queueing.band import Band, Verdict
from penstock.core.queueing.entry import MAY_WAIT, NO_AFFINITY, NO_RETRY, Entry
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Cause, Failure, Outcome, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.located import Source
from penstock.core.values.observation import Glimpse, Observation
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import EndpointLimits, EndpointSpec, Limits
from penstock.core.values.takeover import Underway

ROUNDING_S = 1e-6  # rounding error of sums of a few times
THOROUGH_BELOW = 200  # waiting requests up to which everything is checked after every fact, beyond: now and then


class Books:
    """A driver's knowledge of its requests, from its facts and actions."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}  # not ended
        self.between: set[str] = set()  # reported, and not yet answered
        self.waiting: set[str] = set()
        self.requeued: set[str] = set()  # of those not ended, which were back in the queue at least once
        self.leases: dict[int, Dispatch | Decode] = {}
        self.answering: dict[str, str] = {}  # of requests with prompts being computed: the decode endpoint
        self.lease_of: dict[str, int] = {}
        self.outcomes: Counter[Outcome] = Counter()

    def arrived(self, request: Request) -> None:
        assert request.id not in self.requests
        self.requests[request.id] = request
        self.between.add(request.id)

    def rerouted(self, lease: int, endpoint: str) -> None:
        self.leases[lease] = Dispatch(self.leases[lease].request_id, endpoint, lease, 0.0)

    def released(self, lease: int) -> str:
        request_id = self.leases.pop(lease).request_id
        del self.lease_of[request_id]
        self.answering.pop(request_id, None)
        return request_id

    def ended(self, request_id: str, outcome: Outcome) -> None:
        del self.requests[request_id]
        self.waiting.discard(request_id)
        self.requeued.discard(request_id)
        self.between.discard(request_id)
        self.outcomes[outcome] += 1

    def note(self, action: Action) -> None:
        """Book an action; asserts that it makes sense in its request's state."""
        request_id = action.request_id
        match action:
            case Dispatch():
                assert request_id in self.waiting | self.between, action
                assert action.lease not in self.leases, action
                self.waiting.discard(request_id)
                self.between.discard(request_id)
                self.leases[action.lease] = action
                self.lease_of[request_id] = action.lease
                if action.decode is not None:
                    self.answering[request_id] = action.decode
            case Decode():
                assert request_id in self.between, action
                assert action.lease not in self.leases, action
                self.between.remove(request_id)
                self.leases[action.lease] = action
                self.lease_of[request_id] = action.lease
            case Requeue():
                if action.cause in (Cause.STUCK, Cause.ENGINE_QUEUE, Cause.PREEMPTED):
                    self.between.add(self.released(self.lease_of[request_id]))
                assert request_id in self.between, action
                self.between.remove(request_id)
                self.waiting.add(request_id)
                self.requeued.add(request_id)
            case Abort():
                assert request_id in self.lease_of, action
            case Reject() | Fail():
                assert request_id in self.between, action
                self.ended(request_id, action.outcome)
            case Evict():
                assert request_id in self.waiting or (action.reason is Reason.DEADLINE_MISSED), action
                assert request_id in self.waiting | self.between, action
                self.ended(request_id, action.outcome)

    def adopted(self, request: Request, underway: Underway | None) -> None:
        """Another scheduler let it in: no bound of this one holds for it."""
        assert request.id not in self.requests
        self.requests[request.id] = request
        self.requeued.add(request.id)
        if underway is None:
            self.waiting.add(request.id)
            return
        self.leases[underway.lease] = Dispatch(request.id, underway.endpoint, underway.lease, 0.0)
        self.lease_of[request.id] = underway.lease
        if underway.decode is not None:
            self.answering[request.id] = underway.decode

    def forgotten(self, request_id: str) -> None:
        """Another scheduler decides about it."""
        if request_id not in self.waiting:
            self.released(self.lease_of[request_id])
        self.waiting.discard(request_id)
        self.requeued.discard(request_id)
        del self.requests[request_id]

    def settle(self) -> None:
        """After a fact: an arrived request without an action waits; a withdrawn one got an action."""
        for request_id in self.between:
            assert request_id not in self.requeued, f"{request_id} failed, and nothing was decided"
            self.waiting.add(request_id)
        self.between.clear()


class DecisionChecks:
    """The rules of single decisions."""

    def __init__(self, state: SchedulerState, oracle: Oracle) -> None:
        self._state = state
        self._oracle = oracle

    def sends_alone(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        self._oracle.check_alone(entry, endpoints, now)

    def sends(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        state = self._state
        if state.settings.queue_enabled:
            for endpoint in endpoints:
                assert endpoint.serves(entry.model) or entry.pinned == endpoint.name
                assert state.pauses.sends(entry.model), f"{entry.request} is sent, and its model is paused"
                assert self._oracle.healthy(endpoint, now), f"{endpoint} is not well, and is given {entry.request}"
                assert len(endpoint.ledger.leases) < endpoint.slots, f"{endpoint} is full, and is given {entry.request}"
                assert entry.pinned is not None or self._oracle.computes(entry, endpoint)
        if state.settings.queue_enabled and entry.pinned is None:
            may_be_late = state.recorder.trail(entry).tried
            waiting = [x for band in state.queues.bands for x in band.entries.values() if x is not entry]
            crowded = any(x.request.model == entry.model for x in waiting)
            needs_s = state.forecast.first_token_s if crowded else state.forecast.soonest_s
            assert may_be_late or now + needs_s(entry, now) <= entry.deadline_s
            self._oracle.check_choice(entry, endpoints, now)
        assert entry.charged == 0.0, f"{entry.request} was charged {entry.charged} before it was sent"

    def sent(self, entry: Entry, dispatch: Dispatch) -> None:
        assert entry.charged == entry.cost
        divided = not entry.whole and self._state.pool[dispatch.endpoint].role is Role.PREFILL
        assert divided == (dispatch.decode is not None), dispatch

    def reserves(self, entry: Entry, partners: list[Endpoint], now: float) -> None:
        for endpoint in partners:
            assert endpoint.role is Role.DECODE
            assert endpoint.serves(entry.model)
            if self._state.settings.queue_enabled:
                assert self._oracle.healthy(endpoint, now), f"{endpoint} is not well, and is to answer {entry.request}"
                assert len(endpoint.ledger.leases) < endpoint.slots, f"{endpoint} is full, and is to answer"

    def settled(self, entry: Entry, usage: Usage | None) -> None:
        true_cost = 0.0
        if usage is not None:
            true_cost = self._state.charges.policy(entry.band, entry.prices).cost(
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
            )
        assert entry.charged == true_cost, f"{entry.request} was charged {entry.charged}, its cost was {true_cost}"


class CheckedScheduler(Scheduler):
    """A scheduler that checks its invariants after every fact that may send or end something."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(settings, random=random)
        self.books = Books()
        self._facts = 0
        self._thorough_at = -1  # how many facts there had been when all was checked last
        self._ran: Counter[str] = Counter()  # requests of each account at engines when limits last changed
        self._waited: set[str] = set()  # requests queued when settings last changed
        self._oracle = Oracle(self.inspect())
        self._state.watcher = DecisionChecks(self.inspect(), self._oracle)

    # --- facts --------------------------------------------------------------------------------------------------

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        before = [entry for band in self._state.queues.bands[request.band + 1 :] for entry in band.entries.values()]
        first_visits = {entry.id: (entry.band, entry.waits_since_s, entry.seq) for entry in before if entry.visit <= 1}
        self.books.arrived(request)
        actions = self._checked(super().arrived(request, now=now), now)
        self._check_displaced(request, actions, first_visits)
        if request.id in self.books.waiting:
            self._check_room(request, {action.request_id for action in actions if isinstance(action, Requeue)})
        return actions

    def finished(self, lease: int, usage: Usage | None = None, *, refused: bool = False, now: float) -> list[Action]:
        self.books.ended(self.books.released(lease), Outcome.COMPLETED)
        return self._checked(super().finished(lease, usage, refused=refused, now=now), now)

    def answered(
        self, request_id: str, usage: Usage | None = None, *, refused: bool = False, now: float
    ) -> list[Action]:
        if request_id not in self.books.waiting:
            self.books.released(self.books.lease_of[request_id])
        self.books.ended(request_id, Outcome.COMPLETED)
        return self._checked(super().answered(request_id, usage, refused=refused, now=now), now)

    def failed(
        self,
        lease: int,
        failure: Failure,
        *,
        now: float,
        answering: bool = False,
        retry_after_s: float = 0.0,
    ) -> list[Action]:
        request_id = self.books.released(lease)
        self.books.between.add(request_id)
        actions = super().failed(lease, failure, answering=answering, retry_after_s=retry_after_s, now=now)
        self._checked(actions, now)
        assert any(isinstance(a, Requeue | Fail) and a.request_id == request_id for a in actions)
        return actions

    def rerouted(self, lease: int, endpoint: str, *, now: float) -> list[Action]:
        if self._state.pool.get(endpoint) is not None:
            self.books.rerouted(lease, endpoint)
        return self._checked(super().rerouted(lease, endpoint, now=now), now)

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        promised = self.books.answering[self.books.leases[lease].request_id]
        was_up = (endpoint := self._state.pool.get(promised)) is not None and endpoint.health.up
        request_id = self.books.released(lease)
        self.books.between.add(request_id)
        actions = self._checked(super().prefilled(lease, usage, now=now), now)
        following = [a for a in actions if isinstance(a, Decode)]
        assert [a.request_id for a in following] == [request_id]
        assert following[0].endpoint == promised or not was_up, f"{following} although {promised} was promised"
        return actions

    def cancelled(self, request_id: str, *, unsent: bool = False, now: float) -> list[Action]:
        waits = request_id in self.books.waiting
        if not waits:
            self.books.released(self.books.lease_of[request_id])
        self.books.ended(request_id, Outcome.EVICTED if waits or unsent else Outcome.FAILED)
        return self._checked(super().cancelled(request_id, unsent=unsent, now=now), now)

    def endpoint_removed(self, name: str, *, now: float) -> list[Action]:
        actions = self._checked(super().endpoint_removed(name, now=now), now)
        pool = self._state.pool
        assert pool.get(name) is None
        known = set(pool)
        for band in self._state.queues.bands:
            assert known.issuperset(band.open)
            assert known.issuperset(band.unchecked)
        return actions

    def adopted(
        self,
        request: Request,
        *,
        came_s: float,
        waited_s: float,
        underway: Underway | None = None,
        decided: bool = True,
        now: float,
    ) -> list[Action]:
        """It dispatches nothing; a tenant may run more than its limit, and the queue may exceed its bounds."""
        self.books.adopted(request, underway)
        self._ran = self._runs()
        self._waited.add(request.id)
        actions = super().adopted(
            request, came_s=came_s, waited_s=waited_s, underway=underway, decided=decided, now=now
        )
        self._checked(actions, now)
        assert not actions
        return actions

    def forgotten(self, request_ids: Iterable[str], *, now: float) -> list[Action]:
        known = [name for name in request_ids if name in self.books.requests]
        for name in known:
            self.books.forgotten(name)
        actions = self._checked(super().forgotten(known, now=now), now)
        assert not actions
        return actions

    def _runs(self) -> Counter[str]:
        return Counter(
            [name for d in self.books.leases.values() for name in self.books.requests[d.request_id].accounts]
        )

    def apportioned(self, gateways: int, *, now: float) -> list[Action]:
        self._before_change()
        actions = self._checked(super().apportioned(gateways, now=now), now)
        self._check_changed(actions)
        return actions

    def reconfigured(self, settings: SchedulerSettings, *, now: float) -> list[Action]:
        self._before_change()
        actions = self._checked(super().reconfigured(settings, now=now), now)
        self._check_changed(actions)
        return actions

    def _before_change(self) -> None:
        """New limits and bounds do not hold for requests from before the change."""
        self._ran = self._runs()
        self.books.requeued |= self.books.waiting
        self._waited = set(self.books.waiting)

    def _check_changed(self, actions: list[Action]) -> None:
        """No request is lost by other settings, except those now too late, or for a model that they drop."""
        self._check_only_late(actions, Reason.MODEL_NOT_FOUND)
        entries, bands = self._state.entries, self._state.queues.bands
        for name in self.books.requests:
            self.books.requests[name] = entries[name].request
        assert [band.settings for band in bands] == list(self._state.settings.bands)
        waiting = [entry for entry in entries.values() if entry.state is State.WAITING]
        assert all(entry.seq in bands[entry.band].entries for entry in waiting)

    def _check_only_late(self, actions: list[Action], *also: Reason) -> None:
        reasons = {Reason.DEADLINE_MISSED, *also}  # mypyc takes no star behind `in`
        late = {a.request_id for a in actions if isinstance(a, Evict) and a.reason in reasons}
        rest = [a for a in actions if not isinstance(a, Dispatch) and a.request_id not in late]
        assert all(isinstance(a, Requeue) and a.cause == Cause.PREEMPTED for a in rest), actions

    def tenants_limited(self, limits: Mapping[str, Limits], *, now: float) -> list[Action]:
        self._ran = self._runs()
        self.books.requeued |= self.books.waiting
        actions = self._checked(super().tenants_limited(limits, now=now), now)
        self._check_only_late(actions)
        return actions

    def tenants_weighed(self, weights: Mapping[str, float], *, now: float) -> list[Action]:
        return self._checked(super().tenants_weighed(weights, now=now), now)

    def expire(self, *, now: float) -> list[Action]:
        actions = self._checked(super().expire(now=now), now)
        due_s = self.next_deadline()
        assert due_s is None or due_s > now, f"asked to expire({due_s}) again at {now}"
        for band in self._state.queues.bands:
            for entry in band.entries.values():
                waited_s = entry.waited_s + now - entry.queued_since_s
                assert waited_s < entry.wait_s_max + ROUNDING_S, f"{entry.request} has waited {waited_s} s"
                assert now <= entry.deadline_s + ROUNDING_S, f"{entry.request} waits past {entry.deadline_s}"
        return actions

    # Facts after which nothing is checked but the invariants.

    def first_token(self, lease: int, *, well: bool = True, now: float) -> list[Action]:
        return self._checked(super().first_token(lease, well=well, now=now), now)

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:
        return self._checked(super().progressed(lease, output_tokens, now=now), now)

    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]:
        return self._checked(super().located(request_id, keys, block_tokens, now=now), now)

    def cached(
        self, request_id: str, tokens: Mapping[str, int], source: Source = Source.LMCACHE, *, now: float
    ) -> list[Action]:
        return self._checked(super().cached(request_id, tokens, source, now=now), now)

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        return self._checked(super().endpoint_added(spec, now=now), now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        return self._checked(super().endpoint_up(name, now=now), now)

    def endpoint_down(self, name: str, *, presence: Presence = Presence.DOWN, now: float) -> list[Action]:
        return self._checked(super().endpoint_down(name, presence=presence, now=now), now)

    def endpoint_changed(
        self,
        name: str,
        *,
        models: Iterable[str] | None = None,
        tells_models: bool | None = None,
        vouched: bool | None = None,
        by_word: bool = False,
        key_refused: bool | None = None,
        silent: bool | None = None,
        slots: int | Literal["auto"] | None = None,
        told_slots: int | None = None,
        lingers: bool | None = None,
        contexts: Mapping[str, int] | None = None,
        adapters: Iterable[str] | None = None,
        price: float | None = None,
        weight: float | None = None,
        limits: EndpointLimits | None = None,
        kv_tokens: int | None = None,
        keeps_prefixes: bool | None = None,
        now: float,
    ) -> list[Action]:
        return self._checked(
            super().endpoint_changed(
                name,
                models=models,
                tells_models=tells_models,
                vouched=vouched,
                by_word=by_word,
                key_refused=key_refused,
                silent=silent,
                slots=slots,
                told_slots=told_slots,
                lingers=lingers,
                contexts=contexts,
                adapters=adapters,
                price=price,
                weight=weight,
                limits=limits,
                kv_tokens=kv_tokens,
                keeps_prefixes=keeps_prefixes,
                now=now,
            ),
            now,
        )

    def endpoint_drained(self, name: str, *, leaves: bool = False, now: float) -> list[Action]:
        return self._checked(super().endpoint_drained(name, leaves=leaves, now=now), now)

    def endpoint_resumed(self, name: str, *, now: float) -> list[Action]:
        return self._checked(super().endpoint_resumed(name, now=now), now)

    def observed(self, name: str, reading: Observation | None, *, answered: bool = False, now: float) -> list[Action]:
        return self._checked(super().observed(name, reading, answered=answered, now=now), now)

    def glimpsed(self, name: str, part: Glimpse, *, now: float) -> list[Action]:
        return self._checked(super().glimpsed(name, part, now=now), now)

    def paused(self, model: str | None, *, now: float) -> list[Action]:
        return self._checked(super().paused(model, now=now), now)

    def resumed(self, model: str | None, *, now: float) -> list[Action]:
        return self._checked(super().resumed(model, now=now), now)

    def bumped(self, request_id: str, *, now: float) -> list[Action]:
        return self._checked(super().bumped(request_id, now=now), now)

    def kv_cleared(self, endpoint: str, *, now: float) -> list[Action]:
        return self._checked(super().kv_cleared(endpoint, now=now), now)

    def kv_removed(self, endpoint: str, keys: Sequence[int], *, gone: bool = True, now: float) -> list[Action]:
        return self._checked(super().kv_removed(endpoint, keys, gone=gone, now=now), now)

    def session_paused(self, tenant: str, session: str, *, now: float) -> list[Action]:
        return self._checked(super().session_paused(tenant, session, now=now), now)

    def session_resumed(self, tenant: str, session: str, *, now: float) -> list[Action]:
        return self._checked(super().session_resumed(tenant, session, now=now), now)

    def session_preferred(self, tenant: str, session: str, *, now: float) -> list[Action]:
        return self._checked(super().session_preferred(tenant, session, now=now), now)

    def evicted(self, request_id: str, *, now: float) -> list[Action]:
        return self._checked(super().evicted(request_id, now=now), now)

    def all_evicted(self, request_ids: Iterable[str], *, now: float) -> list[Action]:
        return self._checked(super().all_evicted(request_ids, now=now), now)

    def halted(self, *, afresh: bool = False, now: float) -> list[Action]:
        return self._checked(super().halted(afresh=afresh, now=now), now)

    def begun(self, *, now: float, lease_from: int = 0, afresh: bool = False) -> list[Action]:
        return self._checked(super().begun(lease_from=lease_from, afresh=afresh, now=now), now)

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        return self._checked(super().drain(queue_until_s=queue_until_s, stop_at_s=stop_at_s, now=now), now)

    # --- invariants ---------------------------------------------------------------------------------------------

    def check(self, *, now: float) -> None:
        """All that must hold at any time; the facts call it, and so may anybody."""
        self._check_shared_records()
        self._check_leases()
        self._check_queue()
        self._check_tenants()
        self._check_gate()
        for band in self._state.queues.bands:
            own = [entry for entry in self._state.entries.values() if entry.band == band.rank]
            check_tree(band.tree, [entry for entry in own if entry.lease is not None or not entry.held])
            self._check_holds(band)
            self._check_verdicts(band, now)
        self._thorough_at = self._facts
        self._check_time(now)

    def check_later(self, *, now: float) -> None:
        """If only time has passed since the last fact, its results still hold."""
        if self._thorough_at == self._facts:
            self._check_time(now)
        else:
            self.check(now=now)

    def _check_time(self, now: float) -> None:
        due_s = self.next_deadline()
        if due_s is None or due_s > now:  # otherwise timers are due first
            self._oracle.check_nobody_waits_in_vain(now)

    def _checked(self, actions: list[Action], now: float) -> list[Action]:
        for action in actions:
            if isinstance(action, Evict | Reject) and action.reason is Reason.OVERLOAD:
                band = self._state.queues.bands[self.books.requests[action.request_id].band]
                assert band.settings.shed_target_s is not None, f"{action} in a band where nothing is shed"
            self.books.note(action)
        self.books.settle()
        if not self._state.settings.queue_enabled:
            known = [self.books.requests[name].model for name in self.books.waiting - self._waited]
            assert not any(self._state.pool.alive(model) for model in known), "nothing waits where queueing is off"
        self._facts += 1
        if self._facts % (1 + len(self.books.requests) // THOROUGH_BELOW) == 0:
            self.check(now=now)
        return actions

    def _check_shared_records(self) -> None:
        """The shared default record is unchanged."""
        assert not NO_AFFINITY.may_wait
        for shared in (NO_AFFINITY, MAY_WAIT):
            assert (shared.preferred, shared.until_s, shared.weighed_s) == ((), -math.inf, -math.inf)
        assert (NO_RETRY.attempts, NO_RETRY.recalls, NO_RETRY.refusals, NO_RETRY.excluded) == (0, 0, 0, {})

    def _check_leases(self) -> None:
        held = {serial: (entry.id, entry.leased().endpoint) for serial, entry in self._state.leases.items()}
        assert held == {serial: (d.request_id, d.endpoint) for serial, d in self.books.leases.items()}
        pending = self._state.pending.leases
        promised = {self._entries_by_seq(seq): lease.endpoint for seq, lease in pending.items()}
        assert promised == self.books.answering
        leases = [*[entry.leased() for entry in self._state.leases.values()], *pending.values()]
        for endpoint in self._state.pool:
            ledger = endpoint.ledger
            own = [lease for lease in leases if self._state.pool.holder(lease) is endpoint]
            assert all(lease.epoch <= ledger.epoch for lease in own)
            assert sorted(ledger.leases) == sorted(x.serial for x in own if x.epoch == ledger.epoch)
            waits = [x for x in own if x.pending]
            assert (ledger.pending, ledger.pending_tokens) == (len(waits), sum(x.tokens for x in waits))
            assert ledger.reserved == sum(x.first_token_s is None for x in ledger.leases.values())
            assert ledger.prefill.outstanding_tokens == sum(
                x.prompt_tokens - x.computed_tokens for x in ledger.prefill.leases.values()
            )

    def _entries_by_seq(self, seq: int) -> str:
        return next(entry.id for entry in self._state.leases.values() if entry.seq == seq)

    def _check_queue(self) -> None:
        queues, bounds = self._state.queues, self._state.settings.bounds
        entries = [entry for band in queues.bands for entry in band.entries.values()]
        waiting = {entry.id for entry in entries}
        assert waiting == self.books.waiting
        assert all(entry.state is State.WAITING and entry.charged == 0.0 for entry in entries)
        held = [entry for entry in entries if entry.held]
        assert (queues.waiting, queues.held) == (len(waiting) - len(held), len(held))
        assert queues.bytes == sum(entry.request.body_bytes for entry in entries)
        assert queues.tokens == sum(entry.prompt_tokens for entry in entries)
        new = [entry for entry in entries if entry.id not in self.books.requeued]
        assert len(new) <= bounds.requests_max
        assert sum(entry.request.body_bytes for entry in new) <= bounds.bytes_max
        assert sum(entry.prompt_tokens for entry in new) <= bounds.tokens_max
        for band in queues.bands:
            own = list(band.entries.values())
            assert band.bytes == sum(entry.request.body_bytes for entry in own)
            tokens: Counter[str] = Counter()
            for entry in own:
                tokens[entry.model] += entry.prompt_tokens
            assert (band.tokens, band.tokens_of) == (sum(tokens.values()), tokens)
            assert band.tree.waiting == sum(not entry.held for entry in own)
            assert band.held == Counter([entry.model for entry in own if entry.held])
        assert len(self._state.entries) == len(self.books.requests) == len(waiting) + len(self._state.leases)
        assert not (self._state.draining and self._state.queue_until_s is None and waiting), (
            "the drain is over, and some wait"
        )

    def _check_gate(self) -> None:
        """Booked sums equal residents, a session is resident at one endpoint, and stands in one line if it waits."""
        gate, ledger = self._state.gate, self._state.gate.ledger
        held = {entry.id for entry in self._state.entries.values() if entry.state is State.WAITING and entry.held}
        sessions = {turn.session.key: turn.session for turn in gate.turns.values()}
        assert held == {name for session in sessions.values() for name in session.waiting}
        waiting = [session for session in sessions.values() if session.waiting]
        assert gate.waiting == sum(not session.stopped for session in waiting)
        assert set(gate.lines) == {session.holder for session in waiting if not session.stopped}
        for session in waiting:
            assert session.home is None, f"{session.key} waits, and is resident"
            lines = [holder for holder in ledger.holders.values() if session.key in holder.line]
            assert lines == ([] if session.stopped else [session.holder]), f"{session.key} stands in {len(lines)} lines"
        by_holder: Counter[tuple[int, str]] = Counter()
        seen: set[str] = set()
        for memory in ledger.memories.values():
            booked = idle = marked = 0
            for holder, tenancy in memory.tenancies.items():
                assert tenancy.residents, "nobody of a tenant is resident, and he is remembered"
                own = sum(session.booked for session in tenancy.idle.values())
                assert tenancy.idle_tokens == own
                assert set(tenancy.idle) == {key for key, x in tenancy.residents.items() if x.idle}
                idle += own
                assert tenancy.booked == sum(session.booked for session in tenancy.residents.values())
                for key, session in tenancy.residents.items():
                    assert key not in seen, f"{key} is resident twice"
                    seen.add(key)
                    assert (session.home, session.holder) == (memory.name, holder)
                    assert session.booked == session.footprint == session.own + session.agents
                    marked += session.mark is not None and memory.marks[session.mark][key] is session
                    booked += session.booked
                    by_holder[holder.band, holder.name] += session.booked
            assert (memory.booked, memory.idle_tokens) == (booked, idle)
            assert marked == sum(map(len, memory.marks.values())), "a session is marked that is not resident"
            assert 0 < memory.usable <= memory.capacity
        assert all(holder.booked == by_holder[key] for key, holder in ledger.holders.items())
        under_way = {name for session in ledger.sessions.values() for name in session.parts}
        assert under_way | held == set(gate.turns), "turns that ended are remembered, or others forgotten"
        assert under_way <= set(self._state.entries)

    def _check_verdicts(self, band: Band, now: float) -> None:
        """A verdict that is kept equals one made now, unless the endpoint was touched or the verdict's time is over."""
        for endpoint in self._state.pool:
            if endpoint in band.unchecked:
                assert endpoint not in band.open, f"{endpoint.name} is to be judged, and is open"
                continue
            assert not endpoint.touched, f"{endpoint.name} was touched, and is not to be judged"
            assert (endpoint in band.open) != (endpoint in band.closed), f"{endpoint.name} is open and closed"
            kept = band.open.get(endpoint) or band.closed[endpoint]
            assert band.holds_until_s <= kept.until_s, f"the verdict on {endpoint.name} would not be looked at again"
            assert band.busy == sum(not verdict.idle for verdict in band.open.values()), "idle ones are miscounted"
            if now < kept.until_s:
                made = self._state.candidates.judge(endpoint, band.settings, now)
                shown, fresh = _shown(kept), _shown(made)
                assert shown == fresh, f"at {now} {endpoint} is {fresh} to {band.settings.name}, and counts as {shown}"

    def _check_holds(self, band: Band) -> None:
        """Exactly the models paused by operators, or with all endpoints closed, are held."""
        if band.unchecked or band.holds_changed:
            return  # looked at before anything is sent
        for model in band.tree.root.backlog:
            answering = [e for e in self._state.pool if e.serves(model) and e.role is not Role.PREFILL]
            held = not self._state.pauses.sends(model) or all(e in band.away for e in answering)
            assert held == (model in band.tree.held), f"{model} is {'' if held else 'not '}held"
        for endpoint in band.away:
            assert endpoint not in band.open, f"{endpoint.name} takes nothing, and is open"

    def _check_room(self, request: Request, returned: set[str]) -> None:
        """A new request was admitted: then all bounds hold, despite requests returned from engines before.

        `returned`: those that came back in the same step, after it was admitted.
        """
        bounds, its = self._state.settings.bounds, self._state.queues.bands[request.band].settings
        queued = [x for b in self._state.queues.bands for x in b.entries.values() if x.request.id not in returned]
        _check_within(queued, bounds.requests_max, bounds.bytes_max, bounds.tokens_max)
        in_band = [entry for entry in queued if entry.band == request.band]
        _check_within(in_band, its.requests_max, its.bytes_max, its.tokens_max)
        for account in request.accounts:
            limits = self._state.settings.tenants.get(account, Limits())
            own = [entry for entry in queued if account in entry.request.accounts]
            _check_within(own, limits.queued, limits.queued_bytes, limits.queued_tokens)

    def _check_displaced(
        self, request: Request, actions: Sequence[Action], first_visits: dict[str, tuple[int, float, int]]
    ) -> None:
        """A displaced request was the youngest of the lowest band, never ran, and made room for one that stayed."""
        for action in actions:
            if isinstance(action, Evict) and action.reason is not Reason.DISPLACED:
                first_visits.pop(action.request_id, None)
            if isinstance(action, Dispatch):
                first_visits.pop(action.request_id, None)
        victims = [a.request_id for a in actions if isinstance(a, Evict) and a.reason is Reason.DISPLACED]
        assert not victims or request.id in self._state.entries, f"{victims} had to go for {request}, who was refused"
        for victim in victims:
            youngest = max(first_visits, key=first_visits.__getitem__, default=None)
            assert victim == youngest, f"{victim} had to go for {request}"
            del first_visits[victim]

    def _check_tenants(self) -> None:
        running = self._runs()
        waiting = [self.books.requests[request_id] for request_id in self.books.waiting]
        for seen in self._state.quotas.snapshot(0.0, most=1_000_000, own=True):
            own = [request for request in waiting if seen.name in request.accounts]
            assert seen.running == running[seen.name]
            assert (seen.queued, seen.queued_bytes) == (len(own), sum(request.body_bytes for request in own))
            assert seen.queued_tokens == sum(self._state.entries[request.id].prompt_tokens for request in own)
            assert seen.limits.running is None or seen.running <= max(seen.limits.running, self._ran[seen.name])
        for account, flows in self._state.capped.flows.items():
            assert self._state.quotas.at_limit((account,)), f"{account} may run more, and its flows are held"
            assert all(node.capped for _, node in flows)


def _shown(verdict: Verdict) -> tuple[object, ...]:
    return verdict.cause, verdict.free_slots, verdict.room, verdict.room_over_share, verdict.idle


def _check_within(
    entries: Sequence[Entry], requests_max: int | None, bytes_max: int | None, tokens_max: int | None
) -> None:
    assert requests_max is None or len(entries) <= requests_max
    assert bytes_max is None or sum(x.request.body_bytes for x in entries) <= bytes_max
    assert tokens_max is None or sum(x.prompt_tokens for x in entries) <= tokens_max
