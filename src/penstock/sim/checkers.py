"""Is what the scheduler does right: invariants, checked after every fact it is told.

`CheckedScheduler` stands wherever a `Scheduler` does. It keeps a second set of books, those an honest driver keeps
from the actions alone, and after each fact compares them with the scheduler's, recomputes with fresh eyes what the
scheduler remembers, and raises `AssertionError` at the first difference:

- each request ends once, and every action names a request for which it makes sense;
- leases held equal slots in use, in the books, in the scheduler and in the ledgers; none is granted past the limit;
- the queue keeps its bounds (what comes back from an engine may exceed them), and nobody waits past `max_wait`;
- nobody waits who could be sent, bands are strict, and requests of one model and band leave in order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, product
from random import Random

from penstock.core import admission
from penstock.core.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.band import Band
from penstock.core.endpoint import Endpoint, EndpointSpec
from penstock.core.flow import Entry
from penstock.core.ledger import REVIEW_S, Observation
from penstock.core.outcome import Outcome
from penstock.core.request import Request, Usage
from penstock.core.retry import Failure
from penstock.core.scheduler import BYPASS_MAX, WINDOW, Scheduler, SchedulerSettings

ROUNDING_S = 1e-6  # what sums of a few times may be off by


class Books:
    """What a driver knows of its requests, from the facts it told and the actions it got."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}  # not ended
        self.between: set[str] = set()  # told of, and not yet answered for
        self.waiting: set[str] = set()
        self.requeued: set[str] = set()  # of those not ended, which were back in the queue at least once
        self.leases: dict[int, Dispatch] = {}
        self.lease_of: dict[str, int] = {}
        self.lines: dict[tuple[str, int], dict[str, Request]] = {}  # per model and band, in order of arrival
        self.outcomes: Counter[Outcome] = Counter()

    def arrived(self, request: Request) -> None:
        assert request.id not in self.requests
        self.requests[request.id] = request
        self.between.add(request.id)
        self.lines.setdefault((request.model, request.band), {})[request.id] = request

    def released(self, lease: int) -> str:
        request_id = self.leases.pop(lease).request_id
        del self.lease_of[request_id]
        return request_id

    def ended(self, request_id: str, outcome: Outcome) -> None:
        request = self.requests.pop(request_id)
        self.waiting.discard(request_id)
        self.requeued.discard(request_id)
        self.between.discard(request_id)
        self._leave_line(request)
        self.outcomes[outcome] += 1

    def note(self, action: Action) -> None:
        """Book an action; it must make sense for where its request stands."""
        request_id = action.request_id
        match action:
            case Dispatch():
                self._dispatched(action)
            case Requeue():
                assert request_id in self.between, action
                self.between.remove(request_id)
                self.waiting.add(request_id)
                self.requeued.add(request_id)
            case Abort():
                assert request_id in self.lease_of, action
            case Reject():
                assert request_id in self.between, action
                self.ended(request_id, action.outcome)
            case Evict():
                assert request_id in self.waiting, action
                self.ended(request_id, action.outcome)
            case Fail():
                assert request_id in self.between, action
                self.ended(request_id, action.outcome)

    def settle(self) -> None:
        """After a fact: who arrived and got no answer waits; who was taken back got one."""
        for request_id in self.between:
            assert request_id not in self.requeued, f"{request_id} failed, and nothing was decided"
            self.waiting.add(request_id)
        self.between.clear()

    def _dispatched(self, action: Dispatch) -> None:
        assert action.request_id in self.waiting | self.between, action
        assert action.lease not in self.leases, action
        self.waiting.discard(action.request_id)
        self.between.discard(action.request_id)
        self.leases[action.lease] = action
        self.lease_of[action.request_id] = action.lease
        self._leave_line(self.requests[action.request_id])

    def _leave_line(self, request: Request) -> None:
        line = self.lines.get((request.model, request.band), {})
        line.pop(request.id, None)
        if not line:
            self.lines.pop((request.model, request.band), None)

    def overtaken(self, request: Request) -> list[Request]:
        """Those who came before it, wait for the same, and were never sent."""
        line = self.lines.get((request.model, request.band), {})
        if request.id not in line:
            return []
        before: list[Request] = []
        for other in line.values():
            if other.id == request.id:
                break
            before.append(other)
        return before


