"""Facts in, actions out: which request goes next, where, and what becomes of the rest.

This file only puts the pieces together. It is told what happened, each time with `now` (seconds, monotonic, never
going back), and answers with a list of actions. It never waits, never calls back, reads no clock and draws no
randomness but from the generator it is handed, so the same facts give the same actions.

Theory of operation. Every request enters the queue tree of its band; then one *pump* hands out whatever can be
handed out: band by band, in fair order, to endpoints that are open, chosen at that moment. A request that finds
nothing open simply stays. Everything that may open an endpoint (a lease that ends, a first token, a reading, a
timer) touches it and pumps again. So there is no "fast path" beside the queue, and none can overtake it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from random import Random

import msgspec

from penstock.core import admission, overload, retry
from penstock.core.actions import Abort, Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.admission import AdmissionSettings, Cause
from penstock.core.band import Band, BandSettings
from penstock.core.endpoint import Endpoint, EndpointSpec
from penstock.core.flow import Entry
from penstock.core.health import HealthSettings
from penstock.core.lease import Lease
from penstock.core.ledger import Observation
from penstock.core.lifecycle import Event, State
from penstock.core.outcome import Reason
from penstock.core.request import Request, Usage
from penstock.core.retry import Failure, Verdict
from penstock.core.routing.registry import POLICIES
from penstock.core.snapshot import EndpointSnapshot, QueueSnapshot, Snapshot
from penstock.core.timers import Timers

WINDOW = 32  # requests looked at, in fair order, when the first ones do not fit
BYPASS_MAX = 32  # times one request may be overtaken by others that fit; then room is kept for it
AVOID_S = 1.0  # a request that failed at an endpoint is tried elsewhere for that long
REFUSED_AVOID_S = 0.1  # a request that was refused; doubles with each refusal of the same request
REFUSED_AVOID_S_MAX = 2.0


class SchedulerSettings(msgspec.Struct, frozen=True):
    """What the scheduler has to know of the configuration. Durations in seconds."""

    bands: tuple[BandSettings, ...] = (BandSettings("standard"),)
    queue_enabled: bool = True
    requests_max: int = 10_000
    bytes_max: int = 1 << 30
    wait_s_max: float = 60.0
    admission: AdmissionSettings = AdmissionSettings()
    routing: str = "least_loaded"
    attempts_max: int = 3
    retry_budget: float = 0.2
    health: HealthSettings = HealthSettings()
    stale_after_s: float = 5.0  #: readings older than that are not used


class Scheduler:
    """The one owner of queues, leases and the view of the endpoints."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._bands = [Band(band, rank) for rank, band in enumerate(settings.bands)]
        self._endpoints: dict[str, Endpoint] = {}
        self._endpoints_added = 0
        self._entries: dict[str, Entry] = {}  # every request that has not ended
        self._leases: dict[int, Entry] = {}  # every lease that was not released
        self._seq = 0
        self._lease_serial = 0
        self._waiting_bytes = 0
        self._timers: Timers[int | str] = Timers()  # an arrival number, or an endpoint's name
        self._routing = POLICIES[settings.routing]()
        self._budget = retry.RetryBudget(settings.retry_budget)
        self._drain_rate = overload.DrainRate()
        self._draining = False
        self._queue_until_s: float | None = None
        self._stop_at_s: float | None = None

    # --- requests -----------------------------------------------------------------------------------------------

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        """A request came, whole. It is dispatched, waits, or is refused at once."""
        assert request.id not in self._entries, "request ids are unique among those that have not ended"
        self._seq += 1
        entry = Entry(request, self._seq)
        if self._draining:
            return [self._reject(entry, Reason.DRAINING, now)]
        refusal = self._unservable(request)
        if refusal is not None:
            return [self._reject(entry, refusal, now)]
        self._entries[request.id] = entry
        entry.move(Event.ADMITTED)
        entry.queued_since_s = now
        if request.pinned is not None or not self._settings.queue_enabled:
            endpoints = self._usable(request, now)
            if request.pinned is not None and self._settings.queue_enabled:
                endpoints = [e for e in endpoints if self._open_to(e, entry, now)]
            if endpoints:
                return [self._dispatch(entry, endpoints, now)]
            alive = request.pinned is not None and self._endpoints[request.pinned].health.up
            return [self._reject(entry, Reason.ENDPOINT_OVERLOADED if alive else Reason.NO_ENDPOINT, now)]
        actions: list[Action] = []
        band = self._bands[request.band]
        self._enqueue(entry, now)
        self._pump(now, actions)
        if entry.state is State.WAITING:
            if self._over_bounds(band):
                self._unqueue(entry, Event.REFUSED)
                actions.append(self._reject(entry, Reason.QUEUE_FULL, now))
            else:
                self._timers.set(entry.seq, now + self._wait_s_max(band))
        return actions

    def first_token(self, lease: int, *, now: float) -> list[Action]:
        """The first byte of the answer came: the prefill is over."""
        entry = self._leases[lease]
        assert entry.lease is not None
        entry.move(Event.FIRST_TOKEN)
        endpoint = self._endpoints.get(entry.lease.endpoint)
        if endpoint is None:
            return []
        endpoint.ledger.first_token(entry.lease, now)
        return self._touched(endpoint, now)

    def finished(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:  # noqa: ARG002
        """The last byte of an answer was read from the engine."""
        entry = self._leases[lease]
        endpoint = self._release(entry, now)
        entry.move(Event.FINISHED)
        self._forget(entry)
        if endpoint is None:
            return []
        was_ejected = endpoint.health.ejected(now)
        endpoint.health.succeeded()
        if was_ejected:
            self._touch_ejected(now)
        return self._touched(endpoint, now)

    def failed(self, lease: int, failure: Failure, *, now: float) -> list[Action]:
        """The dispatch failed. Before the first byte the request may go back to the queue."""
        entry = self._leases[lease]
        endpoint = self._release(entry, now)
        if endpoint is not None:
            self._blame(endpoint, failure, now)
        actions: list[Action] = []
        assert (entry.state is State.STREAMING) <= (failure is Failure.BROKEN), "nothing is taken back after it"
        if failure is Failure.BUSY:
            entry.refusals += 1
        else:
            entry.attempts += 1
        verdict = Verdict.FAIL
        if entry.request.pinned is None:
            verdict = retry.verdict(
                failure, attempts=entry.attempts, attempts_max=self._settings.attempts_max, budget=self._budget
            )
        if verdict is Verdict.FAIL:
            self._fail(entry, retry.final_reason(failure), now, actions)
        else:
            self._requeue(entry, failure, endpoint, now, actions)
        self._pump(now, actions)
        return actions

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        """The client hung up. A waiter leaves the queue; a running request's lease is released."""
        entry = self._entries[request_id]
        if entry.state is State.WAITING:
            self._unqueue(entry, Event.CANCELLED)
            self._forget(entry)
            return []
        endpoint = self._release(entry, now)
        entry.move(Event.CANCELLED)
        self._forget(entry)
        return self._touched(endpoint, now) if endpoint is not None else []

    # --- endpoints ----------------------------------------------------------------------------------------------

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        """An endpoint may be used from now on."""
        assert spec.name not in self._endpoints
        endpoint = Endpoint(
            spec,
            index=self._endpoints_added,
            health=self._settings.health,
            stale_after_s=self._settings.stale_after_s,
        )
        self._endpoints_added += 1
        self._endpoints[spec.name] = endpoint
        self._touch_ejected(now)
        return self._touched(endpoint, now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        """A probe found it alive."""
        endpoint = self._endpoints[name]
        endpoint.health.probed(up=True)
        self._touch_ejected(now)
        return self._touched(endpoint, now)

    def endpoint_down(self, name: str, *, now: float) -> list[Action]:
        """A probe found nobody there. What runs there is left to its own connection's fate."""
        endpoint = self._endpoints[name]
        endpoint.health.probed(up=False)
        self._touch_ejected(now)
        return self._touched(endpoint, now)

    def endpoint_changed(
        self,
        name: str,
        *,
        models: Iterable[str] | None = None,
        tells_models: bool | None = None,
        slots: int | None = None,
        now: float,
    ) -> list[Action]:
        """It told what it serves (or that it can't tell), or how many slots it has. None: as before."""
        endpoint = self._endpoints[name]
        if models is not None:
            endpoint.models = frozenset(models)
        if tells_models is not None:
            endpoint.tells_models = tells_models
        if slots is not None:
            endpoint.slots = slots
        self._touch_ejected(now)
        return self._touched(endpoint, now)

    def observed(self, name: str, reading: Observation | None, *, now: float) -> list[Action]:
        """A reading of its gauges came, or (None) none could be had."""
        endpoint = self._endpoints[name]
        if reading is not None:
            endpoint.ledger.observe(reading)
        return self._touched(endpoint, now)

    # --- time ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `expire` must be called next, None for never."""
        times = [self._timers.next(), self._queue_until_s, self._stop_at_s]
        return min((time for time in times if time is not None), default=None)

    def expire(self, *, now: float) -> list[Action]:
        """Let time pass: evict who waited too long, look again at what time may have opened."""
        actions: list[Action] = []
        for key in self._timers.due(now):
            if isinstance(key, str):
                if key in self._endpoints:
                    self._touch(self._endpoints[key])
                continue
            entry = self._waiting(key)
            if entry is not None:
                alive = any(e.health.up for e in self._endpoints.values() if e.serves(entry.request.model))
                self._evict(entry, Reason.QUEUE_TIMEOUT if alive else Reason.NO_ENDPOINT, now, actions)
        self._expire_drain(now, actions)
        self._pump(now, actions)
        return actions

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        """Admit nothing more. What waits is served until `queue_until_s`, what runs may go on until `stop_at_s`."""
        self._draining = True
        self._queue_until_s = queue_until_s
        self._stop_at_s = stop_at_s
        actions: list[Action] = []
        self._expire_drain(now, actions)
        return actions

    def _expire_drain(self, now: float, actions: list[Action]) -> None:
        stop = self._stop_at_s is not None and self._stop_at_s <= now
        if self._queue_until_s is not None and (stop or self._queue_until_s <= now):
            self._queue_until_s = None
            for band in self._bands:
                for entry in list(band.entries.values()):
                    self._evict(entry, Reason.DRAINING, now, actions)
        if stop:
            self._stop_at_s = None
            actions.extend(Abort(entry.request.id, Reason.DRAINING) for entry in self._leases.values())

    # --- the pump -----------------------------------------------------------------------------------------------

    def _pump(self, now: float, actions: list[Action]) -> None:
        """Dispatch until nothing that waits may be sent."""
        for band in self._bands:
            while band.tree.waiting:
                found = self._next(band, now)
                if found is None:
                    break
                entry, endpoints = found
                actions.append(self._dispatch(entry, endpoints, now))

    def _next(self, band: Band, now: float) -> tuple[Entry, list[Endpoint]] | None:
        """The request to send next and the endpoints it may go to, None when the band can send nothing."""
        self._check_open(band, now)
        if not band.open:
            return None
        models = [m for m in band.tree.models() if any(e.serves(m) for e in band.open)]
        if not models:
            return None
        head = band.tree.head(models)
        assert head is not None
        endpoints = self._fitting(head, band.open, now)
        if endpoints:
            return head, endpoints
        return self._overtake(band, models, now)

    def _overtake(self, band: Band, models: list[str], now: float) -> tuple[Entry, list[Endpoint]] | None:
        """The first of those behind the head that fits somewhere, unless someone passed over too often needs it.

        If none of the first in fair order fits, each model is looked at alone, so that many requests that do not
        fit hide only others of their own model.
        """
        free = dict(band.open)
        found = self._first_fit(band, models, free, now)
        if found is None and len(models) > 1:
            alone = (self._first_fit(band, [model], free, now) for model in models)
            found = next((fit for fit in alone if fit is not None), None)
        return found

    def _first_fit(
        self, band: Band, models: list[str], free: dict[Endpoint, None], now: float
    ) -> tuple[Entry, list[Endpoint]] | None:
        """The first within the window that fits; takes out of `free` what is kept for those it passes."""
        passed: list[Entry] = []
        for entry in islice(band.tree.in_order(models), WINDOW):
            endpoints = self._fitting(entry, free, now)
            if endpoints:
                for overtaken in passed:
                    overtaken.bypassed += 1
                return entry, endpoints
            passed.append(entry)
            if entry.bypassed >= BYPASS_MAX:
                for endpoint in list(free):
                    if endpoint.serves(entry.request.model) and not entry.shuns(endpoint.name, now):
                        del free[endpoint]
        return None

    def _check_open(self, band: Band, now: float) -> None:
        for endpoint in band.unchecked:
            cause = self._closed(endpoint, band.settings, now)
            if cause is None:
                band.open[endpoint] = None
            else:
                self._look_again(endpoint, admission.lifts_s(cause, endpoint, now=now))
        band.unchecked.clear()

    def _look_again(self, endpoint: Endpoint, when: float) -> None:
        """Arm the endpoint's one timer. Whoever finds it closed arms it anew, so an earlier use loses nothing."""
        if when != math.inf:
            self._timers.set_earlier(endpoint.name, when)

    def _closed(self, endpoint: Endpoint, band: BandSettings, now: float) -> Cause | None:
        return self._unhealthy(endpoint, now) or admission.closed(endpoint, band, self._settings.admission, now=now)

    def _unhealthy(self, endpoint: Endpoint, now: float) -> Cause | None:
        health = endpoint.health
        if not health.up:
            return Cause.NO_BACKEND
        if health.held(now):
            return Cause.HELD
        if health.ejected(now) and not self._panics(endpoint, now):
            return Cause.EJECTED
        return None

    def _panics(self, endpoint: Endpoint, now: float) -> bool:
        """Whether so few of the endpoints that share its models are left that ejections are ignored."""
        up = [e for e in self._endpoints.values() if e.health.up and e.shares_models(endpoint)]
        healthy = sum(not e.health.ejected(now) for e in up)
        return healthy < len(up) * self._settings.health.panic_threshold

    def _fitting(self, entry: Entry, endpoints: Iterable[Endpoint], now: float) -> list[Endpoint]:
        model = entry.request.model
        fitting: list[Endpoint] = []
        for endpoint in endpoints:
            if not endpoint.serves(model):
                continue
            cause = admission.misfit(entry, endpoint, self._settings.admission, now=now)
            if cause is None:
                fitting.append(endpoint)
            elif cause is Cause.SHUNNED:
                self._look_again(endpoint, entry.shuns_until_s(endpoint.name))
            else:
                self._look_again(endpoint, admission.lifts_s(cause, endpoint, now=now))
        return fitting

    def _open_to(self, endpoint: Endpoint, entry: Entry, now: float) -> bool:
        band = self._bands[entry.request.band].settings
        return (
            self._closed(endpoint, band, now) is None
            and admission.misfit(entry, endpoint, self._settings.admission, now=now) is None
        )

    def _usable(self, request: Request, now: float) -> list[Endpoint]:
        """Endpoints a request may go to without waiting for its turn: alive, and its own where it is pinned."""
        return [
            e
            for e in self._endpoints.values()
            if e.serves(request.model)
            and (request.pinned is None or e.name == request.pinned)
            and self._unhealthy(e, now) is None
        ]

    def least_loaded(self, model: str, *, now: float) -> str | None:
        """Where to send something that needs neither queue nor lease (tokenizing); None when nobody is alive."""
        usable = self._usable(Request(id="", model=model, band=0), now)
        if not usable:
            return None
        return min(usable, key=lambda e: (e.ledger.load(now) / max(1, e.slots), e.index)).name

    def wanted(self, name: str) -> bool:
        """Whether requests wait that this endpoint could serve: its gauges matter now."""
        endpoint = self._endpoints[name]
        return any(endpoint.serves(model) for band in self._bands for model in band.tree.models())

    def _unservable(self, request: Request) -> Reason | None:
        if request.pinned is not None:
            endpoint = self._endpoints.get(request.pinned)
            if endpoint is None:
                return Reason.ENDPOINT_NOT_FOUND
            if endpoint.serves(request.model):
                return None
            return Reason.NO_ENDPOINT if endpoint.models is None else Reason.MODEL_NOT_FOUND
        return None if self.knows(request.model) is not False else Reason.MODEL_NOT_FOUND

    def knows(self, model: str) -> bool | None:
        """Whether some endpoint serves the model; None while one that tells its models has not told."""
        if any(e.serves(model) for e in self._endpoints.values()):
            return True
        told = all(e.models is not None or not e.tells_models for e in self._endpoints.values())
        return False if told and self._endpoints else None

    # --- single steps -------------------------------------------------------------------------------------------

    def _dispatch(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        """Pop the request and take the lease, in one step."""
        request = entry.request
        chosen = self._routing.choose(request, endpoints, now=now)
        if entry.seq in self._bands[request.band].entries:
            self._unqueue(entry, Event.DISPATCHED)
            entry.waited_s += now - entry.queued_since_s
        else:
            entry.move(Event.DISPATCHED)
        self._lease_serial += 1
        lease = Lease(
            serial=self._lease_serial,
            endpoint=chosen.name,
            epoch=chosen.ledger.epoch,
            request_id=request.id,
            dispatched_s=now,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            streamed=request.streamed,
            prefill_end_s=now,
        )
        assert not self._settings.queue_enabled or len(chosen.ledger.leases) < chosen.slots
        entry.lease = lease
        self._leases[lease.serial] = entry
        chosen.ledger.add(lease)
        chosen.dispatches_total += 1
        self._budget.dispatched()
        self._drain_rate.dispatched(now)
        self._touch(chosen)
        return Dispatch(request.id, chosen.name, lease.serial, entry.waited_s)

    def _release(self, entry: Entry, now: float) -> Endpoint | None:
        """Give the slot back, exactly once. None when its endpoint is gone."""
        lease = entry.lease
        assert lease is not None
        del self._leases[lease.serial]
        entry.lease = None
        endpoint = self._endpoints.get(lease.endpoint)
        if endpoint is not None:
            endpoint.ledger.remove(lease, now)
            self._touch(endpoint)
        return endpoint

    def _blame(self, endpoint: Endpoint, failure: Failure, now: float) -> None:
        if failure is Failure.CONNECT:
            endpoint.health.probed(up=False)
        elif failure is Failure.BUSY:
            endpoint.health.refused(now)
        else:
            endpoint.health.failed(now)
        self._touch(endpoint)
        self._touch_ejected(now)

    def _requeue(
        self, entry: Entry, failure: Failure, endpoint: Endpoint | None, now: float, actions: list[Action]
    ) -> None:
        """Let it wait again with its age kept, away from the endpoint that did not serve it."""
        if endpoint is not None:
            avoid_s = AVOID_S
            if failure is Failure.BUSY:
                avoid_s = min(REFUSED_AVOID_S * 2 ** min(entry.refusals - 1, 16), REFUSED_AVOID_S_MAX)
            entry.avoid = {name: until for name, until in (entry.avoid or {}).items() if until > now}
            entry.avoid[endpoint.name] = now + avoid_s
        over = self._draining and self._queue_until_s is None
        elsewhere: list[Endpoint] = []
        if not self._settings.queue_enabled and not over:
            elsewhere = [e for e in self._usable(entry.request, now) if not entry.shuns(e.name, now)]
            if not elsewhere:  # it can't wait, so this was its last answer
                self._fail(entry, retry.final_reason(failure), now, actions)
                return
        entry.move(Event.REQUEUED)
        actions.append(Requeue(entry.request.id, failure))
        left_s = self._wait_s_max(self._bands[entry.request.band]) - entry.waited_s
        if over:
            self._end_waiting(entry, Reason.DRAINING, now, actions)
        elif elsewhere:
            actions.append(self._dispatch(entry, elsewhere, now))
        elif left_s <= 0:
            self._end_waiting(entry, Reason.QUEUE_TIMEOUT, now, actions)
        else:
            self._enqueue(entry, now)
            self._timers.set(entry.seq, now + left_s)

    def _enqueue(self, entry: Entry, now: float) -> None:
        entry.queued_since_s = now
        band = self._bands[entry.request.band]
        entry.node = band.tree.root
        band.push(entry)
        self._waiting_bytes += entry.request.body_bytes

    def _unqueue(self, entry: Entry, event: Event) -> None:
        entry.move(event)
        self._bands[entry.request.band].remove(entry)
        self._waiting_bytes -= entry.request.body_bytes
        self._timers.cancel(entry.seq)

    def _reject(self, entry: Entry, reason: Reason, now: float) -> Reject:
        if entry.state is not State.REJECTED:
            entry.move(Event.REFUSED)
        self._forget(entry)
        return Reject(entry.request.id, reason, self._retry_after_s(reason, now))

    def _evict(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        self._unqueue(entry, Event.EVICTED)
        self._forget(entry)
        actions.append(Evict(entry.request.id, reason, self._retry_after_s(reason, now)))

    def _end_waiting(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        """Evict a request that came back and can't wait any more."""
        entry.move(Event.EVICTED)
        self._forget(entry)
        actions.append(Evict(entry.request.id, reason, self._retry_after_s(reason, now)))

    def _fail(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        entry.move(Event.FAILED)
        self._forget(entry)
        actions.append(Fail(entry.request.id, reason, self._retry_after_s(reason, now)))

    def _forget(self, entry: Entry) -> None:
        self._entries.pop(entry.request.id, None)

    def _retry_after_s(self, reason: Reason, now: float) -> float | None:
        if reason in _NO_RETRY_AFTER:
            return None
        waiting = sum(band.tree.waiting for band in self._bands)
        wait_s = overload.estimated_wait_s(waiting + 1, self._drain_rate.per_s(now))
        return overload.retry_after_s(wait_s, self._random.random())

    def _wait_s_max(self, band: Band) -> float:
        own_s = band.settings.wait_s_max
        return self._settings.wait_s_max if own_s is None else own_s

    def _over_bounds(self, band: Band) -> bool:
        settings = self._settings
        return (
            sum(b.tree.waiting for b in self._bands) > settings.requests_max
            or self._waiting_bytes > settings.bytes_max
            or (band.settings.requests_max is not None and band.tree.waiting > band.settings.requests_max)
        )

    def _waiting(self, seq: int) -> Entry | None:
        for band in self._bands:
            if seq in band.entries:
                return band.entries[seq]
        return None

    def _touch(self, endpoint: Endpoint) -> None:
        for band in self._bands:
            band.touch(endpoint)

    def _touch_ejected(self, now: float) -> None:
        """Somebody's health changed: whether the ejections of others are ignored may have changed with it."""
        for endpoint in self._endpoints.values():
            if endpoint.health.ejected(now):
                self._touch(endpoint)

    def _touched(self, endpoint: Endpoint, now: float) -> list[Action]:
        self._touch(endpoint)
        actions: list[Action] = []
        self._pump(now, actions)
        return actions

    # --- the picture --------------------------------------------------------------------------------------------

    def snapshot(self, *, now: float) -> Snapshot:
        """The picture now."""
        queues: dict[tuple[str, int], list[Entry]] = {}
        for band in self._bands:
            for entry in band.entries.values():
                queues.setdefault((entry.request.model, band.rank), []).append(entry)
        return Snapshot(
            draining=self._draining,
            waiting=sum(band.tree.waiting for band in self._bands),
            waiting_bytes=self._waiting_bytes,
            running=len(self._leases),
            endpoints=[self._endpoint_snapshot(e, now) for e in self._endpoints.values()],
            queues=[
                QueueSnapshot(
                    model=model,
                    band=self._bands[rank].settings.name,
                    requests=len(entries),
                    body_bytes=sum(e.request.body_bytes for e in entries),
                    prompt_tokens=sum(e.request.prompt_tokens for e in entries),
                    oldest_wait_s=max(now - e.queued_since_s + e.waited_s for e in entries),
                )
                for (model, rank), entries in queues.items()
            ],
        )

    def _endpoint_snapshot(self, endpoint: Endpoint, now: float) -> EndpointSnapshot:
        health, ledger = endpoint.health, endpoint.ledger
        base = ledger.base if ledger.credible(now) else None
        if not health.up:
            state = "down"
        elif health.ejected(now):
            state = "ejected"
        else:
            state = "held" if health.held(now) else "up"
        return EndpointSnapshot(
            name=endpoint.name,
            state=state,
            models=sorted(endpoint.models) if endpoint.models is not None else None,
            slots=endpoint.slots,
            leases=len(ledger.leases),
            reserved=sum(lease.first_token_s is None for lease in ledger.leases.values()),
            load=ledger.load(now),
            engine_waiting=base.waiting if base is not None else None,
            engine_running=base.running if base is not None else None,
            kv_usage=base.kv_usage if base is not None else None,
            observed_s_ago=now - ledger.asked_s if base is not None else None,
            dispatches_total=endpoint.dispatches_total,
        )


_NO_RETRY_AFTER = frozenset(
    {
        Reason.MODEL_NOT_FOUND,
        Reason.ENDPOINT_NOT_FOUND,
        Reason.UPSTREAM_ERROR,
        Reason.UPSTREAM_TIMEOUT,
        Reason.STREAM_BROKEN,
    }
)
