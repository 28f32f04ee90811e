"""One request's journey: wait, send, stream, settle.

A journey has no task of its own: events of its client's exchange, its engine's call and the scheduler move it on.
`begin` reports its arrival. If an endpoint is open, the scheduler answers with a `Dispatch` at once; otherwise the
journey stays with the driver, and the `Dispatch` is among the actions of a later fact, mostly of another request's end.
Either way the driver calls `dispatched`. From then on the journey owns its lease, and reports its end exactly once
(`finished`, `failed` or `cancelled`).

What few requests need is optional, and None or unused otherwise: fallback models, heartbeats while it waits, a division
into prefill and decode, a trace, the access log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.queueing.position import QueuePosition
from penstock.core.values.actions import Abort, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Outcome, Reason
from penstock.core.values.request import Request, Usage
from penstock.core.values.rows import LimitReached
from penstock.engines import orca
from penstock.gateway.identity.caller import Sender
from penstock.gateway.openai import errors
from penstock.gateway.openai.answers.usage import own_usage
from penstock.gateway.openai.body import is_multipart
from penstock.gateway.openai.splice import Body, remove_field, set_field
from penstock.gateway.proxy.arrival import Arrival, Means
from penstock.gateway.proxy.headers import request_headers
from penstock.gateway.proxy.heartbeat import HEAD_TIMEOUT_HEADER, READ_TIMEOUT_HEADER, heartbeat_event
from penstock.gateway.proxy.relay import KEY_REFUSED, WHOLE_BYTES_MAX, Relay
from penstock.gateway.proxy.target import NOTHING_ADDED, PRIORITY, PRIORITY_ADDED, USAGE, USAGE_ADDED, Target
from penstock.gateway.telemetry.request_events import End
from penstock.http.client.pool import Call, Headers, Sink

if TYPE_CHECKING:
    from penstock.gateway.proxy.disagg.base import Division

logger: Final = logging.getLogger(__name__)

_NO_TIMEOUTS: Final = (None, None)
PROGRESS_TOKENS: Final = 32  # an answer's growth is reported in such steps,
PROGRESS_TOKENS_PACED: Final = 8  # and in these if a limit on the time per output token applies


class QueuedJourney(Relay):
    """A request that is queued, and holds a lease while it is answered."""

    __slots__ = (
        "_arrival",
        "_asks_usage",
        "_dispatch",
        "_driver",
        "_heartbeats",
        "_inflated",
        "_is_watched",
        "_keeping",
        "_lease",
        "_makes_text",
        "_means",
        "_queue_s",
        "_ranks_itself",
        "_report_at",
        "_trace",
        "_usage",
        "_waiting_since_s",
        "api",
        "attempts",
        "band",
        "begun_s",
        "caller",
        "division",
        "endpoint",
        "estimated_prompt",
        "estimated_tokens",
        "is_unfit",
        "left_out",
        "limit",
        "rank",
        "request",
        "request_id",
        "started_s",
    )

    def __init__(self, arrival: Arrival, request: Request, means: Means) -> None:
        super().__init__(arrival.exchange, arrival.body, request.model, arrival.route.field)
        caller, route = arrival.caller, arrival.route
        assert caller is not None
        self.request = request
        self.api = route.api
        self.band = arrival.band
        self._driver = driver = means.driver
        self.started_s = driver.now()
        self.request_id = arrival.request_id  #: as the caller knows it
        self._keeping = arrival.keeping
        self._means = means
        self.caller = caller
        self._inflated = arrival.inflated
        # Until its answer begins, if other models may be asked.
        self._arrival = None if arrival.fallback is None else arrival
        self._asks_usage = arrival.asks_usage
        self.left_out: frozenset[str] = NOTHING_ADDED  #: of these, left out because an engine may have refused them
        self.is_unfit = False  #: the engine refused the request for what it is, and another may take it
        self._makes_text = not route.pooled
        self._ranks_itself = arrival.peek.priority is not None  # its body has a `priority`, which is for our queue
        # None: its answer will not be a stream of events.
        self._heartbeats = means.heartbeats if request.streamed and route.events else None
        self._is_watched = False  # by these
        self._report_at = 1 + PROGRESS_TOKENS_PACED
        self.progress_at = self._report_at if arrival.keeping is None else 0
        self.attempts = 0  #: how often it was dispatched
        self.rank: int | None = None  # among the requests in engines' queues
        self._lease: int | None = None
        self._dispatch: Dispatch | None = None  # the last one
        self.division: Division | None = None  # if its prompt is computed by another engine
        self.endpoint = ""  #: where it was sent last
        self._queue_s = 0.0  # in finished visits to the queue
        self._waiting_since_s: float | None = self.started_s
        #: When its answer began: the first token of a stream, or the first bytes of another answer or of an error.
        self.begun_s: float | None = None
        self.limit: LimitReached | None = None  #: that refused it
        self._usage: Usage | None = None
        self.estimated_tokens = 0  #: of the answer, beside those that its engine reported
        self.estimated_prompt = 0  #: tokens of the prompt, if its engine did not report them
        self._trace = arrival.trace

    def begin(self) -> None:
        """Report the request's arrival to the scheduler."""
        driver = self._driver
        self.exchange.on_disconnect = self._client_gone
        driver.join(self.request.id, self)
        if self._heartbeats is not None:
            lookup = self.exchange.lookup
            timeouts = lookup.get(READ_TIMEOUT_HEADER), lookup.get(HEAD_TIMEOUT_HEADER)
            if timeouts != _NO_TIMEOUTS:
                self._watch(timeouts)  # until its answer begins, in the queue or not
        if (came := self._means.events.came) is not None:
            came(self.request.model)
        driver.tell(driver.scheduler.arrived(self.request, now=self.started_s))
        if self._lease is None:
            self._watch()

    def _watch(self, timeouts: tuple[bytes | None, ...] = ()) -> None:
        """Have heartbeats sent to a client that waits for a stream."""
        if self._heartbeats is not None and not self._is_watched:
            self._is_watched = True
            self._heartbeats.watch(self.request.id, self, timeouts, self.started_s)

    def _unwatch(self) -> None:
        """End them: its answer begins, or it has ended."""
        self._is_watched = False
        if self._heartbeats is not None:
            self._heartbeats.leave(self.request.id)

    # --- from the scheduler ---------------------------------------------------------------------------------

    def dispatched(self, action: Dispatch, /) -> None:
        """Ask the engine, or both engines of a divided request, that `action` names."""
        if self.attempts:
            self.left_out, self.is_unfit, self.division = NOTHING_ADDED, False, None
        self.attempts += 1
        self._lease, self._dispatch = action.lease, action
        self.endpoint = endpoint = action.endpoint
        self._queue_s = queue_s = action.queue_s
        self._waiting_since_s = None
        self.rank = rank = action.rank
        self._means.events.sent(endpoint, max(0.0, self._driver.now() - self.started_s - queue_s))
        target = self._means.targets[endpoint]
        if action.decode is None:
            self.ask(target, endpoint, rank, self.body, counts=True)
        else:
            from penstock.gateway.proxy.disagg.concurrent import Meeting  # noqa: PLC0415 - few gateways have roles
            from penstock.gateway.proxy.disagg.sequential import TwoPhase  # noqa: PLC0415

            form = TwoPhase if target.meeting_place is None else Meeting
            self.division = division = form(self, action)
            division.begin(self._means.targets)

    def decoding(self, action: Decode, /) -> None:
        """Send the request to the endpoint that decodes, unless it has it already."""
        division = self.division
        assert division is not None
        self._lease = action.lease
        self.endpoint = action.endpoint
        self._means.metrics.decoding(
            *(self.request.model, self.band, action.endpoint),
            prefill=division.prefill,
            transfer=division.transfer,
            prefill_s=self.elapsed_s() - division.since_s,
        )
        if division.has_asked(action.endpoint):
            return
        self.hang_up()
        target = self._means.targets.get(action.endpoint)
        if target is None:
            self.failed(Failure.CONNECT, "the endpoint was removed meanwhile")
        else:
            self.ask(target, action.endpoint, division.rank, division.rest(self.body), counts=True)

    def ask(
        self, target: Target, name: str, rank: int | None, body: Body, *, sink: Sink | None = None, counts: bool
    ) -> Call:
        """Send the request, or its part of a divided one, to an engine. Returns the call.

        `rank`: for the engine's own queue; None: none. `counts`: the stream's usage may be asked for.
        """
        left_out = self.left_out
        if target.refuses:
            left_out |= target.refused(self._driver.now())
        if rank is not None:
            priority = None if PRIORITY in left_out else target.priority
            rank = None if priority is None else rank * priority.value
        exchange, streamed = self.exchange, self.request.streamed
        note = exchange.note
        headers = request_headers(
            exchange.headers,
            note if isinstance(note, Sender) else None,
            api_key=target.api_key,
            request_id=self.request_id,
            inflated=self._inflated,
            has_key=self.caller.has_key,
            ranked=True,
            plain=streamed or sink is not None or bool(target.names),  # events are added and removed, names replaced
        )
        told = streamed or exchange.lookup.get(orca.ASK[0]) is not None
        asked_load = not told and target.asks_load(self._driver.now())
        if asked_load:
            headers.append(orca.ASK)
        if self._trace is not None:
            headers = self._trace.sent(target.upstream.place, name, headers)
        if (on_sent := self._means.reporting.on_sent) is not None:
            on_sent(self.request_id, self.request.session, target.url, self.elapsed_s())
        added = NOTHING_ADDED
        if counts and self._asks_usage is not None and USAGE not in left_out:
            body, added = self._asks_usage(body), USAGE_ADDED
        if rank is not None and len(body) and not is_multipart(exchange.lookup.get(b"content-type")):
            body = set_field(body, PRIORITY, b"%d" % rank)
            added |= PRIORITY_ADDED
        elif self._ranks_itself:
            body = remove_field(body, PRIORITY)
        return self.send(target, headers, body, sink, added, asked_load)

    def requeued(self, action: Requeue, /) -> None:
        """Wait again; nothing of an answer was passed on."""
        if self._lease is not None:  # it is recalled
            self._lease = None
            self.hang_up()
            self.no_answer()
        self._waiting_since_s = self._driver.now()
        self._watch()
        self._means.metrics.retried(self.caller, self.endpoint, action.cause)
        if self._trace is not None:
            self._trace.requeued(action.cause)

    def ended(self, action: Reject | Evict | Fail, /) -> None:
        """Respond to a request that ended without an answer, or ask another model instead."""
        arrival, self._arrival = self._arrival, None
        if self.is_unfit and isinstance(action, Fail) and self.engine_error([]):
            self._leave(Outcome.COMPLETED, None)  # no other endpoint takes it: the engine's refusal is the answer
            return
        if arrival is not None and arrival.fallback is not None and not self._committed:
            if arrival.fallback.takes(action) and arrival.ask_instead is not None:
                self._make_room(action)
                arrival.ask_instead(arrival, arrival.fallback.next())
                return
            action = arrival.fallback.answer(action)
        reason = action.reason
        if isinstance(action, Reject):
            self.limit = action.limit
        extra: Headers = [(b"x-penstock-reason", reason.encode())]
        if action.retry_after_s is not None:
            extra.append(errors.retry_after(action.retry_after_s))
        if self._committed:
            self.break_off(self.api, reason)
        elif not (isinstance(action, Fail) or reason is Reason.QUEUE_TIMEOUT) or not self.engine_error(extra):
            request = self.request
            message = errors.message(
                reason, model=self.model, pinned=request.pinned, prompt_tokens_max=request.prompt_tokens_max
            )
            if self.limit is not None:
                message = errors.limit_reached(self.limit, self.caller.account)
            elif isinstance(action, Fail) and self._refuses_key:
                message = errors.key_refused(self.endpoint)
            param, retry_after_s = errors.PARAM.get(reason), action.retry_after_s
            self.refuse(self.api, reason, message, param=param, retry_after_s=retry_after_s)
        self._leave(action.outcome, reason)

    def _make_room(self, action: Reject | Evict | Fail) -> None:
        """Leave the client to the journey that goes on with another model."""
        self._driver.leave(self.request.id)
        self.exchange.on_disconnect = self.exchange.on_pause = self.exchange.on_resume = None
        if self._is_watched:
            self._unwatch()
        self._heartbeats = None
        if self._trace is not None:
            self._trace.ended(action.outcome, action.reason, band=self.band, status=0, usage=None)

    def aborted(self, action: Abort, /) -> None:
        """End a running request with an error, or by breaking its answer off."""
        if self._committed:
            self.break_off(self.api, action.reason)
        else:
            retry_after_s = None if action.reason is Reason.OPERATOR else 1.0
            self.refuse(self.api, action.reason, action.reason.message, param=None, retry_after_s=retry_after_s)
        self._give_up(Outcome.FAILED, action.reason)

    # --- asked and reported by its relay (`relay.py`) -------------------------------------------------------

    def own_headers(self) -> Headers:
        """Returns the headers with id, band, endpoint, wait and rates."""
        headers: Headers = [(b"x-request-id", self.request_id), (b"x-penstock-band", self.band.encode())]
        if self.caller.band_unknown:
            headers.append((b"x-penstock-warning", errors.unknown_band(self.caller.band_unknown, self.band)))
        if self.limit is not None:
            headers.append((b"x-penstock-limit", errors.limit_name(self.limit).encode()))
        if self.endpoint:
            headers.append((b"x-penstock-endpoint", self.endpoint.encode()))
        if self.attempts > 1:
            headers.append((b"x-penstock-attempts", b"%d" % self.attempts))
        if self.division is not None:
            headers.append((b"x-penstock-prefill", self.division.prefill.encode()))
        if self.request.instead_of:
            headers.append((b"x-penstock-model", self.model.encode()))
        waited_s = self._queue_s if self._waiting_since_s is None else self.waited_s()
        headers.append((b"x-penstock-queue-ms", b"%d" % (waited_s * 1000)))
        allowance = self._driver.scheduler.allowance(self.request.accounts, now=self._driver.now())
        if allowance is not None:
            headers += errors.rate_limits(allowance)
        return headers

    def asks_stream(self) -> bool:
        return self.request.streamed

    def answer_begins(self) -> None:
        self._arrival = None
        if self._is_watched:
            self._unwatch()
        if self.division is not None:
            assert self._head is not None
            if not self.division.answers(self._head[0]):
                return
        now = self.begun_s = self._driver.now()
        if self._trace is not None:
            self._trace.answer_begins()
        assert self._lease is not None
        if self.request.streamed:  # otherwise it comes with the whole answer, not at the end of the prefill
            assert self._head is not None
            well = self._head[0] < 300
            if well:
                self._means.events.first_tokens.append(now - self.started_s)
            self._driver.tell(self._driver.scheduler.first_token(self._lease, well=well, now=now))
        elif self._length is None or self._length > WHOLE_BYTES_MAX:
            self._driver.tell(self._driver.scheduler.passed_on(self._lease, now=now))

    def hang_up(self) -> None:
        super().hang_up()
        if self.division is not None:
            self.division.hang_up()

    def progressed(self) -> None:
        keeping = self._keeping  # its id is noted as soon as it comes: it may be asked for before the answer ends
        noted = keeping is None or keeping.found(self._answer.head, self.endpoint)
        driver, tokens = self._driver, self._answer.tokens
        if tokens >= self._report_at and self._lease is not None:
            self._report_at = tokens + (PROGRESS_TOKENS_PACED if driver.scheduler.paced else PROGRESS_TOKENS)
            driver.tell(driver.scheduler.progressed(self._lease, tokens, now=driver.now()))
        self.progress_at = self._report_at if noted else 0

    def may_mend(self, status: int) -> bool:
        from penstock.gateway.proxy import mending  # noqa: PLC0415 - engines refuse little

        return mending.may_mend(self, status)

    def mended(self, status: int, body: bytearray) -> bool:
        from penstock.gateway.proxy import mending  # noqa: PLC0415 - engines refuse little

        return mending.mended(self, status, body)

    def suspects(self, status: int) -> bool:
        scheduler, target = self._driver.scheduler, self._target
        if self.division is not None or target is None:
            return False
        if status in KEY_REFUSED and scheduler.refuses_key(self.endpoint):
            return False
        from penstock.gateway.proxy import mending  # noqa: PLC0415 - engines refuse little

        return mending.is_suspect(target, self.exchange.target_path, status, proven=scheduler.proven(self.endpoint))

    def callers_key(self, target: Target) -> bool:
        return target.takes_callers_key(self.exchange.headers, has_key=self.caller.has_key)

    def stranger(self) -> bool:
        return not self._driver.scheduler.proven(self.endpoint)

    def succeeded(self, status: int) -> None:
        """Settle a complete answer by its usage."""
        usage = self._answer.usage() if status < 300 else Usage(0, 0)  # a refusal cost nothing
        if self._keeping is not None:
            self._keeping.found(self._answer.head, self.endpoint)
            if usage is None and status < 300 and self._goes_on():
                return
        if usage is None:
            usage = self._own_usage()
        if usage is None:
            self._tell_tokens()
        if self.division is not None:
            self.division.hang_up()
            usage = self.division.whole(usage)
        self._usage = usage
        if status < 300 and self._target is not None:
            if usage is None and (self._sse or self._lines):
                self.estimated_tokens = self._answer.tokens  # seen one by one: an account of these and nothing else
            elif usage is None or not usage.prompt_tokens:
                self._estimate(usage)
            if self.exchange.target_path not in self._target.served:
                self._target.answered(self.exchange.target_path)
            if self.left_out or not self.added <= self._target.takes:
                self._target.takes |= self.added
                self._leave_out(self._target)
        driver, lease = self._driver, self._lease
        driver.leave(self.request.id)
        self._detach(Outcome.COMPLETED, None)
        self._lease = None
        assert lease is not None
        driver.tell(driver.scheduler.finished(lease, usage, refused=status >= 300, now=driver.now()))

    def _leave_out(self, target: Target) -> None:
        """Send that engine no more of our fields that it refused, now that it answers well without."""
        if self.left_out and self.left_out.isdisjoint(target.refuses):
            from penstock.gateway.proxy import mending  # noqa: PLC0415 - engines refuse little

            mending.leave_out(self, target, self.left_out, self._driver.now())

    def failed(self, failure: Failure, detail: str) -> None:
        """Report that the endpoint failed; of a divided request, the one to blame."""
        logger.debug("%s at %s: %s, %s", self.request.id, self.endpoint, failure, detail)
        by = None if self.division is None else self.division.let_down()
        if by is not None:
            self.endpoint = by
        target = self._means.targets.get(self.endpoint)
        if failure in (Failure.CONNECT, Failure.RESET) and target is not None and target.unreachable is not None:
            target.unreachable()
        now = self._driver.now()
        if self._committed:
            self._tell_tokens()
        lease = self._give_back()
        retry_after_s = self.told_retry_after_s() if failure is Failure.BUSY else 0.0
        self._driver.tell(
            self._driver.scheduler.failed(
                lease, failure, answering=by is not None, retry_after_s=retry_after_s, now=now
            )
        )
        if failure is Failure.KEY_REFUSED and target is not None and target.disowned is not None:
            target.disowned()

    def _own_usage(self) -> Usage | None:
        """The usage in an engine's own API; completion tokens alone are exact, too."""
        assert self._head is not None
        usage, made = own_usage(self._head[1], self._answer.tail, streamed=self._sse or self._lines)
        if made is not None:
            self._answer.tokens = made
        elif usage is None and not (self._sse or self._lines) and self._makes_text:
            self._answer.tokens = self._answer.estimated_tokens()
        return usage

    def _tell_tokens(self) -> None:
        """Report the tokens of an answer that ends without usage, for which it is charged."""
        if self._lease is not None and self._answer.tokens:
            now = self._driver.now()
            self._driver.tell(self._driver.scheduler.progressed(self._lease, self._answer.tokens, now=now))

    # --- for its division and for `mending.py` --------------------------------------------------------------

    def prefilled(self, usage: Usage | None) -> None:
        """Report that the prompt of a divided request is computed."""
        now = self._driver.now()
        self._driver.tell(self._driver.scheduler.prefilled(self._give_back(), usage, now=now))

    @property
    def target(self) -> Target:
        """The engine that was asked last."""
        assert self._target is not None
        return self._target

    @property
    def suspected(self) -> bool:
        """True if the answer may not be an engine's."""
        return self._suspect

    @property
    def has_others(self) -> bool:
        """True if there are other endpoints."""
        return len(self._means.targets) > 1

    # --- in the background ----------------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        """Hold the lease until the engine has computed the response, if it may go on without its client."""
        keeping, target = self._keeping, self._target
        if keeping is None or not keeping.background or target is None or self._lease is None:
            return False
        if not keeping.found(self._answer.head, self.endpoint):
            return False
        self.exchange.on_disconnect = self.exchange.on_pause = self.exchange.on_resume = None
        if self._is_watched:
            self._unwatch()
        self._driver.tell(self._driver.scheduler.passed_on(self._lease, now=self._driver.now()))
        headers = target.credential(self.exchange.headers, has_key=self.caller.has_key)
        from penstock.gateway.proxy.background import Background  # noqa: PLC0415 - few clients ask for it

        Background(self, keeping, target, headers, self._means).begin()
        return True

    def settle(self, usage: Usage | None, tokens: int, /) -> None:
        """End a background response with its `usage`; None: it may have had so many `tokens`."""
        if usage is None:
            self._answer.tokens = tokens
            self._tell_tokens()
        if self.division is not None:
            usage = self.division.whole(usage)
        self._usage = usage
        if usage is None or not usage.prompt_tokens:
            self._estimate(usage)
        self._leave(Outcome.COMPLETED, None)
        self._driver.tell(self._driver.scheduler.finished(self._give_back(), usage, now=self._driver.now()))

    def lost(self) -> None:
        """End a background response whose lease is gone."""
        self._lease = None
        self._leave(Outcome.COMPLETED, None)
        self._driver.tell(self._driver.scheduler.cancelled(self.request.id, now=self._driver.now()))

    def give_up(self, reason: Reason, /) -> None:
        """End a background response that is not wanted any more."""
        self._give_up(Outcome.FAILED, reason)

    # --- from the client ------------------------------------------------------------------------------------

    def elapsed_s(self) -> float:
        """Returns the seconds since the request was complete."""
        return self._driver.now() - self.started_s

    def waited_s(self) -> float:
        """Returns the seconds in the queue, all visits together, including the present one."""
        since_s = self._waiting_since_s
        return self._queue_s if since_s is None else self._queue_s + self._driver.now() - since_s

    def _client_gone(self) -> None:
        if self._goes_on():
            self.hang_up()
            return
        waited = self._lease is None
        outcome, reason = (Outcome.EVICTED, Reason.CANCELLED) if waited else (Outcome.FAILED, Reason.CLIENT_GONE)
        self._give_up(outcome, reason)

    def _give_up(self, outcome: Outcome, reason: Reason) -> None:
        """Stop: the answer is not wanted. The lease is held until the engine has seen the hang-up."""
        call = self.take_call()
        if self._committed:
            self._tell_tokens()
        self.hang_up()
        self._detach(outcome, reason)
        if call is None:
            self._seen_gone()
        else:
            self._driver.join(self.request.id, _GONE)
            call.hang_up(self._seen_gone)

    def _seen_gone(self) -> None:
        self._driver.leave(self.request.id)
        self._driver.tell(self._driver.scheduler.cancelled(self.request.id, now=self._driver.now()))

    def _give_back(self) -> int:
        """Returns the lease, for the report of its end."""
        lease, self._lease = self._lease, None
        assert lease is not None
        return lease

    @property
    def usage(self) -> Usage | None:
        """The usage that its engine reported, if any."""
        return self._usage

    @property
    def tokens(self) -> int:
        """The completion tokens of a request that ended: reported, and estimated beside these."""
        return self.estimated_tokens + (0 if self._usage is None else self._usage.completion_tokens)

    @property
    def beating(self) -> bool:
        """True if heartbeats began, so that the client has its status."""
        return self._beating

    @property
    def waits(self) -> bool:
        """True if it is in the queue."""
        return self._lease is None

    def heartbeat(self, place: QueuePosition | None, /) -> None:
        """Send the client its position; None: an engine has its request."""
        self.beat(heartbeat_event(self.api, place))

    def _leave(self, outcome: Outcome, reason: Reason | None) -> None:
        self._driver.leave(self.request.id)
        self._detach(outcome, reason)

    def _detach(self, outcome: Outcome, reason: Reason | None) -> None:
        """The client has its response: report the end."""
        self.exchange.on_disconnect = self.exchange.on_pause = self.exchange.on_resume = None
        if self._is_watched:
            self._unwatch()
        self._heartbeats = None
        if reason is not None and self._dispatch is not None:
            self._was_cut_off(self._dispatch)
        exchange, request, now, since_s = self.exchange, self.request, self._driver.now(), self._waiting_since_s
        usage = self._usage
        end = End(  # by position: names cost plain Python two dictionaries
            request.id,
            exchange.client,
            exchange.method,
            exchange.target_path,
            exchange.status,
            request.model,
            request.instead_of,
            request.streamed,
            self.caller,
            self.band,
            self.endpoint,
            self.attempts,
            outcome,
            reason,
            self.limit,
            self.started_s,
            self.begun_s,
            now,
            self._queue_s if since_s is None else self._queue_s + now - since_s,
            usage,
            self.estimated_prompt,
            self.estimated_tokens,
        )
        self._means.events.ended(end)
        if self._trace is not None:
            self._trace.ended(outcome, reason, band=self.band, status=exchange.status, usage=usage)

    def _estimate(self, usage: Usage | None) -> None:
        """Note the use of a whole answer that its engine did not report: all, or the prompt."""
        if usage is None:
            self.estimated_tokens = self._answer.tokens
        if self._dispatch is not None:
            self.estimated_prompt = self._dispatch.prompt_tokens

    def _was_cut_off(self, dispatch: Dispatch) -> None:
        """Note the use of an answer that is not whole: as reported so far, otherwise what was probably computed.

        The first token shows that the prompt is computed. If it can't be seen, as of an answer that does not stream,
        the prediction decides whether the engine had begun when it was hung up on.
        """
        if self._usage is None and self._committed:
            self._usage = self._answer.usage()
        if self._usage is None and self.division is not None and (first := self.division.usage) is not None:
            self._usage = Usage(first.prompt_tokens, 0, first.cached_tokens, cached_told=first.cached_told)
        seen = self._answer.tokens if self._committed else 0
        self.estimated_tokens = seen if self._usage is None else max(0, seen - self._usage.completion_tokens)
        if self._usage is not None:
            return
        if seen:
            self.estimated_prompt = dispatch.prompt_tokens
        elif (
            self._lease is not None
            and not self.request.streamed
            and (self.begun_s is not None or self.elapsed_s() >= self._queue_s + dispatch.prefill_s)
        ):
            self.estimated_prompt, self.estimated_tokens = dispatch.prompt_tokens, dispatch.output_tokens


class _Gone:
    """Stands for a request whose engine is being hung up on: ignores all decisions."""

    def dispatched(self, action: Dispatch, /) -> None: ...
    def decoding(self, action: Decode, /) -> None: ...
    def requeued(self, action: Requeue, /) -> None: ...
    def ended(self, action: Reject | Evict | Fail, /) -> None: ...
    def aborted(self, action: Abort, /) -> None: ...


_GONE: Final = _Gone()
