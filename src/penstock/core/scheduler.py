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
from collections.abc import Iterable, Mapping
from random import Random
from typing import Literal

import msgspec

from penstock.core import retry, shedding
from penstock.core.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.admission import AdmissionSettings
from penstock.core.affinity import Affinity
from penstock.core.band import Band, BandSettings
from penstock.core.disagg import Pending, whole_usage
from penstock.core.endpoint import Endpoint, EndpointSpec
from penstock.core.estimate import Estimator
from penstock.core.explain import Explanation, Recorder
from penstock.core.fairness.account import Account
from penstock.core.fairness.base import Prices
from penstock.core.fairness.registry import POLICIES as FAIRNESS
from penstock.core.fairness.tree import QueueTree
from penstock.core.flow import Entry
from penstock.core.grouping import Grouping
from penstock.core.health import HealthSettings, Presence
from penstock.core.lease import Lease
from penstock.core.ledger import Glimpse, Observation
from penstock.core.lifecycle import Event, State
from penstock.core.ordering import ORDERINGS
from penstock.core.outcome import Reason
from penstock.core.overload import Forecast, retry_after_s
from penstock.core.place import Place, ranked
from penstock.core.pool import Pool
from penstock.core.pump import Pump
from penstock.core.queues import QueueBounds, Queues
from penstock.core.reconfigure import NeedsRestartError, needing_restart, resettle
from penstock.core.request import Request, Usage
from penstock.core.reserve import Reserve
from penstock.core.retry import Failure, Verdict
from penstock.core.roles import Role
from penstock.core.routing.registry import RoutingSettings
from penstock.core.routing.router import Router
from penstock.core.shares import Shares
from penstock.core.snapshot import (
    Snapshot,
    band_now,
    endpoint_now,
    models_now,
    queues_of,
    requests_now,
    stopped_models,
    tight,
)
from penstock.core.sources import Source
from penstock.core.stops import Stops
from penstock.core.tenants import Allowance, Limits, Tenants
from penstock.core.timers import Timers
from penstock.core.waits import Waits

AVOID_S = 1.0  # a request that failed at an endpoint is tried elsewhere for that long
REFUSED_AVOID_S = 0.1  # a request that was refused; doubles with each refusal of the same request
REFUSED_AVOID_S_MAX = 2.0
WORK_PER_OUTPUT_TOKEN = 2.0  # what a request takes, whatever it is charged: completion tokens hold a slot longer
BAND_RANKS = 1024  # engine priorities per band: pending requests of one tenant count up to that


class SchedulerSettings(msgspec.Struct, frozen=True):
    """What the scheduler has to know of the configuration. Durations in seconds."""

    bands: tuple[BandSettings, ...] = (BandSettings("standard"),)
    queue_enabled: bool = True
    bounds: QueueBounds = QueueBounds()
    wait_s_max: float = 60.0
    fairness: str = "weighted_tokens"
    prices: Prices = Prices()
    levels: tuple[str, ...] = ("tenant",)  #: what the elements of a flow's path stand for
    tenant_level: int | None = 0  #: which element of a flow's path is the tenant's own; None: none is
    ordering: str = "fcfs"
    admission: AdmissionSettings = AdmissionSettings()
    engine_priority: bool = False
    routing: str = "least_loaded"
    router: RoutingSettings = RoutingSettings()
    tenants: Mapping[str, Limits] = {}
    tenant_weights: Mapping[str, float] = {}  #: for flows that are here when settings change; requests bring their own
    attempts_max: int = 3
    retry_budget: float = 0.2
    health: HealthSettings = HealthSettings()
    stale_after_s: float = 5.0  #: readings older than that are not used
    divided_tokens_min: int = 0  #: shorter prompts are not computed apart from their answers


