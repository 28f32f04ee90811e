"""A request's life: it arrives, is sent, answered piece by piece, and finishes, fails or is given up."""

from __future__ import annotations

import math

from penstock.core.dispatch.disaggregation import whole_usage
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of
from penstock.core.scheduling.waiting import Waiting
from penstock.core.values import retry
from penstock.core.values.actions import Action, Decode, Evict, Requeue
from penstock.core.values.cause import Cause
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.outcome import Reason
from penstock.core.values.request import WORK_PER_OUTPUT_TOKEN, Request, Usage
from penstock.core.values.retry import Failure, Verdict

AVOID_S = 1.0  # a request that failed at an endpoint is tried elsewhere for that long
REFUSED_AVOID_S = 0.1  # a request that was refused; doubles with each refusal of the same request
REFUSED_AVOID_S_MAX = 2.0
TELLING_S_MAX = 5.0  # with queueing off: two questions that time out, and some; who has told tells within milliseconds


class Requests(Waiting):
    """Facts of requests."""

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        """A request came, whole. It is dispatched, waits, or is refused at once."""
        assert request.id not in self._entries, "request ids are unique among those that have not ended"
        self._seq += 1
        entry = Entry(request, self._seq)
        self._recorder.arrived(entry, now)
        admits = not self._draining and self._pauses.admits(request.model)
        refusal = self._unservable(request, now) if admits else Reason.DRAINING
        if refusal is not None:
            return [self._refuse(entry, refusal, now)]
        self._appraise(entry, now)
        limit = self._quotas.admit(entry.account, tokens=entry.estimated_tokens, now=now)
        if limit is not None:
            return [self._refuse(entry, Reason.TENANT_LIMIT, now, limit.retry_after_s)]
        self._entries[request.id] = entry
        entry.move(Event.ADMITTED)
        entry.queued_since_s = now
        actions: list[Action] = []
        if request.pinned is not None or not self._settings.queue_enabled:
            self._send_or_refuse(entry, now, actions)
            return actions
        self._under_share.asked(entry, now)
        if not self._queues.waiting and (endpoints := self._alone(entry, now)):
            return [self._dispatch_alone(entry, endpoints, now)]
        self._under_share.arrived(entry, now)
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
        self._forecast.first_token(entry.model, held.prompt_tokens, now - held.began_s, now)
        endpoint = self._pool.holder(held)
        if endpoint is None:
            return []
        endpoint.first_token(held, now)
        self._look_at(endpoint, now)
        if len(endpoint.ledger.leases) >= endpoint.slots and not self._stagger.holds:
            return []  # closed before and after, and nobody waits elsewhere for its prompt to be computed
        return self._touched(endpoint, now)

    def passed_on(self, lease: int, *, now: float) -> list[Action]:  # noqa: ARG002
        """Of an answer that does not stream a part has reached the client: it can't be asked for elsewhere any more."""
        self._leases[lease].held().passed_on = True
        return []

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:
        """An answer has grown to that many tokens. Worth telling every few dozen tokens, not each."""
        entry = self._leases[lease]
        held = entry.held()
        entry.output_seen = max(entry.output_seen, output_tokens)
        look = self._charges.progressed(self._tree(entry), entry)
        if look:
            self._promised.settle(entry, entry.uncached_tokens + WORK_PER_OUTPUT_TOKEN * entry.charged_output)
        endpoint = self._pool.holder(held)
        if endpoint is not None:
            endpoint.ledger.progressed(held, output_tokens, now)
            if self.paced:
                self._queues.touch(endpoint)
                look = True
        return self._pumped(now) if look else []

    def finished(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        """The last byte of an answer was read from the engine. `usage`: what it truly cost, where that is known."""
        entry = self._leases[lease]
        model = entry.model
        held = entry.held()
        if usage is not None:
            self._router.answered(held, usage, now)
            if held.transferred_tokens:
                usage = whole_usage(usage, held.cached_tokens, cached_told=held.cached_told)
        self._forecast.lease_ended(entry, now - held.began_s, now)
        if (answering := self._pool.holder(held)) is not None:
            seen = entry.output_seen if entry.output_seen > 1 else 0  # that of a whole answer tells nothing
            answering.ledger.answered(held, usage.completion_tokens if usage is not None else seen, now)
        endpoint = self._release(entry, now)
        entry.move(Event.FINISHED)
        if usage is not None and usage.prompt_tokens > 0:
            contents = contents_of(entry.request)
            self._estimator.learn_prompt(entry.tenant, model, contents, usage.prompt_tokens)
            self._estimator.learn_output(entry.tenant, model, usage.completion_tokens, contents.answers)
        elif usage is None and entry.output_seen > 1:
            answers = contents_of(entry.request).answers
            self._estimator.learn_output(entry.tenant, model, entry.output_seen, answers)
        self._end(entry, usage or entry.presumed_usage(), now)
        if endpoint is None:
            return self._pumped(now)
        if held.first_token_s is None:  # it did not stream, or was of no bytes
            endpoint.health.answered(endpoint.slots)
            endpoint.movement.began(held, endpoint.ledger, now)
        self._look_at(endpoint, now)
        self._well(endpoint, now)
        return self._pumped(now)

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        """The prompt of a divided request is computed: its prefill lease ends, and its decode lease begins.

        Where the engines meet, who answers can't be another one any more.
        """
        entry = self._leases.pop(lease)
        held = entry.held()
        if usage is not None:
            self._router.answered(held, usage, now)
        endpoint = self._pool.holder(held)
        if endpoint is not None:
            endpoint.first_token(held, now)
            endpoint.ledger.remove(held, now)
            self._well(endpoint, now)
        meets = endpoint is not None and endpoint.meets
        if not meets and self._pending.lost(entry) and (others := self._partners(entry, now)):
            self._pending.drop(entry, now)
            self._reserve_decode(entry, others, now)
        if (answers := self._pending.answering(entry)) is not None:
            self._queues.touch(answers)  # its engine hears of the request only now
        entry.lease = following = self._pending.begin(entry, now)
        following.cached_tokens = held.cached_tokens if usage is None else usage.cached_tokens
        following.cached_told = usage is not None and usage.cached_told
        self._leases[following.serial] = entry
        self._recorder.handed_over(entry, following.endpoint, now)
        actions: list[Action] = [Decode(entry.request.id, following.endpoint, following.serial)]
        self._hand_out(now, actions)
        return actions

    def failed(self, lease: int, failure: Failure, *, answering: bool = False, now: float) -> list[Action]:
        """The dispatch failed. Before the first byte the request may go back to the queue.

        `answering`: it was not the endpoint of this lease that failed, which computes a prompt, but the one that was to
        take it over and answer.
        """
        entry = self._leases[lease]
        answers = self._pending.answering(entry) if answering else None
        self._router.failed(entry, entry.held())
        endpoint = self._release(entry, now, given_up=failure is Failure.FIRST_BYTE_TIMEOUT and not answering)
        if answering:
            endpoint = answers
        if endpoint is not None:
            self._blame(endpoint, failure, now)
        actions: list[Action] = []
        assert (entry.state is State.STREAMING) <= (failure is Failure.BROKEN), "nothing is taken back after it"
        if self._verdict(entry, failure, endpoint, now) is Verdict.FAIL:
            self._fail(entry, failure, now, actions)
        else:
            self._requeue(entry, failure, endpoint, now, actions)
        self._hand_out(now, actions)
        return actions

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        """The client hung up. A waiter leaves the queue; a running request's lease is released."""
        entry = self._entries[request_id]
        if entry.state is State.WAITING:
            self._unqueue(entry, Event.CANCELLED, now)
            self._forecast.left(entry, now)
            self._end(entry, None, now, Reason.CANCELLED)
            return self._pumped(now)  # others may have waited for it
        endpoint = self._release(entry, now, given_up=True)
        entry.move(Event.CANCELLED)
        self._end(entry, entry.presumed_usage(), now, Reason.CLIENT_GONE)
        return self._touched(endpoint, now) if endpoint is not None else self._pumped(now)

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
            request.tenant, request.model, contents_of(request), request.output_tokens_max
        )
        entry.expect(estimate)
        if self._pool.roles.any:
            short = estimate.prompt_tokens < self._settings.divided_tokens_min
            entry.whole = not request.divisible or request.pinned is not None or short
        self._router.look(entry, now)
        entry.choosy = self._affinity.choosy(entry, now)
        entry.work = entry.uncached_tokens + WORK_PER_OUTPUT_TOKEN * estimate.output_tokens
        band = self._queues.bands[request.band]
        own_s = math.inf if request.deadline_s is None else request.deadline_s
        band_s = band.settings.deadline_s
        entry.deadline_s = own_s if band_s is None else min(own_s, now + band_s)
        entry.key = (request.priority, self._keys[request.band](entry, now))
        entry.wait_s_max = self._wait_s_max(band)
        self._place(entry, band)

    def _send_or_refuse(self, entry: Entry, now: float, actions: list[Action]) -> None:
        """A request that never waits: to an endpoint now, or not at all. Only what endpoints serve is waited for."""
        request = entry.request
        endpoints = self._usable(entry, now)
        reason = Reason.NO_ENDPOINT
        if request.pinned is not None and (pinned := self._pool[request.pinned]).health.up:
            reason = Reason.DRAINING if pinned.drained else Reason.ENDPOINT_OVERLOADED
        if not self._pauses.sends(request.model):
            endpoints, reason = [], Reason.NO_ENDPOINT
        elif self._quotas.held(entry.account):
            endpoints, reason = [], Reason.TENANT_LIMIT
        if request.pinned is not None and self._settings.queue_enabled:
            endpoints = [e for e in endpoints if self._candidates.open_to(e, entry, now)]
        if endpoints:
            actions.append(self._dispatch(entry, endpoints, now))
        elif reason is Reason.NO_ENDPOINT and request.pinned is None and self._pool.telling:
            entry.wait_s_max = min(entry.wait_s_max, TELLING_S_MAX)
            self._enqueue(entry, now)
            self._admit_to_wait(entry, now, actions)
        else:
            self._reject(entry, reason, now, actions)

    def _requeue(
        self, entry: Entry, failure: Failure | None, endpoint: Endpoint | None, now: float, actions: list[Action]
    ) -> None:
        """Let it wait again with its age kept, away from the endpoint that did not serve it.

        `failure`: None where that one shows no movement.
        """
        self._charges.refund(self._tree(entry), entry)
        self._promised.settle(entry, 0.0)
        cause = Cause.STUCK if failure is None else failure
        self._recorder.requeued(entry, cause, endpoint.name if endpoint is not None else "", now)
        if endpoint is not None:
            avoid_s = math.inf if failure is Failure.MODEL_GONE else AVOID_S
            if failure is Failure.BUSY:
                avoid_s = min(REFUSED_AVOID_S * 2 ** min(entry.refusals - 1, 16), REFUSED_AVOID_S_MAX)
            entry.avoid = {name: until for name, until in (entry.avoid or {}).items() if until > now}
            entry.avoid[endpoint.name] = now + avoid_s
        over = self._draining and self._queue_until_s is None
        elsewhere: list[Endpoint] = []
        if not self._settings.queue_enabled and not over and self._pauses.sends(entry.model):
            elsewhere = [e for e in self._usable(entry, now) if not entry.shuns(e.name, now)]
            if self._quotas.held(entry.account):
                elsewhere = []
        if not self._settings.queue_enabled and not over and not elsewhere:
            assert failure is not None, "what can't wait is taken back only where it can go elsewhere"
            self._fail(entry, failure, now, actions)  # it can't wait, so this was its last answer
            return
        entry.move(Event.REQUEUED)
        actions.append(Requeue(entry.request.id, cause))
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
            self._under_share.returned(entry, now)
            self._enqueue(entry, now)
            self._arm(entry, now)
            self._groups.waits(entry)
            self._recorder.waits(entry, now)

    def _verdict(self, entry: Entry, failure: Failure, endpoint: Endpoint | None, now: float) -> Verdict:
        """Count the failure, and judge it."""
        if failure is Failure.BUSY:
            entry.refusals += 1
        elif failure is not Failure.MODEL_GONE:
            entry.attempts += 1
        elif not self._others_serve(entry, endpoint, now):
            return Verdict.FAIL
        if entry.request.pinned is not None:
            return Verdict.FAIL
        return retry.verdict(
            failure,
            attempts=entry.attempts,
            attempts_max=self._settings.attempts_max,
            budget=self._budget,
            now=now,
            under_way=len(self._leases),
        )

    def _others_serve(self, entry: Entry, endpoint: Endpoint | None, now: float) -> bool:
        """Whether any other endpoint has the model, as far as is known, however it fares now."""
        return any(e is not endpoint and e.serves(entry.model) and not entry.shuns(e.name, now) for e in self._pool)

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
        elif failure is not Failure.MODEL_GONE:  # which says nothing of how it fares
            endpoint.health.failed(now)
        if failure in (Failure.BUSY, Failure.SERVER_ERROR, Failure.MODEL_GONE):
            endpoint.movement.moves(now)
        self._queues.touch(endpoint)
        self._health_changed(now)
