"""A request's life: it arrives, is sent, answered piece by piece, and finishes, fails or is given up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from penstock.core.dispatch import fit
from penstock.core.dispatch.disaggregation import whole_usage
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of, least_prompt_tokens
from penstock.core.scheduling import ends, judging, returning, sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action, Decode
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.located import Source
from penstock.core.values.request import WORK_PER_OUTPUT_TOKEN, Request, Usage
from penstock.core.values.retry import Verdict
from penstock.core.values.rows import LimitReached

TELLING_S_MAX = 5.0  # with queueing off: two questions that time out, and some; who has told tells within milliseconds


class RequestFacts:
    """What the scheduler is told of requests."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        """Take in a request that came, whole. Returns its dispatch or refusal, or, if it waits, what it displaces."""
        state = self._state
        assert request.id not in state.entries, "request ids are unique among those that have not ended"
        state.seq += 1
        entry = Entry(request, state.seq)
        state.recorder.arrived(entry, now)
        admits = not state.draining and state.pauses.admits(request.model)
        refusal = _unservable(state, request, now) if admits else Reason.DRAINING
        if refusal is not None:
            return [ends.refuse(state, entry, refusal, now)]
        waiting.appraise(state, entry, now, came_s=now)
        if request.prompt_tokens_max is not None:
            least = least_prompt_tokens(contents_of(request))
            if max(least, entry.estimate.prompt_tokens) > request.prompt_tokens_max:
                return [ends.refuse(state, entry, Reason.CONTEXT_LENGTH_EXCEEDED, now)]
        limit = state.quotas.admit(entry.account, tokens=entry.estimated_tokens, now=now)
        if limit is not None:
            return [ends.refuse(state, entry, Reason.TENANT_LIMIT, now, limit)]
        if state.pool.differ and request.pinned is None:
            for name in fit.unfit(state.pool, entry):
                entry.own_retry().excluded[name] = math.inf
        state.entries[request.id] = entry
        entry.move(Event.ADMITTED)
        entry.queue.entered(now)
        try:
            return _taken_in(state, entry, now)
        except BaseException:
            band = state.queues.bands[entry.request.band]
            if entry.state is State.WAITING and entry.seq not in band.entries:
                entry.move(Event.CANCELLED)  # neither queued nor sent: nothing else knows of it
                ends.end(state, entry, None, now, Reason.CANCELLED)
            raise

    def first_token(self, lease: int, *, well: bool = True, now: float) -> list[Action]:
        """Note the first byte of a streamed answer: the prefill is over. Of other answers it tells nothing.

        `well`: it is no error that came.
        """
        state = self._state
        entry = state.leases[lease]
        entry.move(Event.FIRST_TOKEN)
        entry.charge.seen(1)
        held = entry.leased()
        state.recorder.first_byte(entry, now)
        state.forecast.first_token(entry.model, held.prompt_tokens, now - held.began_s, now)
        endpoint = state.pool.holder(held)
        if endpoint is None:
            return []
        endpoint.first_token(held, now)
        sending.look_at(state, endpoint, now)
        if well and not endpoint.proof.settled:
            judging.well(state, endpoint, now)
        if len(endpoint.ledger.leases) >= endpoint.slots and not state.stagger.made_wait:
            return []  # closed before and after, and nobody waits elsewhere for its prompt to be computed
        return sending.touched(state, endpoint, now)

    def passed_on(self, lease: int, *, now: float) -> list[Action]:  # noqa: ARG002
        """Note that a part of an answer that does not stream has reached the client.

        The request of `lease` can't be asked for elsewhere any more.
        """
        self._state.leases[lease].leased().reached_client()
        return []

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:
        """Note that an answer has grown to `output_tokens`. Worth telling every few dozen tokens, not each."""
        state = self._state
        entry = state.leases[lease]
        held = entry.leased()
        entry.charge.seen(output_tokens)
        look = state.charges.progressed(state.tree_of(entry), entry)
        if look:
            state.promised.settle(
                entry, entry.route.uncached_tokens + WORK_PER_OUTPUT_TOKEN * entry.charge.charged_output
            )
        endpoint = state.pool.holder(held)
        if endpoint is not None:
            endpoint.ledger.progressed(held, output_tokens, now)
            if state.paced:
                state.queues.touch(endpoint)
                look = True
        return sending.pumped(state, now) if look else []

    def finished(self, lease: int, usage: Usage | None = None, *, refused: bool = False, now: float) -> list[Action]:
        """Note that the last byte of an answer was read from the engine.

        `usage`: what it truly cost; None: not known. `refused`: the answer is an error, for which the request is to
        blame, as far as one answer shows.
        """
        state = self._state
        entry = state.leases[lease]
        model = entry.model
        held = entry.leased()
        if usage is not None:
            state.router.answered(held, usage, now)
            if held.transferred_tokens:
                usage = whole_usage(usage, held.cached_tokens, cached_told=held.cached_told)
        state.forecast.lease_ended(entry, now - held.began_s, now)
        if (answering := state.pool.holder(held)) is not None:
            seen = (
                entry.charge.output_seen if entry.charge.output_seen > 1 else 0
            )  # that of a whole answer tells nothing
            answering.ledger.answered(held, usage.completion_tokens if usage is not None else seen, now)
        endpoint = sending.release(state, entry, now)
        entry.move(Event.FINISHED)
        if usage is not None and usage.prompt_tokens > 0:
            contents = contents_of(entry.request)
            state.estimator.learn_prompt(entry.tenant, model, contents, usage.prompt_tokens)
            state.estimator.learn_output(entry.tenant, model, usage.completion_tokens, contents.answers)
        elif usage is None and entry.charge.output_seen > 1:
            answers = contents_of(entry.request).answers
            state.estimator.learn_output(entry.tenant, model, entry.charge.output_seen, answers)
        ends.end(state, entry, usage or entry.presumed_usage(), now)
        if endpoint is None:
            return sending.pumped(state, now)
        if held.first_token_s is None:  # it did not stream, or was of no bytes
            endpoint.health.answered(endpoint.slots)
            endpoint.movement.began(held, endpoint.ledger, now)
        sending.look_at(state, endpoint, now)
        if refused and endpoint.proof.refused(now - held.began_s, well=state.pool.answered):
            judging.seen_through(state, endpoint, now)
        judging.well(state, endpoint, now, refused=refused)
        return sending.pumped(state, now)

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        """Note that the prompt of a divided request is computed: its prefill lease ends, and its decode lease begins.

        Returns a `Decode` first. If the engines meet, the one that answers can't be replaced any more.
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
            judging.well(state, endpoint, now)
        meets = endpoint is not None and endpoint.meets
        if not meets and state.pending.lost(entry) and (others := sending.partners(state, entry, now)):
            state.pending.drop(entry, now)
            sending.reserve_decode(state, entry, others, now)
        if (answers := state.pending.answering(entry)) is not None:
            state.queues.touch(answers)  # its engine hears of the request only now
        following = state.pending.begin(entry, now)
        entry.sent(following)
        cached_tokens = held.cached_tokens if usage is None else usage.cached_tokens
        following.takes_over(cached_tokens, told=usage is not None and usage.cached_told)
        state.leases[following.serial] = entry
        state.recorder.handed_over(entry, following.endpoint, now)
        actions: list[Action] = [Decode(entry.request.id, following.endpoint, following.serial)]
        sending.hand_out(state, now, actions)
        return actions

    def failed(
        self, lease: int, failure: Failure, *, now: float, answering: bool = False, retry_after_s: float = 0.0
    ) -> list[Action]:
        """Note that a dispatch failed. Returns what becomes of the request: before the first byte it may wait again.

        `answering`: it was not the endpoint of this lease that failed, which computes a prompt, but the one that was to
        take it over and answer. `retry_after_s`: how long the endpoint, which is busy, asked to be left alone.
        """
        state = self._state
        entry = state.leases[lease]
        answers = state.pending.answering(entry) if answering else None
        state.router.failed(entry, entry.leased())
        endpoint = sending.release(state, entry, now, abandoned=failure is Failure.FIRST_BYTE_TIMEOUT and not answering)
        if answering:
            endpoint = answers
        if endpoint is not None:
            if failure is Failure.MODALITY and len(kinds := fit.kinds_of(entry.model, contents_of(entry.request))) == 1:
                endpoint.refused_kinds |= kinds
                state.pool.changed()
            judging.blame(state, endpoint, entry.model, failure, now, retry_after_s=retry_after_s)
        actions: list[Action] = []
        assert (entry.state is State.STREAMING) <= (failure is Failure.BROKEN), "nothing is taken back after it"
        if returning.verdict(state, entry, failure, endpoint, now) is Verdict.FAIL:
            ends.fail(state, entry, failure, now, actions)
        else:
            returning.requeue(state, entry, now, actions, failure=failure, endpoint=endpoint)
            if entry.request.falls_back:
                returning.evict_falling_back(state, now, actions)
        if endpoint is not None and not endpoint.proof.stands:
            returning.evict_unknown(state, now, actions)
        sending.hand_out(state, now, actions)
        return actions

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        """Note that the client hung up. A waiting request leaves the queue, a running one gives its lease back.

        Returns an empty list for a request that is not known (`arrived` raised).
        """
        state = self._state
        entry = state.entries.get(request_id)
        if entry is None:
            return []
        if entry.state is State.WAITING:
            ends.unqueue(state, entry, Event.CANCELLED, now)
            state.forecast.left(entry, now)
            ends.end(state, entry, None, now, Reason.CANCELLED)
            return sending.pumped(state, now)  # others may have waited for it
        endpoint = sending.release(state, entry, now, abandoned=True)
        entry.move(Event.CANCELLED)
        ends.end(state, entry, entry.presumed_usage(), now, Reason.CLIENT_GONE)
        return sending.touched(state, endpoint, now) if endpoint is not None else sending.pumped(state, now)

    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]:
        """Note the `keys` of a request's token blocks: they tell which endpoint holds how much of its prompt."""
        state = self._state
        entry = state.entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        entry.route.told_blocks(tuple(keys), block_tokens)
        return _told_where(state, entry, now)

    def cached(
        self, request_id: str, tokens: Mapping[str, int], source: Source = Source.LMCACHE, *, now: float
    ) -> list[Action]:
        """Note what a look-up at `source` answered: how many `tokens` of the prompt each endpoint holds, by name.

        Empty if the look-up failed.
        """
        state = self._state
        entry = state.entries.get(request_id)
        if entry is None or entry.state is not State.WAITING:
            return []
        if tokens:
            entry.route.told_holders(source, tokens)
        return _told_where(state, entry, now)


