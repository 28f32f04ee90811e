"""The journey of a request that a proxy sends: as every other one's, except that it is sent once.

A proxy can't send a request again after its turn. So a failure is final here, and so is preemption: it is answered 429,
which clients retry, and the proxy gives its engine up. No other lease is recalled. What the proxy reports of an
endpoint counts for its own requests only (`peers.py`); the endpoint is probed at once. It may send the request on by
itself, to a fallback that we named: then the lease moves to the endpoint that answers. What we can't do through a
proxy is left out: heartbeats before the answer, and a prompt computed elsewhere.
"""

from __future__ import annotations

from penstock.core.dispatch import fit
from penstock.core.values.actions import Dispatch, Requeue
from penstock.core.values.catalogue import Cause, Failure, Outcome, Reason
from penstock.core.values.request import Request, Usage
from penstock.core.values.retry import REQUEST_REFUSED, final_reason
from penstock.gateway.epp import unseen
from penstock.gateway.epp.pick import Pick
from penstock.gateway.openai import errors
from penstock.gateway.proxy import mending
from penstock.gateway.proxy.arrival import Arrival, Means
from penstock.gateway.proxy.journey import QueuedJourney
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import Upstream


class PickedJourney(QueuedJourney):
    """A request that is queued, and sent by a proxy."""

    __slots__ = ("_failure", "_is_stream", "_reporter", "_sampled", "_unseen")

    def __init__(self, arrival: Arrival, request: Request, means: Means) -> None:
        pick = arrival.exchange
        assert isinstance(pick, Pick)
        self._failure: Failure | None = None
        self._is_stream = request.streamed
        self._unseen = pick.unseen
        self._sampled = False  # of these, its bodies came after all
        self._reporter = pick.reporter
        # Without bodies the first token is not seen: as of an answer that does not stream.
        request = request.but(
            streamed=request.streamed and not pick.unseen,
            divisible=False,
            only=_allowed(pick, request, means),
            carried=True,
        )
        if pick.unseen:
            arrival.asks_usage = arrival.keeping = None
        super().__init__(arrival, request, means)
        self._heartbeats = None

    def dispatched(self, action: Dispatch, /) -> None:
        super().dispatched(action)
        self._arrival = None  # no other model can be asked

    def fallbacks(self, count: int) -> list[Upstream]:
        """Returns up to `count` endpoints that could serve the request as it is now, with the same head and body."""
        if self.request.pinned is not None or not self.has_others:
            return []
        sent, targets, only = self.target, self._means.targets, self.request.only

        def fits(name: str) -> bool:
            other = targets.get(name)
            return other is not None and (not only or name in only) and _is_like(sent, other, self.model)

        but, found = {self.endpoint}, list[Upstream]()
        unfit: set[str] | None = None  # found out once the least loaded one is none: mostly all are alike
        while len(found) < count:
            name = self._driver.scheduler.least_loaded(self.request.model, but=but, now=self._driver.now())
            if name is None:
                break
            but.add(name)
            if fits(name):
                found.append(targets[name].upstream)
            elif unfit is None:
                but |= (unfit := {other for other in targets if not fits(other)})
        return found

    def rerouted(self, endpoint: str | None) -> None:
        """The proxy sent the request to another endpoint, which answers: the lease moves there. None: unknown to us."""
        target = None if endpoint is None else self._means.targets.get(endpoint)
        if endpoint is None or target is None or self._lease is None or endpoint == self.endpoint:
            return
        self._reports(Failure.RESET)
        self._means.metrics.rerouted(self.caller, self.endpoint, endpoint)
        self.moved_to(target)
        self.endpoint = endpoint
        self.attempts += 1
        self._driver.tell(self._driver.scheduler.rerouted(self._lease, endpoint, now=self._driver.now()))

    def may_mend(self, status: int) -> bool:
        return mending.may_mend(self, status)

    def mended(self, status: int, body: bytearray) -> bool:
        """It can't be sent again; its proxy's next request goes without what the refusal names, or elsewhere."""
        if mending.may_refuse_ours(self, status) and (fields := mending.named_fields(self, body)):
            mending.leave_out(self, self.target, fields, self._driver.now())
            return False
        return mending.asked_elsewhere(self, status, body)

    def failed(self, failure: Failure, detail: str) -> None:
        self._failure = failure
        if failure in REQUEST_REFUSED:
            self._reporter.refused(self.endpoint, fit.lacking(self.request, failure), self._driver.now())
        else:
            self._reports(failure)
        super().failed(failure, detail)

    def _reports(self, failure: Failure) -> None:
        """The proxy's word: noted for itself, and looked into soon."""
        retry_after_s = self.told_retry_after_s() if failure is Failure.BUSY else 0.0
        self._reporter.failed(self.endpoint, failure, self._driver.now(), retry_after_s=retry_after_s)
        if self.target.unreachable is not None:
            self.target.unreachable()

    def answer_begins(self) -> None:
        super().answer_begins()
        if self._unseen and self._lease is not None:  # the head has passed, and nothing can be said instead of it
            self._driver.tell(self._driver.scheduler.passed_on(self._lease, now=self._driver.now()))

    def requeued(self, action: Requeue, /) -> None:
        """It failed or was preempted, and the scheduler would send it again: through a proxy it is over."""
        if self._lease is not None:  # it was preempted, or its endpoint is gone
            self._lease = None
            self.hang_up()
            self.no_answer()
        if self.is_unfit and self.engine_error([]):
            self._leave(Outcome.COMPLETED, None)
            self._driver.tell(self._driver.scheduler.cancelled(self.request.id, now=self._driver.now()))
            return
        preempted = action.cause == Cause.PREEMPTED
        reason = Reason.DISPLACED if preempted else final_reason(self._failure or Failure.RESET)
        extra = [(b"x-penstock-reason", reason.encode())]
        if self._committed:
            self.break_off(self.api, reason)
        elif not self.engine_error(extra):
            message = errors.key_refused(self.endpoint) if self._refuses_key else reason.message
            self.refuse(self.api, reason, message, param=None, retry_after_s=1.0 if reason.retryable else None)
        self._leave(Outcome.EVICTED if preempted else Outcome.FAILED, reason)
        self._driver.tell(self._driver.scheduler.cancelled(self.request.id, now=self._driver.now()))

    def sampled(self, data: bytes) -> None:
        """A part of an answer that is a sample: its bodies come, and pass unchanged."""
        if not self._sampled:
            self._sampled = True
            self.read_copies()
        self._answer.take(data)

    def succeeded(self, status: int) -> None:
        self._reporter.well(self.endpoint)
        if status >= 300 or not self._is_stream or self.begun_s is None:
            super().succeeded(status)
            return
        endpoint, seconds = self.endpoint, self._driver.now() - self.begun_s
        estimate = unseen.paces.tokens(endpoint, seconds) if self._unseen else None
        if self._unseen and not self._sampled:
            if estimate is not None:
                self._answer.tokens = estimate
            super().succeeded(status)
            return
        super().succeeded(status)
        unseen.paces.learn(endpoint, seconds, self.tokens)
        if estimate is not None and self.tokens:
            self._means.metrics.sampled(estimate / self.tokens)

    def _own_usage(self) -> Usage | None:
        return None if self._unseen and not self._sampled else super()._own_usage()


def _allowed(pick: Pick, request: Request, means: Means) -> tuple[str, ...]:
    """Returns the endpoints that the request may go to, without those that fail for its proxy; empty: all."""
    now = means.driver.now()
    avoided = pick.reporter.avoided(request, now)
    if not avoided:
        return pick.only
    kept = tuple([name for name in pick.only or means.targets if name not in avoided])
    but = [name for name in means.targets if name not in kept]
    return pick.only if means.driver.scheduler.least_loaded(request.model, but=but, now=now) is None else kept


def _is_like(sent: Target, other: Target, model: str) -> bool:
    """True if a request written for `sent` is right for `other`, too."""
    return (
        other.api_key == sent.api_key
        and other.upstream.prefix == sent.upstream.prefix
        and other.priority == sent.priority
        and other.refuses <= sent.refuses
        and other.name_of(model) == sent.name_of(model)
    )