class CheckedScheduler(Scheduler):
    """A scheduler that proves itself after every fact."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(settings, random=random)
        self.books = Books()

    # --- facts --------------------------------------------------------------------------------------------------

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        self.books.arrived(request)
        actions = self._checked(super().arrived(request, now=now), now)
        if request.id in self.books.waiting:
            self._check_room(request)
        return actions

    def first_token(self, lease: int, *, now: float) -> list[Action]:
        return self._checked(super().first_token(lease, now=now), now)

    def finished(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        self.books.ended(self.books.released(lease), Outcome.COMPLETED)
        return self._checked(super().finished(lease, usage, now=now), now)

    def failed(self, lease: int, failure: Failure, *, now: float) -> list[Action]:
        request_id = self.books.released(lease)
        self.books.between.add(request_id)
        actions = super().failed(lease, failure, now=now)
        assert any(isinstance(a, Requeue | Fail) and a.request_id == request_id for a in actions)
        return self._checked(actions, now)

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        waits = request_id in self.books.waiting
        if not waits:
            self.books.released(self.books.lease_of[request_id])
        self.books.ended(request_id, Outcome.EVICTED if waits else Outcome.FAILED)
        return self._checked(super().cancelled(request_id, now=now), now)

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        return self._checked(super().endpoint_added(spec, now=now), now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        return self._checked(super().endpoint_up(name, now=now), now)

    def endpoint_down(self, name: str, *, now: float) -> list[Action]:
        return self._checked(super().endpoint_down(name, now=now), now)

    def endpoint_changed(
        self,
        name: str,
        *,
        models: Iterable[str] | None = None,
        tells_models: bool | None = None,
        slots: int | None = None,
        now: float,
    ) -> list[Action]:
        changed = super().endpoint_changed(name, models=models, tells_models=tells_models, slots=slots, now=now)
        return self._checked(changed, now)

    def observed(self, name: str, reading: Observation | None, *, now: float) -> list[Action]:
        return self._checked(super().observed(name, reading, now=now), now)

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        return self._checked(super().drain(queue_until_s=queue_until_s, stop_at_s=stop_at_s, now=now), now)

    def expire(self, *, now: float) -> list[Action]:
        actions = self._checked(super().expire(now=now), now)
        due_s = self.next_deadline()
        assert due_s is None or due_s > now, f"asked to expire({due_s}) again at {now}"
        for band in self._bands:
            for entry in band.entries.values():
                waited_s = entry.waited_s + now - entry.queued_since_s
                assert waited_s < self._wait_s_max(band) + ROUNDING_S, f"{entry.request} has waited {waited_s} s"
        return actions

    # --- invariants ---------------------------------------------------------------------------------------------

    def check(self, *, now: float) -> None:
        """All that must hold at any time; the facts call it, and so may anybody."""
        self._check_leases()
        self._check_queue()
        due_s = self.next_deadline()
        if due_s is None or due_s > now:  # else time has something to say first
            self._check_nobody_waits_in_vain(now)

    def _checked(self, actions: list[Action], now: float) -> list[Action]:
        for action in actions:
            if isinstance(action, Dispatch):
                self._check_order(action)
            self.books.note(action)
        self.books.settle()
        dispatches = [action for action in actions if isinstance(action, Dispatch)]
        self._check_granted(dispatches, now)
        self.check(now=now)
        return actions

    def _check_leases(self) -> None:
        held = {serial: (entry.request.id, _lease_endpoint(entry)) for serial, entry in self._leases.items()}
        assert held == {serial: (d.request_id, d.endpoint) for serial, d in self.books.leases.items()}
        for endpoint in self._endpoints.values():
            ledger = endpoint.ledger
            every = [entry.lease for entry in self._leases.values() if entry.lease is not None]
            own = [lease for lease in every if lease.endpoint == endpoint.name]
            assert all(lease.epoch <= ledger.epoch for lease in own)
            assert sorted(ledger.leases) == sorted(x.serial for x in own if x.epoch == ledger.epoch)
            assert list(ledger.unseen) == [serial for serial, x in ledger.leases.items() if not x.seen]
            assert ledger.outstanding_prefill_tokens == sum(x.prompt_tokens for x in ledger.unseen.values())

    def _check_granted(self, dispatches: Sequence[Dispatch], now: float) -> None:
        if not self._settings.queue_enabled:
            return
        for dispatch in dispatches:
            endpoint = self._endpoints[dispatch.endpoint]
            assert len(endpoint.ledger.leases) <= endpoint.slots, f"{endpoint} was given {dispatch}"
            assert endpoint.serves(self._leases[dispatch.lease].request.model)
            assert endpoint.health.up, f"{endpoint} is down, and was given {dispatch}"
            assert now >= endpoint.health.held_until_s, f"{endpoint} is held, and was given {dispatch}"
            self._check_strict(dispatch, endpoint, now)

    def _check_queue(self) -> None:
        waiting = {entry.request.id for band in self._bands for entry in band.entries.values()}
        assert waiting == self.books.waiting
        assert self._waiting_bytes == sum(self.books.requests[request_id].body_bytes for request_id in waiting)
        assert all(band.tree.waiting == len(band.entries) for band in self._bands)
        assert len(waiting - self.books.requeued) <= self._settings.requests_max
        assert len(self._entries) == len(self.books.requests) == len(waiting) + len(self._leases)
        assert not (self._draining and self._queue_until_s is None and waiting), "the drain is over, and some wait"

    def _check_room(self, request: Request) -> None:
        band = self._bands[request.band]
        bound = band.settings.requests_max
        assert len(self.books.waiting) <= self._settings.requests_max
        assert self._waiting_bytes <= self._settings.bytes_max
        assert bound is None or len(band.entries) <= bound

    def _check_order(self, dispatch: Dispatch) -> None:
        """Requests never sent leave in order of arrival, but for one that is too large for the KV memory left."""
        request = self.books.requests[dispatch.request_id]
        base = self._endpoints[dispatch.endpoint].ledger.base
        tells_kv = base is not None and bool(base.kv_capacity_tokens)
        for other in self.books.overtaken(request):
            for_cause = tells_kv and _tokens(other) > _tokens(request)
            assert for_cause or request.pinned, f"{request.id} overtook {other.id}"

    def _check_strict(self, dispatch: Dispatch, endpoint: Endpoint, now: float) -> None:
        """No band is served while a higher one, whose conditions are no stricter, waits for the same endpoint."""
        request = self._leases[dispatch.lease].request
        band = self._bands[request.band]
        if request.pinned is not None:
            return
        for higher in self._bands[: band.rank]:
            if _stricter(higher, band):
                continue
            for entry in self._in_line(higher, endpoint.models or higher.tree.models()):
                fits = not entry.shuns(endpoint.name, now) and endpoint.ledger.kv_usage(now) is None
                assert not fits, f"{request.id} of {band.settings.name} was sent before {entry.request.id}"

    def _check_nobody_waits_in_vain(self, now: float) -> None:
        for band in self._bands:
            if not band.tree.waiting:
                continue
            free = [e for e in self._endpoints.values() if self._open(e, band, now)]
            line = self._in_line(band, band.tree.models()) if free else []
            patient = [entry for entry in line if entry.bypassed >= BYPASS_MAX]  # room is kept for them
            for entry, endpoint in product(line, free):
                if not endpoint.serves(entry.request.model):
                    continue
                kept = any(endpoint.serves(x.request.model) and not x.shuns(endpoint.name, now) for x in patient)
                fits = admission.misfit(entry, endpoint, self._settings.admission, now=now) is None
                assert kept or not fits, f"at {now} {entry.request.id} waits, and {endpoint} is open to it"

    def _in_line(self, band: Band, models: Iterable[str]) -> list[Entry]:
        """The first of a band that wait for each of the models: those that a decision takes into account."""
        waiting = sorted(band.entries.values(), key=lambda entry: (entry.key, entry.seq))
        return [entry for model in models for entry in islice((x for x in waiting if x.request.model == model), WINDOW)]

    def _open(self, endpoint: Endpoint, band: Band, now: float) -> bool:
        """Open, and where others' load just fades, long enough for the scheduler to have looked again."""
        fading = not endpoint.ledger.credible(now) and endpoint.ledger.foreign(now) > 0.01
        slack_s = REVIEW_S + ROUNDING_S if fading else 0.0
        return self._healthy(endpoint, now) and all(
            admission.closed(endpoint, band.settings, self._settings.admission, now=when) is None
            for when in (now - slack_s, now)
        )

    def _healthy(self, endpoint: Endpoint, now: float) -> bool:
        health = endpoint.health
        if not health.up or now < health.held_until_s:
            return False
        if now >= health.ejected_until_s:
            return True
        peers = [e for e in self._endpoints.values() if e.health.up and e.shares_models(endpoint)]
        well = sum(now >= e.health.ejected_until_s for e in peers)
        return well / len(peers) < self._settings.health.panic_threshold


def _lease_endpoint(entry: Entry) -> str:
    assert entry.lease is not None
    return entry.lease.endpoint


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.output_tokens


def _stricter(one: Band, other: Band) -> bool:
    return one.settings.ceiling < other.settings.ceiling or (
        one.settings.engine_waiting_max < other.settings.engine_waiting_max
    )