def _taken_in(state: SchedulerState, entry: Entry, now: float) -> list[Action]:
    """Dispatch an admitted request, let it wait, or refuse it."""
    actions: list[Action] = []
    if entry.request.pinned is not None or not state.settings.queue_enabled:
        _send_or_refuse(state, entry, now, actions)
        return actions
    state.under_share.asked(entry, now)
    if not state.queues.waiting and (endpoints := sending.alone(state, entry, now)):
        return [sending.dispatch_alone(state, entry, endpoints, now)]
    state.under_share.arrived(entry, now)
    waiting.enqueue(state, entry, now)
    if state.pump.may_go(entry, now):
        sending.hand_out(state, now, actions)
    if entry.state is State.WAITING:
        before = len(actions)
        waiting.admit_to_wait(state, entry, now, actions)
        if len(actions) > before:  # who was refused or displaced may have stood in another's way
            sending.hand_out(state, now, actions)
    return actions


def _unservable(state: SchedulerState, request: Request, now: float) -> Reason | None:
    if request.pinned is None:
        if state.pool.knows(request.model, now) is False:
            return Reason.MODEL_NOT_FOUND
        return Reason.NO_ENDPOINT if request.falls_back and not state.pool.alive(request.model) else None
    endpoint = state.pool.get(request.pinned)
    if endpoint is None:
        return Reason.ENDPOINT_NOT_FOUND
    if endpoint.claims(request.model):
        return None
    return Reason.NO_ENDPOINT if endpoint.models is None else Reason.MODEL_NOT_FOUND