class Scheduler:
    """The one owner of queues, leases and the view of the endpoints."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._queues = Queues(settings.bands, settings.bounds)
        self._pool = Pool(settings.health, stale_after_s=settings.stale_after_s)
        self._fairness = FAIRNESS[settings.fairness](settings.prices)
        self._reserve = Reserve(self._reserved_share())
        self._tenants = Tenants(settings.tenants)
        self._stops = Stops()
        self._router = Router(settings.routing, settings.router, self._pool, draw=random.random)
        self._affinity = Affinity(self._router, self._look_again)
        self._account = Account(self._fairness)
        self._grouping = Grouping(settings.router, self._account, by_arrival=settings.ordering == "fcfs")
        self._pump = Pump(
            self._queues,
            self._pool,
            settings.admission,
            self._reserve,
            self._tenants,
            stops=self._stops,
            affinity=self._affinity,
            grouping=self._grouping,
            look=self._look,
            tenant_level=settings.tenant_level,
            look_again=self._look_again,
        )
        self._shares = Shares(len(settings.bands), tenant_level=settings.tenant_level)
        self._waits = Waits(
            self._queues,
            self._pool,
            self._pump,
            tenants=self._tenants,
            stops=self._stops,
            settings=settings.admission,
        )
        self._recorder = Recorder(self._waits, self._shares, [band.name for band in settings.bands], self._router)
        self._key = ORDERINGS[settings.ordering]
        self._estimator = Estimator()
        self._forecast = Forecast()
        self._budget = retry.RetryBudget(settings.retry_budget)
        self._timers: Timers[int | str] = Timers()  # an arrival number, or an endpoint's name
        self._entries: dict[str, Entry] = {}  # every request that has not ended
        self._leases: dict[int, Entry] = {}  # every lease that was not released, but for pending ones
        self._pending = Pending(self._pool)
        self._seq = 0
        self._lease_serial = 0
        self._paced = self._has_pace_limit()
        self._draining = False
        self._queue_until_s: float | None = None
        self._stop_at_s: float | None = None

    # --- requests -----------------------------------------------------------------------------------------------

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        """A request came, whole. It is dispatched, waits, or is refused at once."""
        assert request.id not in self._entries, "request ids are unique among those that have not ended"
        self._seq += 1
        entry = Entry(request, self._seq)
        self._recorder.arrived(entry, now)
        admits = not self._draining and self._stops.admits(request.model)
        refusal = self._unservable(request, now) if admits else Reason.DRAINING
        if refusal is not None:
            return [self._refuse(entry, refusal, now)]
        self._appraise(entry, now)
        limit = self._tenants.admit(request.tenant, tokens=entry.estimated_tokens, now=now)
        if limit is not None:
            return [self._refuse(entry, Reason.TENANT_LIMIT, now, limit.retry_after_s)]
        self._entries[request.id] = entry
        entry.move(Event.ADMITTED)
        entry.queued_since_s = now
        actions: list[Action] = []
        if request.pinned is not None or not self._settings.queue_enabled:
            self._send_or_refuse(entry, now, actions)
            return actions
        self._pump.asked(entry, now)
        if not self._queues.waiting and (endpoints := self._alone(entry, now)):
            return [self._dispatch_alone(entry, endpoints, now)]
        self._pump.arrived(entry, now)
        self._enqueue(entry, now)
        if self._pump.may_go(entry, now):
            self._hand_out(now, actions)
        if entry.state is State.WAITING:
            before = len(actions)
            self._admit_to_wait(entry, now, actions)
            if len(actions) > before:  # who was refused or displaced may have stood in another's way
                self._hand_out(now, actions)
        return actions

    def first_token(self, lease: int, *, now: float) -> list[Action]:
        """The first byte of a streamed answer came: the prefill is over. Of other answers it tells nothing."""
        entry = self._leases[lease]
        entry.move(Event.FIRST_TOKEN)
        entry.output_seen = max(entry.output_seen, 1)
        held = entry.held()
        self._recorder.first_byte(entry, now)
        self._forecast.first_token(entry.request.model, now - held.began_s)
        endpoint = self._pool.holder(held)
        if endpoint is None:
            return []
        endpoint.ledger.first_token(held, now)
        endpoint.health.answered(endpoint.slots)
        if len(endpoint.ledger.leases) >= endpoint.slots:
            return []  # closed before and after
        return self._touched(endpoint, now)

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:
        """An answer has grown to that many tokens. Worth telling every few dozen tokens, not each."""
        entry = self._leases[lease]
        held = entry.held()
        entry.output_seen = max(entry.output_seen, output_tokens)
        look = self._account.progressed(self._tree(entry), entry)
        endpoint = self._pool.holder(held)
        if endpoint is not None:
            endpoint.ledger.progressed(held, output_tokens, now)
            if self._paced:
                self._queues.touch(endpoint)
                look = True
        return self._pumped(now) if look else []

    def finished(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        """The last byte of an answer was read from the engine. `usage`: what it truly cost, where that is known."""
        entry = self._leases[lease]
        model = entry.request.model
        held = entry.held()
        if usage is not None:
            self._router.answered(held, usage, now)
            if held.transferred_tokens:
                usage = whole_usage(usage, held.cached_tokens, cached_told=held.cached_told)
        self._forecast.lease_ended(model, entry.work, now - held.began_s)
        endpoint = self._release(entry, now)
        entry.move(Event.FINISHED)
        if usage is not None and usage.prompt_tokens > 0:
            self._estimator.learn_prompt(entry.request.tenant, model, entry.prompt_bytes, usage.prompt_tokens)
            self._estimator.learn_output(entry.request.tenant, model, usage.completion_tokens)
        elif usage is None and entry.output_seen > 1:
            self._estimator.learn_output(entry.request.tenant, model, entry.output_seen)
        self._end(entry, usage or entry.presumed_usage(), now)
        if endpoint is None:
            return self._pumped(now)
        if held.first_token_s is None:  # it did not stream, or was of no bytes
            endpoint.health.answered(endpoint.slots)
            endpoint.ledger.life_s = now
        self._well(endpoint, now)
        return self._pumped(now)

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        """The prompt of a divided request is computed: its prefill lease ends, and its decode lease begins."""
        entry = self._leases.pop(lease)
        held = entry.held()
        if usage is not None:
            self._router.answered(held, usage, now)
        if (endpoint := self._pool.holder(held)) is not None:
            endpoint.ledger.first_token(held, now)
            endpoint.ledger.remove(held, now)
            endpoint.health.answered(endpoint.slots)
            self._well(endpoint, now)
        if self._pending.lost(entry) and (others := self._partners(entry, now)):
            self._pending.drop(entry, now)
            self._reserve_decode(entry, others, now)
        entry.lease = following = self._pending.begin(entry, now)
        following.cached_tokens = held.cached_tokens if usage is None else usage.cached_tokens
        following.cached_told = usage is not None and usage.cached_told
        self._leases[following.serial] = entry
        self._recorder.handed_over(entry, following.endpoint, now)
        actions: list[Action] = [Decode(entry.request.id, following.endpoint, following.serial)]
        self._hand_out(now, actions)
        return actions

    def failed(self, lease: int, failure: Failure, *, now: float) -> list[Action]:
        """The dispatch failed. Before the first byte the request may go back to the queue."""
        entry = self._leases[lease]
        self._router.failed(entry, entry.held())
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
            self._fail(entry, failure, now, actions)
        else:
            self._requeue(entry, failure, endpoint, now, actions)
        self._hand_out(now, actions)
        return actions

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        """The client hung up. A waiter leaves the queue; a running request's lease is released."""
        entry = self._entries[request_id]
        if entry.state is State.WAITING:
            self._unqueue(entry, Event.CANCELLED)
            self._end(entry, None, now, Reason.CANCELLED)
            return self._pumped(now)  # others may have waited for it
        endpoint = self._release(entry, now)
        entry.move(Event.CANCELLED)
        self._end(entry, entry.presumed_usage(), now, Reason.CLIENT_GONE)
        return self._touched(endpoint, now) if endpoint is not None else self._pumped(now)

    # --- endpoints ----------------------------------------------------------------------------------------------

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        """An endpoint may be used from now on."""
        endpoint = self._pool.add(spec)
        self._health_changed(now)
        return self._touched(endpoint, now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        """A probe found it alive."""
        return self._probed(name, up=True, now=now)

    def endpoint_down(self, name: str, *, presence: Presence = Presence.DOWN, now: float) -> list[Action]:
        """A probe found nobody there, or nobody who serves. What runs there is left to its own connection's fate."""
        return self._probed(name, up=False, presence=presence, now=now)

    def endpoint_changed(
        self,
        name: str,
        *,
        models: Iterable[str] | None = None,
        tells_models: bool | None = None,
        slots: int | Literal["auto"] | None = None,
        told_slots: int | None = None,
        now: float,
    ) -> list[Action]:
        """It told what it serves (or that it can't tell) or how many it runs, or its slots were set. None: as before.

        `slots` are set by hand and stay; `auto` gives them back to what the engine tells, or to finding out.
        """
        endpoint = self._pool[name]
        if models is not None:
            endpoint.models = frozenset(models)
        if tells_models is not None:
            endpoint.tells_models = tells_models
        if slots is not None:
            endpoint.set_slots(slots)
        if told_slots is not None:
            endpoint.slots_told(told_slots)
        self._health_changed(now)
        self._queues.touch(endpoint)
        actions: list[Action] = []
        for band in self._queues.bands:
            unknown = {model for model in band.tree.models() if self._pool.knows(model, now) is False}
            for entry in [e for e in band.entries.values() if e.request.model in unknown] if unknown else ():
                self._evict(entry, Reason.MODEL_NOT_FOUND, now, actions)
        self._hand_out(now, actions)
        return actions

    def endpoint_removed(self, name: str, *, now: float) -> list[Action]:
        """Nothing new goes there. What runs there ends in its own time; one of the same name may come later.

        What only it served waits on, for it may be replaced: until `max_wait` is over, and then gets `no_endpoint`.
        """
        endpoint = self._pool.remove(name, known_until_s=now + self._settings.wait_s_max)
        self._queues.forget(endpoint)
        self._router.gone(endpoint)
        self._affinity.used(endpoint)
        self._grouping.gone(endpoint)
        self._timers.cancel(name)
        self._health_changed(now)
        return self._pumped(now)

    def endpoint_drained(self, name: str, *, now: float) -> list[Action]:
        """An operator wants nothing new to go there; what runs there may finish."""
        return self._drained(name, drained=True, now=now)

    def endpoint_resumed(self, name: str, *, now: float) -> list[Action]:
        """An operator gives it back."""
        return self._drained(name, drained=False, now=now)

    def observed(self, name: str, reading: Observation | None, *, now: float) -> list[Action]:
        """A reading of its gauges came, or (None) none could be had."""
        endpoint = self._pool[name]
        epoch = endpoint.ledger.epoch
        if reading is not None and endpoint.observed(reading, now):
            self._pool.changed()
        if reading is not None:
            self._router.read(endpoint, restarted=endpoint.ledger.epoch != epoch)
        return self._touched(endpoint, now)

    # --- where prefixes are cached ------------------------------------------------------------------------------

    def kv_stored(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """An endpoint says that it holds these token blocks from now on (their keys, made at the edge)."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.stored(known, keys)
        return []

    def kv_removed(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """It does not hold these any more."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.removed(known, keys)
        return []

    def kv_cleared(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """It says that it holds nothing any more."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.cleared(known)
        return []

    def kv_lost(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """Its word can't be had any more: until it tells again, our own history speaks for it."""
        if (known := self._pool.get(endpoint)) is not None:
            self._router.lost(known)
        return []

    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]:
        """The keys of a request's token blocks became known: they tell which endpoint holds how much of it."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        entry.blocks = (tuple(keys), block_tokens)
        return self._told_where(entry, now)

    def cached(
        self, request_id: str, tokens: Mapping[str, int], source: Source = Source.LMCACHE, *, now: float
    ) -> list[Action]:
        """A look-up answered: how many tokens of the prompt each endpoint holds, by name; empty where it failed."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        if tokens:
            entry.looked_up = (source, tokens)
        return self._told_where(entry, now)

    def _told_where(self, entry: Entry, now: float) -> list[Action]:
        self._affinity.told(entry)
        self._look(entry, now)
        for endpoint in self._pool:
            if endpoint.serves(entry.request.model):
                self._queues.touch(endpoint)
        return self._pumped(now)

    def _look(self, entry: Entry, now: float) -> bool:
        """Look again who holds a waiting prompt. True when more of it is held than before."""
        before = entry.cached_tokens
        self._router.look(entry, now)
        if entry.cached_tokens != before:
            self._queues.bands[entry.request.band].resized(entry)
        return entry.cached_tokens > before

    def glimpsed(self, name: str, part: Glimpse, *, now: float) -> list[Action]:
        """An answer told a part of its gauges."""
        endpoint = self._pool[name]
        endpoint.ledger.glimpse(part, now)
        return self._touched(endpoint, now)

    def least_loaded(self, model: str, *, now: float) -> str | None:
        """Where to send something that needs neither queue nor lease (tokenizing); None when nobody is alive."""
        usable = self._pool.usable(Request(id="", model=model, band=0), now)
        if not usable:
            return None
        return min(usable, key=lambda e: (e.ledger.load(now) / max(1, e.slots), e.index)).name

    def serving(self, model: str, *, now: float) -> list[str]:
        """Who could be sent a request for a model, by name."""
        return [endpoint.name for endpoint in self._pool.usable(Request(id="", model=model, band=0), now)]

    def wanted(self, name: str, *, now: float) -> bool:
        """Whether requests wait that this endpoint, near its limit, could serve: its gauges matter now."""
        endpoint = self._pool[name]
        return endpoint.near_limit(now) and any(
            endpoint.serves(model) for band in self._queues.bands for model in band.tree.models()
        )

    def moved_s(self, name: str) -> float:
        """When an endpoint last showed that it works; minus infinity: never yet."""
        return self._pool[name].ledger.moved_s

    @property
    def divides(self) -> bool:
        """Whether any endpoint only computes prompts, or only answers."""
        return self._pool.roles.any

    def knows(self, model: str, *, now: float) -> bool | None:
        """Whether some endpoint serves the model; None while one may yet: it has not told, or is being replaced."""
        return self._pool.knows(model, now)

    # --- operators ----------------------------------------------------------------------------------------------

    def paused(self, model: str | None, *, now: float) -> list[Action]:
        """Nothing of this model (None: of any) is sent until `resumed`; who comes waits."""
        self._stops.pause(model)
        self._waits.look(now, at_once=True)
        return []

    def drained(self, model: str | None, *, now: float) -> list[Action]:  # noqa: ARG002
        """Nothing new of this model (None: of any) is let in until `resumed`; who waits is served."""
        self._stops.drain(model)
        return []

    def resumed(self, model: str | None, *, now: float) -> list[Action]:
        """Take a pause and a drain back; None: all of them."""
        self._stops.resume(model)
        self._forecast.resumed(model)
        return self._pumped(now)

    def bumped(self, request_id: str, *, now: float) -> list[Action]:
        """A waiting request goes next in its band, after those bumped before it. It still has to find room."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        self._queues.bands[entry.request.band].bumped.setdefault(entry.seq, entry)
        self._recorder.bumped(entry)
        return self._pumped(now)

    def evicted(self, request_id: str, *, now: float) -> list[Action]:
        """An operator takes a request out: who waits is refused, what runs is stopped at its endpoint."""
        entry = self._entries.get(request_id)
        if entry is None:
            return []
        if entry.state is not State.WAITING:
            self._recorder.blamed(entry, Reason.OPERATOR)
            return [Abort(request_id, Reason.OPERATOR)]
        actions: list[Action] = []
        self._evict(entry, Reason.OPERATOR, now, actions)
        self._hand_out(now, actions)
        return actions

    def reconfigured(self, settings: SchedulerSettings, *, now: float) -> list[Action]:
        """Other settings from now on. Nothing that waits or runs is lost; raises before anything changes if it can't.

        Bands are matched by name. What waits keeps its time to wait, unless it gets more now, and its deadline.
        """
        if keys := needing_restart(self._settings, settings):
            raise NeedsRestartError(keys)
        before, self._settings = self._settings, settings
        self._router.reconfigured(settings.routing, settings.router)
        self._rearrange(before)
        waiting = [entry for entry in self._entries.values() if entry.state is State.WAITING]
        by_arrival = settings.ordering == "fcfs"
        self._grouping.reconfigured(settings.router, self._account, waiting, by_arrival=by_arrival)
        self._reserve.share = self._reserved_share()
        self._tenants.reconfigured(settings.tenants, self._entries.values(), now)
        self._pool.reconfigured(settings.health, stale_after_s=settings.stale_after_s)
        self._pump.reconfigured(settings.admission)
        self._recorder.reconfigured(
            [band.name for band in settings.bands], settings.admission, self._entries.values(), now
        )
        self._budget.share = settings.retry_budget
        self._paced = self._has_pace_limit()
        for endpoint in self._pool:
            self._queues.touch(endpoint)
        return self._pumped(now)

    def state_of(self, request_id: str) -> State | None:
        """Where a request is, None when it ended or was never here."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry.state

    # --- time ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `expire` must be called next, None for never."""
        due_s = self._timers.next()
        if not self._draining:
            return due_s
        times = (due_s, self._queue_until_s, self._stop_at_s)
        return min((time for time in times if time is not None), default=None)

    def expire(self, *, now: float) -> list[Action]:
        """Let time pass: evict who waited too long, look again at what time may have opened."""
        actions: list[Action] = []
        for key in self._timers.due(now):
            if isinstance(key, str):
                endpoint = self._pool.get(key)
                if endpoint is not None:
                    self._queues.touch(endpoint)
                continue
            entry = self._queues.find(key)
            if entry is not None:
                self._time_is_up(entry, now, actions)
        self._expire_drain(now, actions)
        self._hand_out(now, actions)
        return actions

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        """Admit nothing more. What waits is served until `queue_until_s`, what runs may go on until `stop_at_s`."""
        self._draining = True
        self._queue_until_s = queue_until_s
        self._stop_at_s = stop_at_s
        actions: list[Action] = []
        self._expire_drain(now, actions)
        return actions

    def wait_s(self, request_id: str, *, now: float) -> float | None:
        """How long a waiting request is estimated to wait from now on, None when that can't be told."""
        entry = self._entries.get(request_id)
        return None if entry is None or entry.state is not State.WAITING else self._estimated_wait_s(entry, now)

    def places(self, request_ids: Iterable[str], *, now: float) -> dict[str, Place]:
        """Where those of some requests that wait stand. Asked for many at once it costs little for each."""
        found = (self._entries.get(request_id) for request_id in request_ids)
        waiting = [entry for entry in found if entry is not None and entry.state is State.WAITING]
        return {
            entry.request.id: Place(
                position,
                self._estimated_wait_s(entry, now, ahead=ahead),
                entry.waited_s + now - entry.queued_since_s,
            )
            for entry, position, ahead in ranked(waiting, self._queues.bands)
        }

    def allowance(self, tenant: str, *, now: float) -> Allowance | None:
        """What a tenant has left of its rates; None where it has none."""
        return self._tenants.allowance(tenant, now)

    def explain(self, request_id: str, *, now: float) -> Explanation | None:
        """Why a request waits or waited: any that has not ended, and those that did lately. None: not known."""
        entry = self._entries.get(request_id) or self._recorder.find(request_id)
        if entry is None:
            return None
        wait_s = self._estimated_wait_s(entry, now) if entry.state is State.WAITING else None
        return self._recorder.explain(entry, estimated_wait_s=wait_s, now=now)

    def snapshot(self, *, now: float) -> Snapshot:
        """The picture now."""
        queues = self._queues
        names = [band.settings.name for band in queues.bands]
        busy = next((band for band in queues.bands if band.tree.waiting), None)
        no_room = tight(busy, self._waits)
        flows, flows_more = self._shares.flows(names, now)
        limits = self._settings.admission
        models, models_more = models_now(queues.bands, self._pool, self._shares, self._waits, settings=limits, now=now)
        tenants = self._tenants.snapshot(now)
        return Snapshot(
            draining=self._draining,
            paused=stopped_models(self._stops.paused),
            drained=stopped_models(self._stops.drained),
            waiting=queues.waiting,
            waiting_bytes=queues.bytes,
            waiting_tokens=queues.tokens,
            running=len(self._leases),
            kv_usage_ceiling=limits.kv_usage_max,
            endpoints=[endpoint_now(endpoint, busy, no_room, limits, now) for endpoint in self._pool],
            bands=[band_now(band, self._shares.share_of_band(band.rank), now) for band in queues.bands],
            queues=queues_of(queues.bands),
            tenants=tenants,
            tenants_more=len(self._tenants) - len(tenants),
            models=models,
            models_more=models_more,
            flows=flows,
            flows_more=flows_more,
            requests=requests_now(queues.bands, self._leases, self._recorder, now),
            sources=self._router.sources.snapshot(now),
        )

    # --- arrival ------------------------------------------------------------------------------------------------

    def _unservable(self, request: Request, now: float) -> Reason | None:
        if request.pinned is None:
            return Reason.MODEL_NOT_FOUND if self._pool.knows(request.model, now) is False else None
        endpoint = self._pool.get(request.pinned)
        if endpoint is None:
            return Reason.ENDPOINT_NOT_FOUND
        if endpoint.serves(request.model):
            return None
        return Reason.NO_ENDPOINT if endpoint.models is None else Reason.MODEL_NOT_FOUND

    def _appraise(self, entry: Entry, now: float) -> None:
        """Estimate what it will cost, and find its flow and its place in there."""
        request = entry.request
        estimate = self._estimator.estimate(
            request.tenant, request.model, entry.prompt_bytes, request.output_tokens_max
        )
        entry.expect(estimate)
        if self._pool.roles.any:
            short = estimate.prompt_tokens < self._settings.divided_tokens_min
            entry.whole = not request.divisible or request.pinned is not None or short
        self._router.look(entry, now)
        entry.choosy = self._affinity.choosy(entry, now)
        entry.work = entry.uncached_tokens + WORK_PER_OUTPUT_TOKEN * estimate.output_tokens
        entry.cost = self._account.estimated_cost(entry)
        band = self._queues.bands[request.band]
        own_s = math.inf if request.deadline_s is None else request.deadline_s
        band_s = band.settings.deadline_s
        entry.deadline_s = own_s if band_s is None else min(own_s, now + band_s)
        entry.key = (request.priority, self._key(entry, now))
        entry.wait_s_max = self._wait_s_max(band)
        self._place(entry, band)

    def _send_or_refuse(self, entry: Entry, now: float, actions: list[Action]) -> None:
        """A request that never waits: to an endpoint now, or not at all."""
        request = entry.request
        endpoints = self._usable(entry, now)
        reason = Reason.NO_ENDPOINT
        if request.pinned is not None and (pinned := self._pool[request.pinned]).health.up:
            reason = Reason.DRAINING if pinned.drained else Reason.ENDPOINT_OVERLOADED
        if not self._stops.sends(request.model):
            endpoints, reason = [], Reason.NO_ENDPOINT
        elif self._tenants.held(request.tenant):
            endpoints, reason = [], Reason.TENANT_LIMIT
        if request.pinned is not None and self._settings.queue_enabled:
            endpoints = [e for e in endpoints if self._pump.open_to(e, entry, now)]
        if endpoints:
            actions.append(self._dispatch(entry, endpoints, now))
        else:
            self._reject(entry, reason, now, actions)

    def _admit_to_wait(self, entry: Entry, now: float, actions: list[Action]) -> None:
        """It found nothing open: may it wait, and would that help?"""
        wait_s = self._estimated_wait_s(entry, now)
        first_token_s = self._forecast.first_token_s(entry.request.model)
        band = self._queues.bands[entry.request.band]
        reason: Reason | None = None
        if self._tenants.over_queued(entry.request.tenant) is not None:
            reason = Reason.TENANT_LIMIT
        elif wait_s is not None and now + wait_s + first_token_s > entry.deadline_s:
            reason = Reason.DEADLINE_INFEASIBLE
        elif shedding.refuses(band.settings, entry, wait_s, now):
            reason = Reason.OVERLOAD
        elif band.over_bounds() or not self._make_room(entry, now, actions):
            reason = Reason.QUEUE_FULL
        if reason is not None:
            self._unqueue(entry, Event.REFUSED)
            self._reject(entry, reason, now, actions)
        else:
            self._arm(entry)
            self._grouping.waits(entry)
            self._recorder.waits(entry, now)

    def _make_room(self, entry: Entry, now: float, actions: list[Action]) -> bool:
        """Keep the queue within its bounds, at the cost of lower bands. False: the newcomer has to go."""
        victims = self._queues.displaced_by(entry) if self._queues.over_bounds() else []
        for victim in victims or ():
            self._evict(victim, Reason.DISPLACED, now, actions)
        return victims is not None

    # --- the pump -----------------------------------------------------------------------------------------------

    def _alone(self, entry: Entry, now: float) -> list[Endpoint]:
        """Where a newcomer may go when nobody else waits; empty: it has to join the queue to find out."""
        endpoints = self._pump.alone(entry, now)
        return endpoints if endpoints and self._in_time(entry, now) else []

    def _in_time(self, entry: Entry, now: float) -> bool:
        """Whether its first token would come by its deadline if it were sent now."""
        due_s = entry.deadline_s
        return due_s == math.inf or now + self._forecast.first_token_s(entry.request.model) <= due_s

    def _dispatch_alone(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        """Send it as if it had joined the queue and left it in the same moment."""
        entry.visit += 1
        self._tree(entry).serve_at_once(entry.node_of())
        self._pump.sent(entry, now)
        dispatch = self._dispatch(entry, endpoints, now)
        self._grouping.sent(entry, self._pool[dispatch.endpoint], now)
        return dispatch

    def _hand_out(self, now: float, actions: list[Action]) -> None:
        """Dispatch until nothing that waits may be sent."""
        while self._queues.waiting and (found := self._pump.next(now)) is not None:
            entry, endpoints = found
            if not self._in_time(entry, now):
                self._evict(entry, Reason.DEADLINE_MISSED, now, actions)
            else:
                actions.append(self._dispatch(entry, endpoints, now))
        if self._queues.waiting:
            self._waits.look(now)

    def _dispatch(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Dispatch:
        """Pop the request and take the lease, in one step."""
        request, tree, node = entry.request, self._tree(entry), entry.node_of()
        chosen = self._router.choose(entry, endpoints, now)
        divides = chosen.role is Role.PREFILL and not entry.whole
        partners = self._partners(entry, now) if divides else []
        entry.cost = self._account.estimated_cost(entry)
        band = self._queues.bands[request.band]
        if entry.seq in band.entries:
            self._grouping.sent(entry, chosen, now)
            if entry.follows is None:
                if entry.seq not in band.bumped:  # else it is out of turn, and says nothing of how far turns have come
                    tree.serve(entry)
                shedding.leaves(band.settings, entry, now)
            self._unqueue(entry, Event.DISPATCHED)
            entry.waited_s += now - entry.queued_since_s
            self._pump.sent(entry, now)
        else:
            entry.move(Event.DISPATCHED)
        self._recorder.sent(entry, endpoints, chosen, now)
        entry.follows = None
        tree.lent(node)
        self._account.dispatched(tree, entry)
        if self._tenants.started(request.tenant):
            self._pump.hold(entry)
        self._lease_serial += 1
        lease = Lease(
            serial=self._lease_serial,
            endpoint=chosen.name,
            epoch=chosen.ledger.epoch,
            request_id=request.id,
            dispatched_s=now,
            prompt_tokens=entry.uncached_tokens,
            output_tokens=entry.estimate.output_tokens,
            cached_tokens=entry.cached_tokens,
            source=entry.source,
            prefix=request.prefix,
            twin_computing=entry.twin_computing,
            streamed=request.streamed,
            prefill_end_s=now,
        )
        assert not self._settings.queue_enabled or len(chosen.ledger.leases) < chosen.slots
        decode = None
        if divides:
            lease.output_tokens, lease.streamed = 1, True  # its one token ends it, so its prefill's end is seen
            decode = self._reserve_decode(entry, partners, now)
            self._recorder.divided(entry, decode)
        entry.lease = lease
        self._leases[lease.serial] = entry
        chosen.ledger.add(lease)
        chosen.dispatches_total += 1
        chosen.last_lease = lease.serial
        self._affinity.used(chosen)
        self._budget.dispatched()
        queued = self._queues.waiting > 0 and any(request.model in b.tree.root.backlog for b in self._queues.bands)
        self._forecast.dispatched(request.model, entry.work, queued=queued, now=now)
        self._queues.touch(chosen)
        rank = None
        if self._settings.engine_priority:
            rank = request.band * BAND_RANKS + min(node.waiting + node.in_flight, BAND_RANKS - 1)
        return Dispatch(request.id, chosen.name, lease.serial, entry.waited_s, rank, decode)

    def _usable(self, entry: Entry, now: float) -> list[Endpoint]:
        """Where it may be sent without waiting for its turn: prefill endpoints only with one that would answer it."""
        usable = self._pool.usable(entry.request, now, whole=entry.whole)
        if entry.whole or not self._pool.roles.any or self._partners(entry, now):
            return usable
        return [e for e in usable if e.role is not Role.PREFILL]

    def _partners(self, entry: Entry, now: float) -> list[Endpoint]:
        """The decode endpoints that may be leased for it: those with room, or where slots do not limit, the well."""
        if self._settings.queue_enabled:
            return self._pump.partners(entry, now)
        usable = self._pool.usable(entry.request, now, whole=True)
        return [e for e in usable if e.role is Role.DECODE]

    def _reserve_decode(self, entry: Entry, partners: list[Endpoint], now: float) -> str:
        self._lease_serial += 1
        lease = self._pending.reserve(entry, partners, self._lease_serial, now)
        endpoint = self._pool[lease.endpoint]
        assert not self._settings.queue_enabled or len(endpoint.ledger.leases) <= endpoint.slots
        self._queues.touch(endpoint)
        return lease.endpoint

    def _release(self, entry: Entry, now: float) -> Endpoint | None:
        """Give the slot back, exactly once. None when its endpoint is gone."""
        lease = entry.held()
        del self._leases[lease.serial]
        entry.lease = None
        if self._pending.leases and (answering := self._pending.drop(entry, now)) is not None:
            self._queues.touch(answering)
        self._recorder.released(entry)
        self._tree(entry).returned(entry.node_of())
        if self._tenants.ended(entry.request.tenant):
            self._pump.let_go(entry.request.tenant)
        self._reserve.freed(entry.request.model, now)
        endpoint = self._pool.holder(lease)
        if endpoint is not None:
            endpoint.ledger.remove(lease, now)
            self._queues.touch(endpoint)
        return endpoint

    # --- failure ------------------------------------------------------------------------------------------------

    def _well(self, endpoint: Endpoint, now: float) -> None:
        """It did what was asked of it."""
        was_ejected = endpoint.health.ejected(now)
        endpoint.health.succeeded()
        if was_ejected:
            self._health_changed(now)
        self._queues.touch(endpoint)

    def _blame(self, endpoint: Endpoint, failure: Failure, now: float) -> None:
        endpoint.failure, endpoint.failed_s = failure, now
        if failure is Failure.CONNECT:
            endpoint.health.probed(up=False, now=now)
            self._router.down(endpoint)
        elif failure is Failure.BUSY:
            endpoint.health.refused(now)
        else:
            endpoint.health.failed(now)
        self._queues.touch(endpoint)
        self._health_changed(now)

    def _requeue(
        self, entry: Entry, failure: Failure, endpoint: Endpoint | None, now: float, actions: list[Action]
    ) -> None:
        """Let it wait again with its age kept, away from the endpoint that did not serve it."""
        self._account.refund(self._tree(entry), entry)
        self._recorder.requeued(entry, failure, endpoint.name if endpoint is not None else "", now)
        if endpoint is not None:
            avoid_s = AVOID_S
            if failure is Failure.BUSY:
                avoid_s = min(REFUSED_AVOID_S * 2 ** min(entry.refusals - 1, 16), REFUSED_AVOID_S_MAX)
            entry.avoid = {name: until for name, until in (entry.avoid or {}).items() if until > now}
            entry.avoid[endpoint.name] = now + avoid_s
        over = self._draining and self._queue_until_s is None
        elsewhere: list[Endpoint] = []
        if not self._settings.queue_enabled and not over and self._stops.sends(entry.request.model):
            elsewhere = [e for e in self._usable(entry, now) if not entry.shuns(e.name, now)]
            if self._tenants.held(entry.request.tenant):
                elsewhere = []
        if not self._settings.queue_enabled and not over and not elsewhere:
            self._fail(entry, failure, now, actions)  # it can't wait, so this was its last answer
            return
        entry.move(Event.REQUEUED)
        actions.append(Requeue(entry.request.id, failure))
        left_s = entry.wait_s_max - entry.waited_s
        if elsewhere:
            actions.append(self._dispatch(entry, elsewhere, now))
        elif over or left_s <= 0:
            entry.move(Event.EVICTED)
            reason = Reason.DRAINING if over else Reason.QUEUE_TIMEOUT
            self._end(entry, None, now, reason)
            actions.append(Evict(entry.request.id, reason, self._retry_after_s(entry, reason, now)))
        else:
            self._router.look(entry, now)
            self._enqueue(entry, now)
            self._arm(entry)
            self._grouping.waits(entry)
            self._recorder.waits(entry, now)

    # --- the queue ----------------------------------------------------------------------------------------------

    def _enqueue(self, entry: Entry, now: float) -> None:
        entry.queued_since_s = now
        self._queues.push(entry)
        shedding.entered(self._queues.bands[entry.request.band].settings, entry, now)
        self._tenants.queued(entry.request.tenant, entry.request.body_bytes, entry.estimate.prompt_tokens)
        if self._tenants.held(entry.request.tenant):
            self._pump.hold(entry)

    def _unqueue(self, entry: Entry, event: Event) -> None:
        self._queues.remove(entry, event)
        self._tenants.unqueued(entry.request.tenant, entry.request.body_bytes, entry.estimate.prompt_tokens)
        self._timers.cancel(entry.seq)
        if entry.choosy:
            self._affinity.left(entry)
        if entry.siblings:
            self._grouping.left(entry)

    def _arm(self, entry: Entry) -> None:
        """See to it that nobody waits longer than it may, or than it helps."""
        times = (self._may_wait_until_s(entry), self._helps_until_s(entry), self._shed_s(entry))
        self._timers.set(entry.seq, min(times))

    def _may_wait_until_s(self, entry: Entry) -> float:
        return entry.queued_since_s + entry.wait_s_max - entry.waited_s

    def _shed_s(self, entry: Entry) -> float:
        return shedding.due_s(self._queues.bands[entry.request.band].settings, entry)

    def _helps_until_s(self, entry: Entry) -> float:
        return entry.deadline_s - self._forecast.first_token_s(entry.request.model)

    def _time_is_up(self, entry: Entry, now: float, actions: list[Action]) -> None:
        """Its time has come, unless first tokens come sooner by now than when it was armed, or its queue moved on."""
        if self._helps_until_s(entry) <= now:
            self._evict(entry, Reason.DEADLINE_MISSED, now, actions)
        elif self._may_wait_until_s(entry) <= now:
            alive = self._pool.alive(entry.request.model)
            self._evict(entry, Reason.QUEUE_TIMEOUT if alive else Reason.NO_ENDPOINT, now, actions)
        elif self._shed_s(entry) <= now:
            self._evict(entry, Reason.OVERLOAD, now, actions)
        else:
            self._arm(entry)

    def _wait_s_max(self, band: Band) -> float:
        own_s = band.settings.wait_s_max
        return self._settings.wait_s_max if own_s is None else own_s

    def _estimated_wait_s(self, entry: Entry, now: float, *, ahead: float | None = None) -> float | None:
        slots = self._pool.slots(entry.request.model)
        return self._forecast.wait_s(entry, self._queues.bands, slots, now, ahead=ahead)

    def _expire_drain(self, now: float, actions: list[Action]) -> None:
        stop = self._stop_at_s is not None and self._stop_at_s <= now
        if self._queue_until_s is not None and (stop or self._queue_until_s <= now):
            self._queue_until_s = None
            for band in self._queues.bands:
                for entry in list(band.entries.values()):
                    self._evict(entry, Reason.DRAINING, now, actions)
        if stop:
            self._stop_at_s = None
            for entry in self._leases.values():
                self._recorder.blamed(entry, Reason.DRAINING)
                actions.append(Abort(entry.request.id, Reason.DRAINING))

    # --- ends ---------------------------------------------------------------------------------------------------

    def _refuse(self, entry: Entry, reason: Reason, now: float, after_s: float | None = None) -> Reject:
        """Refuse what was not even looked at."""
        entry.move(Event.REFUSED)
        self._recorder.ended(entry, reason, None, now)
        wait_s = retry_after_s(after_s, self._random.random()) if reason not in _NO_RETRY_AFTER else None
        return Reject(entry.request.id, reason, wait_s)

    def _reject(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        if entry.state is not State.REJECTED:
            entry.move(Event.REFUSED)
        after_s = self._retry_after_s(entry, reason, now)
        self._tenants.refund(entry.request.tenant, tokens=entry.estimated_tokens, now=now)
        self._recorder.ended(entry, reason, None, now)
        self._forget(entry)
        actions.append(Reject(entry.request.id, reason, after_s))

    def _evict(self, entry: Entry, reason: Reason, now: float, actions: list[Action]) -> None:
        after_s = self._retry_after_s(entry, reason, now)
        self._unqueue(entry, Event.EVICTED)
        self._end(entry, None, now, reason)
        actions.append(Evict(entry.request.id, reason, after_s))

    def _fail(self, entry: Entry, failure: Failure, now: float, actions: list[Action]) -> None:
        reason = retry.final_reason(failure)
        began = entry.state is State.STREAMING or failure is Failure.BROKEN  # of what does not stream it is not told
        entry.move(Event.FAILED)
        self._end(entry, entry.presumed_usage() if began else None, now, reason)
        actions.append(Fail(entry.request.id, reason, self._retry_after_s(entry, reason, now)))

    def _end(self, entry: Entry, usage: Usage | None, now: float, reason: Reason | None = None) -> None:
        """An admitted request is over: settle what it was charged. None: it used nothing."""
        used = 0
        if usage is None:
            self._account.refund(self._tree(entry), entry)
        else:
            self._account.settle(self._tree(entry), entry, usage)
            used = usage.prompt_tokens + usage.completion_tokens
        self._recorder.ended(entry, reason, usage, now)
        self._tenants.settle(entry.request.tenant, reserved=entry.estimated_tokens, used=used, now=now)
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.request.id]
        self._tree(entry).release(entry.node_of())

    def _retry_after_s(self, entry: Entry, reason: Reason, now: float) -> float | None:
        if reason in _NO_RETRY_AFTER:
            return None
        return retry_after_s(self._estimated_wait_s(entry, now), self._random.random())

    # --- other settings -----------------------------------------------------------------------------------------

    def _rearrange(self, before: SchedulerSettings) -> None:
        """Other bands, another order and other fairness, for who is here and who comes."""
        settings, entries, bands = self._settings, self._entries.values(), self._queues.bands
        afresh = settings.fairness != before.fairness
        if afresh or settings.prices != before.prices:
            self._fairness = FAIRNESS[settings.fairness](settings.prices)
            self._account = Account(self._fairness)
        self._key = ORDERINGS[settings.ordering]
        for entry in entries:
            if afresh:
                self._account.recounted(entry)
            if entry.state is State.WAITING:
                entry.cost = self._account.estimated_cost(entry)
                entry.choosy |= self._affinity.may_hold
                if settings.ordering != before.ordering:
                    entry.key = (entry.request.priority, self._key(entry, entry.queued_since_s - entry.waited_s))
        heirs = self._queues.rearrange(settings.bands, settings.bounds)
        for band in self._queues.bands if afresh else ():
            band.replant()
        resettle(entries, self._queues, bands, heirs, afresh=afresh, place=self._place)
        for entry in entries:
            entry.wait_s_max = max(entry.wait_s_max, self._wait_s_max(self._queues.bands[entry.request.band]))
        for band in self._queues.bands:
            if settings.ordering != before.ordering:
                band.tree.rekeyed()
            if "tenant" in settings.levels:
                band.tree.reweigh(settings.levels.index("tenant"), settings.tenant_weights)

    def _place(self, entry: Entry, band: Band) -> None:
        """Find its flow in a band's tree, which has not counted what it was charged so far."""
        request = entry.request
        path, weights = (request.flow, request.weights) if self._fairness.uses_flows else ((), ())
        entry.node = band.tree.node(path, weights)
        if entry.charged:
            band.tree.charge(entry.node, entry.charged)

    def _reserved_share(self) -> float | None:
        # Where all stand in one line nobody is under a share, and what is kept would be used by nobody.
        return self._settings.admission.reserved_share if self._fairness.uses_flows else 0.0

    def _has_pace_limit(self) -> bool:
        bands_s = [band.time_per_output_token_s_max for band in self._settings.bands]
        return any((self._settings.admission.time_per_output_token_s_max, *bands_s))

    # --- small things -------------------------------------------------------------------------------------------

    def _tree(self, entry: Entry) -> QueueTree:
        return self._queues.bands[entry.request.band].tree

    def _look_again(self, endpoint: Endpoint, when: float) -> None:
        """Arm the endpoint's one timer. Whoever finds it closed arms it anew, so an earlier use loses nothing."""
        if when != math.inf:
            self._timers.set_earlier(endpoint.name, when)

    def _drained(self, name: str, *, drained: bool, now: float) -> list[Action]:
        endpoint = self._pool[name]
        endpoint.drained = drained
        self._health_changed(now)
        return self._touched(endpoint, now)

    def _probed(self, name: str, *, up: bool, now: float, presence: Presence = Presence.DOWN) -> list[Action]:
        endpoint = self._pool[name]
        endpoint.health.probed(up=up, presence=presence, now=now)
        if up:
            self._router.answers(endpoint)
        else:
            self._router.down(endpoint)
        self._health_changed(now)
        return self._touched(endpoint, now)

    def _health_changed(self, now: float) -> None:
        """Somebody's health changed: whether the ejections of others are ignored may have changed with it."""
        self._pool.changed()
        for endpoint in self._pool:
            if endpoint.health.ejected(now):
                self._queues.touch(endpoint)

    def _touched(self, endpoint: Endpoint, now: float) -> list[Action]:
        self._queues.touch(endpoint)
        return self._pumped(now) if self._queues.waiting else []

    def _pumped(self, now: float) -> list[Action]:
        actions: list[Action] = []
        self._hand_out(now, actions)
        return actions


_NO_RETRY_AFTER = frozenset(
    {
        Reason.MODEL_NOT_FOUND,
        Reason.ENDPOINT_NOT_FOUND,
        Reason.OPERATOR,
        Reason.UPSTREAM_ERROR,
        Reason.UPSTREAM_TIMEOUT,
        Reason.STREAM_BROKEN,
    }
)
