"""Facts in, actions out: the next request, its endpoint, and the fate of the others.

A driver reports each fact with `now` (seconds, monotonic, never decreasing) and carries out the actions returned. The
scheduler never waits, calls back or reads a clock, and its only randomness is the generator it is given: the same facts
give the same actions.

Model: a request enters the queue tree of its band, and one *pump* dispatches as much as possible: band by band, in
fair order, to endpoints open at that moment. A request that finds none stays queued. Everything that may open an
endpoint (a lease that ends, a first token, a reading, a timer) touches it and pumps again. There is no fast path that
could overtake the queue: while it is empty, the same pump answers the same questions about a new request, and only the
way in and out of the tree is spared (`Pump.alone`). Two kinds of request never queue: those pinned to one endpoint, and
all of them with `queue.enabled: false` (`_send_or_refuse`).

The methods here are all facts; the questions are inherited (`scheduling/questions.py`). Both share one record of state
(`scheduling/state.py`). The functions in `scheduling/` change it for several facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Literal

from msgspec.structs import replace

from penstock.core.dispatch import fit
from penstock.core.dispatch.disaggregation import whole_usage
from penstock.core.endpoints.health import Presence
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of, least_prompt_tokens
from penstock.core.queueing.fair_tree import Node
from penstock.core.scheduling import gating, pumping, returning, sending, waiting
from penstock.core.scheduling.questions import Questions
from penstock.core.scheduling.returning import AVOID_S, REFUSED_AVOID_S, REFUSED_AVOID_S_MAX
from penstock.core.scheduling.sending import BAND_RANKS
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Abort, Action, Decode
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.located import Source
from penstock.core.values.observation import Glimpse, Observation
from penstock.core.values.request import WORK_PER_OUTPUT_TOKEN, Request, Usage
from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import EndpointLimits, EndpointSpec, Limits, SchedulerSettings, parts_of
from penstock.core.values.takeover import ServiceGot, Underway

__all__ = ["AVOID_S", "BAND_RANKS", "REFUSED_AVOID_S", "REFUSED_AVOID_S_MAX", "Scheduler", "SchedulerSettings"]


class Scheduler(Questions):
    """The one owner of queues, leases and the view of the endpoints."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:
        super().__init__(SchedulerState(settings, random.random))

    # --- requests ---

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        """A new request: return its dispatch or refusal or, if it is queued, the requests it displaces."""
        state = self._state
        assert request.id not in state.entries, "request ids are unique among those that have not ended"
        state.seq += 1
        entry = Entry(request, state.seq)
        state.recorder.arrived(entry, now)
        admits = not state.draining and (not state.pauses.drained or state.pauses.admits(request.model))
        refusal = _unservable(state, request, now) if admits else Reason.DRAINING
        if refusal is not None:
            elsewhere = refusal is Reason.NO_ENDPOINT and state.other_works(request, now)
            return [waiting.refuse(state, entry, refusal, now, elsewhere=elsewhere)]
        waiting.appraise(state, entry, now, came_s=now)
        if request.prompt_tokens_max is not None:
            least = least_prompt_tokens(contents_of(request))
            if max(least, entry.prompt_tokens) > request.prompt_tokens_max:
                return [waiting.refuse(state, entry, Reason.CONTEXT_LENGTH_EXCEEDED, now)]
        if state.quotas.any:
            limit = state.quotas.admit(entry.accounts, tokens=entry.estimated_tokens, now=now)
            if limit is not None:
                return [waiting.refuse(state, entry, Reason.TENANT_LIMIT, now, limit)]
        if state.pool.differ and request.pinned is None:
            for name in fit.unfit(state.pool, entry, now):
                entry.own_retry().excluded[name] = math.inf
        state.entries[request.id] = entry
        entry.move(Event.ADMITTED)
        entry.queued_since_s = now
        try:
            return _taken_in(state, entry, now)
        except BaseException:
            band = state.queues.bands[entry.band]
            if entry.state is State.WAITING and entry.seq not in band.entries:
                entry.move(Event.CANCELLED)  # neither queued nor sent
                waiting.end(state, entry, None, now, Reason.CANCELLED)
            raise

    def first_token(self, lease: int, *, well: bool = True, now: float) -> list[Action]:
        """The first token of a streamed answer came, so its prefill is over. `well`: it is not an error."""
        state = self._state
        entry = state.leases[lease]
        entry.move(Event.FIRST_TOKEN)
        entry.seen(1)
        held = entry.lease
        assert held is not None
        state.recorder.first_token(entry, now)
        state.forecast.first_token(entry.model, held.prompt_tokens, now - held.began_s, now)
        endpoint = state.pool.holder(held)
        if endpoint is None:
            return []
        was_busy = endpoint.health.trial is None and endpoint.liveness.stuck_s is None
        endpoint.first_token(held, now)
        sending.look_at(state, endpoint, now)
        if well and not endpoint.proof.settled:
            returning.well(state, endpoint, now)
        ledger = endpoint.ledger
        if was_busy and len(ledger.leases) >= ledger.limit.slots and not state.stagger.made_wait:
            return []  # full before and after, and no request waits elsewhere for this prompt to be computed
        if not state.queues.waiting:
            state.queues.touch(endpoint)
            return []
        return pumping.touched(state, endpoint, now)

    def passed_on(self, lease: int, *, now: float) -> list[Action]:  # noqa: ARG002
        """A part of an answer that does not stream has reached the client: it can't be retried any more."""
        self._state.leases[lease].leased().reached_client()
        return []

    def rerouted(self, lease: int, endpoint: str, *, now: float) -> list[Action]:
        """Before an answer began, a proxy sent the request to `endpoint`: the lease moves there, beyond its slots."""
        state = self._state
        entry = state.leases[lease]
        before, after = state.pool.holder(entry.leased()), state.pool.get(endpoint)
        if after is None or after is before:
            return []
        sending.reroute(state, entry, before, after, now)
        if before is None:
            return []
        before.failure, before.failed_s = Failure.RESET, now
        return pumping.touched(state, before, now)

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:
        """An answer has grown to `output_tokens`. Worth reporting every few dozen tokens, not each."""
        state = self._state
        entry = state.leases[lease]
        held = entry.leased()
        entry.seen(output_tokens)
        look = state.charges.progressed(state.queues.bands[entry.band].tree, entry)
        if look:
            work = entry.uncached_tokens + WORK_PER_OUTPUT_TOKEN * entry.charged_output
            state.promised.settle(entry, work)
        endpoint = state.pool.holder(held)
        if endpoint is not None:
            endpoint.ledger.progressed(held, output_tokens, now)
            if state.paced:
                state.queues.touch(endpoint)
                look = True
        return pumping.pumped(state, now) if look else []

    def finished(self, lease: int, usage: Usage | None = None, *, refused: bool = False, now: float) -> list[Action]:
        """The last byte of an answer was read from the engine.

        `usage`: its true cost, if known. `refused`: the answer is an error that blames the request.
        """
        state = self._state
        entry = state.leases[lease]
        model = entry.model
        held = entry.lease
        assert held is not None
        if usage is not None:
            state.router.answered(held, usage, now)
            if held.transferred_tokens:
                usage = whole_usage(usage, held.cached_tokens, cached_told=held.cached_told)
        state.forecast.lease_ended(entry, now - held.began_s, now)
        counted = entry.output_seen > 1  # tokens were counted on the way: of a stream, or of a long whole answer
        if (answering := state.pool.holder(held)) is not None:
            seen = entry.output_seen if counted else 0
            answering.ledger.answered(held, usage.completion_tokens if usage is not None else seen, now)
        endpoint = sending.release(state, entry, now)
        entry.move(Event.FINISHED)
        if usage is not None and usage.prompt_tokens > 0:
            contents = contents_of(entry.request)
            state.estimator.learn(entry.tenant, model, contents, usage.prompt_tokens, usage.completion_tokens)
        elif usage is None:
            if counted:
                state.estimator.learn(entry.tenant, model, contents_of(entry.request), 0, entry.output_seen)
            usage = entry.presumed_usage()
        elif not refused:  # only the answer's tokens are reported
            usage = Usage(entry.prompt_tokens, usage.completion_tokens)
        waiting.end(state, entry, usage, now)
        if endpoint is None:
            return pumping.pumped(state, now)
        if held.first_token_s is None:  # it did not stream, or was empty
            if endpoint.health.trial is not None:
                endpoint.health.answered(endpoint.slots)
            endpoint.liveness.began(held, endpoint.ledger, now)
        sending.look_at(state, endpoint, now)
        if refused and endpoint.proof.refused(now - held.began_s, well=state.pool.answered):
            returning.seen_through(state, endpoint, now)
        returning.well(state, endpoint, now, refused=refused)
        return pumping.pumped(state, now)

    def answered(
        self, request_id: str, usage: Usage | None = None, *, refused: bool = False, now: float
    ) -> list[Action]:
        """An answer was read to its end although its lease had been taken back: it is charged as any other.

        The request leaves the queue; a later dispatch of it is not carried out. Unknown: nothing happens.
        """
        from penstock.core.scheduling import taking_over  # noqa: PLC0415 - most gateways never do

        taking_over.answered(self._state, request_id, usage, now, refused=refused)
        return pumping.pumped(self._state, now)

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        """The prompt of a divided request is computed: its prefill lease ends and its decode lease begins.

        Returns a `Decode` first. If the two engines exchange the KV cache themselves, the decoding one is fixed.
        """
        state = self._state
        entry = state.leases.pop(lease)
        held = entry.leased()
        if usage is not None:
            state.router.answered(held, usage, now)
        endpoint = state.pool.holder(held)
        if endpoint is not None:
            endpoint.first_token(held, now)
            endpoint.ledger.remove(held, now)
            returning.well(state, endpoint, now)
        meets = endpoint is not None and endpoint.meets
        if not meets and state.pending.lost(entry) and (others := sending.partners(state, entry, now)):
            state.pending.drop(entry, now)
            sending.reserve_decode(state, entry, others, now)
        if (answers := state.pending.answering(entry)) is not None:
            state.queues.touch(answers)  # its engine hears of the request only now
        following = state.pending.begin(entry, now)
        entry.lease = following
        cached_tokens = held.cached_tokens if usage is None else usage.cached_tokens
        following.takes_over(cached_tokens, told=usage is not None and usage.cached_told)
        state.leases[following.serial] = entry
        state.recorder.handed_over(entry, following.endpoint, now)
        actions: list[Action] = [Decode(entry.id, following.endpoint, following.serial)]
        pumping.hand_out(state, now, actions)
        return actions

    def failed(
        self, lease: int, failure: Failure, *, now: float, answering: bool = False, retry_after_s: float = 0.0
    ) -> list[Action]:
        """A dispatch failed. Before its first byte the request may be queued again; otherwise it ends.

        `answering`: of a divided request, the decoding endpoint failed, not the one of this lease.
        `retry_after_s`: how long the busy endpoint asked to be left alone.
        """
        state = self._state
        entry = state.leases[lease]
        answers = state.pending.answering(entry) if answering else None
        state.router.failed(entry, entry.leased())
        endpoint = sending.release(state, entry, now, abandoned=failure is Failure.FIRST_BYTE_TIMEOUT and not answering)
        if answering:
            endpoint = answers
        if endpoint is not None and entry.request.carried:
            returning.reported(state, endpoint, failure, now)
        elif endpoint is not None:
            if lacking := fit.lacking(entry.request, failure):
                endpoint.refused(lacking, now)
                state.pool.changed()
            returning.blame(state, endpoint, entry.model, failure, now, retry_after_s=retry_after_s)
        actions: list[Action] = []
        assert (entry.state is State.STREAMING) <= (failure is Failure.BROKEN), "a stream that began is not retried"
        if not returning.may_retry(state, entry, failure, endpoint, now):
            waiting.fail(state, entry, failure, now, actions)
        else:
            returning.requeue(state, entry, now, actions, failure=failure, endpoint=endpoint)
            if entry.request.falls_back or entry.request.others:
                returning.evict_going_elsewhere(state, now, actions)
        if endpoint is not None and not endpoint.proof.stands:
            returning.evict_unknown(state, now, actions)
        pumping.hand_out(state, now, actions)
        return actions

    def cancelled(self, request_id: str, *, unsent: bool = False, now: float) -> list[Action]:
        """The client is gone: a queued request leaves the queue, a running one returns its lease.

        `unsent`: its dispatch came too late to be carried out, so it costs nothing, as if it had been queued still. An
        unknown request (`arrived` raised) changes nothing.
        """
        state = self._state
        entry = state.entries.get(request_id)
        if entry is None:
            return []
        if entry.state is State.WAITING:
            waiting.unqueue(state, entry, Event.CANCELLED, now)
            state.forecast.left(entry, now)
            waiting.end(state, entry, None, now, Reason.CANCELLED)
            return pumping.pumped(state, now)  # others may have waited for it
        endpoint = sending.release(state, entry, now, abandoned=not unsent)
        if unsent:
            state.recorder.unsent(entry)
            entry.move(Event.REQUEUED)
        entry.move(Event.CANCELLED)
        usage, reason = (None, Reason.CANCELLED) if unsent else (entry.presumed_usage(), Reason.CLIENT_GONE)
        waiting.end(state, entry, usage, now, reason)
        return pumping.touched(state, endpoint, now) if endpoint is not None else pumping.pumped(state, now)

    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]:
        """The `keys` of a queued request's token blocks: they show which endpoint caches how much of its prompt."""
        entry = self._queued(request_id)
        if entry is None:
            return []
        entry.told_blocks(tuple(keys), block_tokens)
        return self._cache_known(entry, now)

    def cached(
        self, request_id: str, tokens: Mapping[str, int], source: Source = Source.LMCACHE, *, now: float
    ) -> list[Action]:
        """A look-up at `source` found so many `tokens` of a queued prompt by endpoint; empty if it failed."""
        entry = self._queued(request_id)
        if entry is None:
            return []
        if tokens:
            entry.told_holders(source, tokens)
        return self._cache_known(entry, now)

    def _queued(self, request_id: str) -> Entry | None:
        entry = self._state.entries.get(request_id)
        return None if entry is None or entry.state is not State.WAITING else entry

    def _cache_known(self, entry: Entry, now: float) -> list[Action]:
        state = self._state
        state.affinity.told(entry)
        state.router.told(entry)
        state.look(entry, now)
        for endpoint in state.pool:
            if endpoint.serves(entry.model):
                state.queues.touch(endpoint)
        return pumping.pumped(state, now)

    # --- endpoints ---

    def endpoint_added(self, spec: EndpointSpec, *, now: float) -> list[Action]:
        """Use an endpoint from now on."""
        state = self._state
        endpoint = state.pool.add(spec)
        gating.memory_told(state, endpoint)
        state.paced = state.has_pace_limit()
        state.health_changed(now)
        return pumping.touched(state, endpoint, now)

    def endpoint_up(self, name: str, *, now: float) -> list[Action]:
        """A probe found the endpoint alive."""
        return self._probed(name, up=True, now=now)

    def endpoint_down(self, name: str, *, presence: Presence = Presence.DOWN, now: float) -> list[Action]:
        """A probe found no engine, or one that does not serve (`presence`). Requests that run there go on."""
        return self._probed(name, up=False, presence=presence, now=now)

    def _probed(self, name: str, *, up: bool, now: float, presence: Presence = Presence.DOWN) -> list[Action]:
        state = self._state
        endpoint = state.pool[name]
        if up and not endpoint.health.up:
            if endpoint.ledger.page.base is None:  # nothing shows that it is the same process
                state.gate.restarted(name, now)
            endpoint.replaced()
            endpoint.proof.returned()
        elif up and not endpoint.proof.chance(now) and not state.queues.waiting:
            state.router.answers(endpoint)
            return []  # as before, like nearly every probe
        leases, slots = len(endpoint.ledger.leases), endpoint.slots
        endpoint.health.probed(up=up, presence=presence, now=now, leases=leases, slots=slots)
        if up:
            state.router.answers(endpoint)
        else:
            state.router.down(endpoint)
        state.health_changed(now)
        state.queues.touch(endpoint)
        return self._without(now)

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
        """An endpoint reported something of itself, or an operator set it. None: as before.

        `vouched`: whether there is evidence of an engine before its first answer (`proof.py`); `by_word`: only the
        operator's configuration. `key_refused`: whether it refused the gateway's key when listing models. `silent`:
        whether a question goes unanswered. `slots` set by hand stay; `auto`: as the engine reports, or as measured.
        `lingers`: its engine goes on with abandoned requests. `contexts`: the most tokens of a request, by model.
        `adapters`: which of its models are LoRA adapters. `kv_tokens`: its KV memory, 0: as its engine reports.
        `keeps_prefixes`: whether its engine keeps blocks of ended requests.
        """
        state = self._state
        endpoint = state.pool[name]
        if models is not None:
            state.pool.lists(endpoint, models, known_until_s=now + state.known_s)
        if tells_models is not None:
            endpoint.tells_models = tells_models
        if vouched is not None:
            endpoint.proof.vouch(vouched=vouched, by_word=by_word)
        if key_refused:
            endpoint.proof.refuses_key(now)
        elif key_refused is not None:
            endpoint.proof.forgive()
        endpoint.silent = endpoint.silent if silent is None else silent
        if slots is not None:
            endpoint.set_slots(slots)
        if told_slots is not None:
            endpoint.slots_told(told_slots)
        if lingers is not None:
            endpoint.ledger.lingers = lingers
        if contexts is not None:
            endpoint.contexts = dict(contexts)
        endpoint.adapters.lists(adapters)
        if price is not None:
            endpoint.price = price
        if weight is not None:
            endpoint.weight = weight
        if limits is not None:
            endpoint.set_limits(limits)
            state.paced = state.has_pace_limit()
        gating.memory_set(state, endpoint, kv_tokens, keeps_prefixes=keeps_prefixes)
        state.health_changed(now)
        state.queues.touch(endpoint)
        actions: list[Action] = []
        returning.evict_unknown(state, now, actions)
        returning.evict_going_elsewhere(state, now, actions)
        pumping.hand_out(state, now, actions)
        return actions

    def endpoint_removed(self, name: str, *, now: float) -> list[Action]:
        """Remove an endpoint. Requests that run there go on; another of the same name may be added later.

        Requests for models that only it served stay queued as long as they may wait, because it may be replaced, and
        then get `no_endpoint`; unless it was drained because it leaves for good.
        """
        state = self._state
        endpoint = state.pool.remove(name, known_until_s=now + state.known_s)
        state.queues.forget(endpoint)
        state.router.gone(endpoint)
        state.gate.removed(name)
        state.affinity.used(endpoint)
        state.timers.cancel(name)
        state.health_changed(now)
        return self._without(now)

    def endpoint_drained(self, name: str, *, leaves: bool = False, now: float) -> list[Action]:
        """An operator drains the endpoint: it gets no new requests, those that run there may finish.

        `leaves`: for good, and nothing replaces it. What other endpoints do not serve is unknown from now on; requests
        that are queued for it are evicted once the settings are in force (`reconfigured`).
        """
        return self._drained(name, drained=True, leaves=leaves, now=now)

    def endpoint_resumed(self, name: str, *, now: float) -> list[Action]:
        """Use a drained endpoint again."""
        return self._drained(name, drained=False, leaves=False, now=now)

    def _drained(self, name: str, *, drained: bool, leaves: bool, now: float) -> list[Action]:
        state = self._state
        endpoint = state.pool[name]
        endpoint.drained, endpoint.leaves = drained, leaves
        if not drained:
            endpoint.proof.forgive()
        state.health_changed(now)
        state.queues.touch(endpoint)
        return self._without(now)

    def _without(self, now: float) -> list[Action]:
        """Evict requests that need not wait for an endpoint now out of service, then pump."""
        state, actions = self._state, list[Action]()
        if state.queues.waiting or state.queues.held:
            returning.evict_going_elsewhere(state, now, actions)
            pumping.hand_out(state, now, actions)
        return actions

    def observed(self, name: str, reading: Observation | None, *, answered: bool = False, now: float) -> list[Action]:
        """A `reading` of the endpoint's gauges; None: it failed. `answered`: though its process responded."""
        state = self._state
        endpoint = state.pool[name]
        epoch = endpoint.ledger.epoch
        if reading is not None:
            wanted = endpoint.finds_slots and state.pump.wants_slots(endpoint)
            if endpoint.observed(reading, now, wanted=wanted):
                state.pool.changed()
                if endpoint.ledger.limit.shrunk:
                    state.look_again(endpoint, now)
            state.router.read(endpoint, restarted=endpoint.ledger.epoch != epoch)
            endpoint.adapters.read(reading.adapters_held, reading.adapters_running)
            if state.gate.on:
                if endpoint.ledger.epoch != epoch:
                    state.gate.restarted(name, now)
                gating.memory_told(state, endpoint)
        else:
            endpoint.ledger.missed(answered=answered)
        return pumping.touched(state, endpoint, now)

    def moved(self, names: Iterable[str], *, now: float) -> list[Action]:
        """Answers of the endpoints `names` made progress, or would have if their clients had read them."""
        for name in names:
            if (endpoint := self._state.pool.get(name)) is not None:
                endpoint.ledger.life_s = now
        return []

    def glimpsed(self, name: str, part: Glimpse, *, now: float) -> list[Action]:
        """An answer of the endpoint carried a `part` of its gauges."""
        state = self._state
        endpoint = state.pool[name]
        endpoint.ledger.glimpse(part, now)
        return pumping.touched(state, endpoint, now)

    def kv_stored(self, endpoint: str, keys: Iterable[int], *, now: float) -> list[Action]:  # noqa: ARG002
        """An endpoint reports that it caches the token blocks with these `keys`."""
        if (known := self._state.pool.get(endpoint)) is not None:
            self._state.router.stored(known, keys)
        return []

    def kv_removed(self, endpoint: str, keys: Sequence[int], *, gone: bool = True, now: float) -> list[Action]:
        """An endpoint reports that it no longer caches the token blocks with these `keys`.

        If they are not `gone`, it is only unknown from now on whether it does.
        """
        state = self._state
        if (known := state.pool.get(endpoint)) is not None:
            state.router.removed(known, keys)
            if gone and state.gate.unheld(endpoint, keys, now):
                return pumping.pumped(state, now)
        return []

    def kv_cleared(self, endpoint: str, *, now: float) -> list[Action]:
        """An endpoint reports that its prefix cache is empty."""
        state = self._state
        if (known := state.pool.get(endpoint)) is None:
            return []
        state.router.cleared(known)
        state.gate.restarted(endpoint, now)
        return pumping.pumped(state, now)

    def kv_lost(self, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """The KV-event stream of an endpoint broke: use our own history until it reports again."""
        if (known := self._state.pool.get(endpoint)) is not None:
            self._state.router.lost(known)
        return []

    # --- operators ---

    def paused(self, model: str | None, *, now: float) -> list[Action]:
        """Queue requests for this model (None: for any) and send none until `resumed`."""
        state = self._state
        state.pauses.pause(model)
        state.holds_changed()
        actions = self._without(now)
        state.wait_causes.look(now, at_once=True)
        return actions

    def drained(self, model: str | None, *, now: float) -> list[Action]:  # noqa: ARG002
        """Refuse new requests for this model (None: for any) until `resumed`; serve those that are queued."""
        self._state.pauses.drain(model)
        return []

    def resumed(self, model: str | None, *, now: float) -> list[Action]:
        """End a model's pause and drain; None: all of them."""
        state = self._state
        state.pauses.resume(model)
        state.holds_changed()
        state.forecast.resumed(model)
        return pumping.pumped(state, now)

    def bumped(self, request_id: str, *, now: float) -> list[Action]:
        """Let a queued request go next in its band, after earlier bumped ones, as soon as there is room for it."""
        state = self._state
        entry = self._queued(request_id)
        if entry is None:
            return []
        if entry.held and (session := state.gate.session_of(request_id)) is not None:
            state.gate.prefer(session)
            return pumping.pumped(state, now)
        state.queues.bands[entry.band].bumped.setdefault(entry.seq, entry)
        state.recorder.bumped(entry)
        return pumping.pumped(state, now)

    def session_paused(self, tenant: str, session: str, *, now: float) -> list[Action]:
        """Let the turns of a `session`, with any model, wait until it is resumed; others have its memory.

        It need not be known here yet.
        """
        state = self._state
        for found in state.gate.stop_all(tenant, session):
            state.recorder.relined(found.waiting.values(), now)
        return pumping.pumped(state, now)

    def session_resumed(self, tenant: str, session: str, *, now: float) -> list[Action]:
        """End an operator's pause of a `session`. Unknown: nothing happens."""
        state = self._state
        for found in state.gate.resume_all(tenant, session):
            state.recorder.relined(found.waiting.values(), now)
        return pumping.pumped(state, now)

    def session_preferred(self, tenant: str, session: str, *, now: float) -> list[Action]:
        """Let a waiting `session` in next, as if it had waited as long as it may. Unknown: nothing happens."""
        state = self._state
        for found in state.gate.named(tenant, session):
            state.gate.prefer(found)
        return pumping.pumped(state, now)

    def tenants_limited(self, limits: Mapping[str, Limits], *, now: float) -> list[Action]:
        """New `limits` of all tenants, for requests already here, too. `running=0` pauses a tenant."""
        state = self._state
        state.told_settings = replace(state.told_settings, tenants=limits)
        limits = parts_of(limits, state.gateways)
        state.settings = replace(state.settings, tenants=limits)
        state.quotas.reconfigured(limits, state.entries.values(), now)
        state.capped.uncap_all()
        state.under_share.judge_again(now)
        state.recorder.relined([entry for entry in state.entries.values() if entry.state is State.WAITING], now)
        state.wait_causes.look(now, at_once=True)
        state.queues.touch_all(state.pool)
        return pumping.pumped(state, now)

    def tenants_weighed(self, weights: Mapping[str, float], *, now: float) -> list[Action]:
        """Operators' `weights` of tenants, for requests already here, too; of all others the settings' hold."""
        state = self._state
        state.told_settings = replace(state.told_settings, ordered_weights=weights)
        state.settings = replace(state.settings, ordered_weights=weights)
        state.reweigh()
        state.under_share.judge_again(now)
        state.wait_causes.look(now, at_once=True)
        state.queues.touch_all(state.pool)
        return pumping.pumped(state, now)

    def evicted(self, request_id: str, *, now: float) -> list[Action]:
        """An operator ends a request: a queued one is refused, a running one aborted. Unknown: nothing happens."""
        return self._evicted((request_id,), now)

    def all_evicted(self, request_ids: Iterable[str], *, now: float) -> list[Action]:
        """An operator ends many requests, as `evicted` does each; the pump runs once."""
        return self._evicted(request_ids, now)

    def _evicted(self, request_ids: Iterable[str], now: float) -> list[Action]:
        state, actions = self._state, list[Action]()
        for request_id in request_ids:
            entry = state.entries.get(request_id)
            if entry is None:
                continue
            if entry.state is State.WAITING:
                waiting.evict(state, entry, Reason.OPERATOR, now, actions)
            else:
                state.recorder.blamed(entry, Reason.OPERATOR)
                actions.append(Abort(request_id, Reason.OPERATOR))
        pumping.hand_out(state, now, actions)
        return actions

    def reconfigured(self, settings: SchedulerSettings, *, now: float) -> list[Action]:
        """New settings (`scheduling/reconfigure.py`). No request is lost.

        Raises NeedsRestartError, before anything changes, if queued requests could not follow.
        """
        state = self._state
        if settings == state.told_settings and not state.entries:
            return []  # as at the start
        from penstock.core.scheduling import reconfigure  # noqa: PLC0415 - few settings change

        return reconfigure.reconfigured(state, settings, now)

    def apportioned(self, gateways: int, *, now: float) -> list[Action]:
        """So many gateways decide, each for itself: use one part of all slots, bounds and limits."""
        state = self._state
        state.gateways = gateways
        state.pool.apportion(gateways)
        from penstock.core.scheduling import reconfigure  # noqa: PLC0415

        return reconfigure.reconfigured(state, state.told_settings, now)

    # --- takeover: another scheduler decided before this one ---
    #
    # While *halted* a scheduler books facts and sends nothing. Whoever carries the requests reports which are queued
    # or running, and since when: a lease takes its slot and memory even if that is more than there is, and a queued
    # request is placed by its age. Lost are a request's failures, bumps, and what was learned of engines.

    def halted(self, *, afresh: bool = False, now: float) -> list[Action]:
        """Send nothing until `begun`. `afresh`: forget the service of flows, if no request is here."""
        state = self._state
        state.pauses.halt(halted=True)
        state.holds_changed()
        if afresh and not state.entries:
            state.capped.uncap_all()
            for band in state.queues.bands:
                band.replant()
            state.reweigh()
        state.wait_causes.look(now, at_once=True)
        return []

    def begun(self, *, now: float, lease_from: int = 0, afresh: bool = False) -> list[Action]:
        """Send again. Leases have numbers above `lease_from`.

        `afresh`: only credited service of flows is known; tags are levelled, so that no flow is behind by more than a
        request.
        """
        state = self._state
        state.lease_serial = max(state.lease_serial, lease_from)
        state.pauses.halt(halted=False)
        state.holds_changed()
        state.forecast.resumed(None)
        for band in state.queues.bands:
            band.by_age()
            if afresh:
                band.tree.level(_largest_costs(state, band.entries.values()))
        state.queues.touch_all(state.pool)
        actions: list[Action] = []
        returning.evict_unknown(state, now, actions)
        pumping.hand_out(state, now, actions)
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
        """While halted, take in a request that another scheduler admitted; bounds and rates do not refuse it.

        It arrived `came_s` ago and was queued for `waited_s`. `underway`: its lease, numbered uniquely; None: it
        is queued. `decided`: another scheduler let it wait; False: it came while there was none.
        """
        from penstock.core.scheduling import taking_over  # noqa: PLC0415 - most gateways never do

        assert self._state.pauses.halted, "a scheduler that sends takes nothing over"
        state = self._state
        taking_over.adopt(state, request, came_s=came_s, waited_s=waited_s, underway=underway, decided=decided, now=now)
        return []

    def forgotten(self, request_ids: Iterable[str], *, now: float) -> list[Action]:
        """Forget requests that another scheduler decides about, as if they had never arrived."""
        from penstock.core.scheduling import taking_over  # noqa: PLC0415 - most gateways never do

        taking_over.forget(self._state, request_ids, now)
        return []

    def credited(self, services: Iterable[ServiceGot], *, now: float) -> list[Action]:
        """Count the service that flows got from another scheduler in the last minute, for turns and limits."""
        from penstock.core.scheduling import taking_over  # noqa: PLC0415 - most gateways never do

        taking_over.credit(self._state, services, now)
        return []

    def budgets_left(self, left: Mapping[str, float], *, now: float) -> list[Action]:
        """So much is `left` of accounts' budgets for a day, 1 is all, beside present requests. It raises none."""
        from penstock.core.scheduling import taking_over  # noqa: PLC0415 - most gateways never do

        taking_over.budgets_left(self._state, left, now)
        return []

    def remembered(
        self,
        sessions: Iterable[tuple[str, str, str]],
        prefixes: Iterable[tuple[str, Sequence[int]]],
        *,
        now: float,
    ) -> list[Action]:
        """Keep the endpoints of sessions (model, session, endpoint) and of prefixes (endpoint, keys), oldest first."""
        state = self._state
        for model, session, name in sessions:
            state.router.lived(model, session, name)
        for name, prefix in prefixes:
            if (endpoint := state.pool.get(name)) is not None:
                state.router.sent_before(prefix, endpoint)
                state.gate.returning(now)
        return []

    # --- time ---

    def expire(self, *, now: float) -> list[Action]:
        """Time has passed: evict requests that waited too long, check endpoints and engines' progress again."""
        state, actions = self._state, list[Action]()
        if now >= state.look_s:
            returning.look_who_moves(state, now, actions)
        for key in state.timers.due(now):
            if key == gating.TIMER:
                gating.time_has_passed(state, now)
            elif not isinstance(key, str):
                entry = state.queues.find(key)
                if entry is not None:
                    waiting.time_is_up(state, entry, now, actions)
            elif (endpoint := state.pool.get(key)) is not None:
                state.queues.touch(endpoint)
                sending.look(state, endpoint, now)
                limit = endpoint.ledger.limit
                if limit.shrunk:
                    returning.surplus(state, endpoint, now, actions)
                state.look_again(endpoint, limit.looks_s(endpoint.ledger, now))
        _expire_drain(state, now, actions)
        pumping.hand_out(state, now, actions)
        return actions

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:
        """Admit nothing more; serve the queue until `queue_until_s`, and running requests until `stop_at_s`."""
        state, actions = self._state, list[Action]()
        state.draining = True
        state.queue_until_s = queue_until_s
        state.stop_at_s = stop_at_s
        _expire_drain(state, now, actions)
        return actions


def _unservable(state: SchedulerState, request: Request, now: float) -> Reason | None:
    if request.pinned is None:
        if state.pool.knows(request.model, now) is False:
            return Reason.MODEL_NOT_FOUND
        has_others = request.falls_back or request.others
        return Reason.NO_ENDPOINT if has_others and state.goes_elsewhere(request, now) else None
    endpoint = state.pool.get(request.pinned)
    if endpoint is None:
        return Reason.ENDPOINT_NOT_FOUND
    if endpoint.claims(request.model):
        return None
    return Reason.NO_ENDPOINT if endpoint.models is None else Reason.MODEL_NOT_FOUND


def _taken_in(state: SchedulerState, entry: Entry, now: float) -> list[Action]:
    """Dispatch an admitted request, let it wait, or refuse it."""
    actions: list[Action] = []
    if entry.pinned is not None or not state.settings.queue_enabled:
        _send_or_refuse(state, entry, now, actions)
        return actions
    state.under_share.asked(entry, now)
    if entry.request.turn is not None and state.gate.on:
        before = state.queues.held
        passes = gating.passes(state, entry, now)
        if not passes:
            gating.hold(state, entry, now, actions)
        if not passes or state.queues.held < before:  # others came in, too
            pumping.hand_out(state, now, actions)
        if not passes:
            return actions
    if not state.queues.waiting and (endpoints := sending.alone(state, entry, now)):
        actions.append(sending.dispatch_alone(state, entry, endpoints, now))
        return actions
    state.under_share.arrived(entry, now)
    waiting.enqueue(state, entry, now)
    if state.pump.may_go(entry, now):
        pumping.hand_out(state, now, actions)
    if entry.state is State.WAITING:
        before = len(actions)
        waiting.admit_to_wait(state, entry, now, actions)
        if len(actions) > before:  # a refused or displaced request may have been in another's way
            pumping.hand_out(state, now, actions)
        elif entry.state is State.WAITING:
            pumping.make_way(state, now, actions)
    return actions


def _send_or_refuse(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """Send a pinned request, or any with the queue off, or refuse it. It waits only until endpoints report models."""
    request = entry.request
    endpoints = [e for e in sending.usable(state, entry, now) if not entry.excludes(e.name, now)]
    reason = Reason.NO_ENDPOINT
    limit: LimitReached | None = None
    if request.pinned is not None and (pinned := state.pool[request.pinned]).health.up:
        reason = Reason.DRAINING if pinned.drained else Reason.ENDPOINT_OVERLOADED
    if not state.pauses.sends(request.model):
        endpoints, reason = [], Reason.NO_ENDPOINT
    elif (limit := state.quotas.full(entry.accounts)) is not None:
        endpoints, reason = [], Reason.TENANT_LIMIT
    if request.pinned is not None and state.settings.queue_enabled:
        endpoints = [e for e in endpoints if state.candidates.open_to(e, entry, now)]
    if endpoints:
        actions.append(sending.dispatch(state, entry, endpoints, now))
    elif reason is Reason.NO_ENDPOINT and request.pinned is None and state.pool.telling:
        entry.wait_s_max = min(entry.wait_s_max, waiting.TELLING_S_MAX)
        waiting.enqueue(state, entry, now)
        waiting.admit_to_wait(state, entry, now, actions)
    else:
        waiting.reject(state, entry, reason, now, actions, limit=limit)


def _largest_costs(state: SchedulerState, queued: Iterable[Entry]) -> dict[Node, float]:
    """Returns the cost of the largest queued request below each flow and group."""
    costs: dict[Node, float] = {}
    for entry in queued:
        cost = state.charges.estimated_cost(entry)
        node: Node | None = entry.node
        while node is not None and cost > costs.get(node, -1.0):
            costs[node] = cost
            node = node.parent
    return costs


def _expire_drain(state: SchedulerState, now: float, actions: list[Action]) -> None:
    stop = state.stop_at_s is not None and state.stop_at_s <= now
    if state.queue_until_s is not None and (stop or state.queue_until_s <= now):
        state.queue_until_s = None
        for band in state.queues.bands:
            for entry in list(band.entries.values()):
                waiting.evict(state, entry, Reason.DRAINING, now, actions)
    if stop:
        state.stop_at_s = None
        for entry in state.leases.values():
            state.recorder.blamed(entry, Reason.DRAINING)
            actions.append(Abort(entry.id, Reason.DRAINING))