def _send_or_refuse(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """A request that never waits: to an endpoint now, or not at all. Only what endpoints serve is waited for."""
    request = entry.request
    endpoints = [e for e in sending.usable(state, entry, now) if not entry.excludes(e.name, now)]
    reason = Reason.NO_ENDPOINT
    limit: LimitReached | None = None
    if request.pinned is not None and (pinned := state.pool[request.pinned]).health.up:
        reason = Reason.DRAINING if pinned.drained else Reason.ENDPOINT_OVERLOADED
    if not state.pauses.sends(request.model):
        endpoints, reason = [], Reason.NO_ENDPOINT
    elif (limit := state.quotas.full(entry.account)) is not None:
        endpoints, reason = [], Reason.TENANT_LIMIT
    if request.pinned is not None and state.settings.queue_enabled:
        endpoints = [e for e in endpoints if state.candidates.open_to(e, entry, now)]
    if endpoints:
        actions.append(sending.dispatch(state, entry, endpoints, now))
    elif reason is Reason.NO_ENDPOINT and request.pinned is None and state.pool.telling:
        entry.queue.allow(min(entry.queue.wait_s_max, TELLING_S_MAX))
        waiting.enqueue(state, entry, now)
        waiting.admit_to_wait(state, entry, now, actions)
    else:
        ends.reject(state, entry, reason, now, actions, limit=limit)


def _told_where(state: SchedulerState, entry: Entry, now: float) -> list[Action]:
    state.affinity.told(entry)
    state.look(entry, now)
    for endpoint in state.pool:
        if endpoint.serves(entry.model):
            state.queues.touch(endpoint)
    return sending.pumped(state, now)
