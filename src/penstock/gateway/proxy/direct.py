"""The journey of a request that costs an engine next to nothing (tokenizing): no queue, no lease."""

from __future__ import annotations

from penstock.core.values.catalogue import Failure, Outcome, Reason
from penstock.core.values.retry import final_reason
from penstock.gateway.openai import errors, unfit
from penstock.gateway.proxy.arrival import Arrival, Means
from penstock.gateway.proxy.headers import request_headers
from penstock.gateway.proxy.relay import Relay
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import Headers


class DirectJourney(Relay):
    """A request sent at once to the least loaded endpoint."""

    __slots__ = (
        "_attempts",
        "_attempts_max",
        "_caller",
        "_driver",
        "_endpoint",
        "_inflated",
        "_metrics",
        "_request_id",
        "_targets",
        "_without",
        "api",
        "pinned",
    )

    def __init__(self, arrival: Arrival, means: Means) -> None:
        super().__init__(arrival.exchange, arrival.body, arrival.model, arrival.route.field)
        assert arrival.caller is not None
        self._caller = arrival.caller
        self._inflated = arrival.inflated
        self.pinned = arrival.pinned
        self.api = arrival.route.api
        self._request_id = arrival.request_id
        self._driver = means.driver
        self._targets = means.targets
        self._metrics = means.metrics
        self._endpoint = ""
        self._attempts = 1
        self._attempts_max = means.attempts_max
        self._without: list[str] = []  # endpoints that do not have the model, or refuse our key

    def begin(self) -> None:
        """Send it to the endpoint it names, or to the least loaded one."""
        scheduler = self._driver.scheduler
        endpoint = self.pinned
        if endpoint is None:
            barred = [name for name in self._targets if not self.exchange.may_go(name)]
            endpoint = scheduler.least_loaded(self.model, but=[*self._without, *barred], now=self._driver.now())
        if endpoint is None:
            known = not self._without and scheduler.knows(self.model, now=self._driver.now()) is not False
            self._refuse(Reason.NO_ENDPOINT if known else Reason.MODEL_NOT_FOUND)
            return
        target = self._targets.get(endpoint)
        if target is None:
            self._refuse(Reason.ENDPOINT_NOT_FOUND)
            return
        self.send_to(endpoint, target)

    def send_to(self, endpoint: str, target: Target) -> None:
        """Send the request to `endpoint`."""
        self._endpoint = endpoint
        self.exchange.on_disconnect = self._client_gone
        headers = request_headers(
            self.exchange.headers,
            api_key=target.api_key,
            request_id=self._request_id,
            inflated=self._inflated,
            has_key=self._caller.has_key,
        )
        self.send(target, headers, self.body)

    def own_headers(self) -> Headers:
        headers: Headers = [(b"x-request-id", self._request_id), (b"x-penstock-endpoint", self._endpoint.encode())]
        if self._attempts > 1:
            headers.append((b"x-penstock-attempts", b"%d" % self._attempts))
        return headers

    def callers_key(self, target: Target) -> bool:
        return target.takes_callers_key(self.exchange.headers, has_key=self._caller.has_key)

    def succeeded(self, status: int) -> None:  # noqa: ARG002
        self._metrics.passed(self.model, self._caller, self._endpoint, Outcome.COMPLETED, None)

    def may_mend(self, status: int) -> bool:
        return status in unfit.NO_SUCH_PATH and self.pinned is None and self._attempts < self._attempts_max

    def mended(self, status: int, body: bytearray) -> bool:
        """Ask another endpoint, if this one does not have the path."""
        if unfit.refuses(status, body, has_media=False) is not Failure.NO_PATH or self._engine().lacks(
            self.named, body
        ):
            return False
        others = [*self._without, self._endpoint]
        if self._driver.scheduler.least_loaded(self.model, but=others, now=self._driver.now()) is None:
            return False
        self._without = others
        self._attempts += 1
        self._metrics.retried(self._caller, self._endpoint, Failure.NO_PATH)
        self.begin()
        return True

    def _sends_again(self, failure: Failure) -> bool:
        """Retry if a stale connection lost the request, within its attempts."""
        if failure is not Failure.STALE or self._attempts >= self._attempts_max:
            return False
        self._attempts += 1
        self._metrics.retried(self._caller, self._endpoint, failure)
        self.send_to(self._endpoint, self._targets[self._endpoint])
        return True

    def failed(self, failure: Failure, detail: str) -> None:  # noqa: ARG002
        if self._sends_again(failure):
            return
        if failure is Failure.CONNECT and self.pinned is None and self._attempts < self._attempts_max:
            self._attempts += 1
            self._metrics.retried(self._caller, self._endpoint, failure)
            self._driver.tell(self._driver.scheduler.endpoint_down(self._endpoint, now=self._driver.now()))
            unreachable = self._targets[self._endpoint].unreachable
            if unreachable is not None:
                unreachable()
            self.begin()
            return
        if failure in (Failure.MODEL_GONE, Failure.KEY_REFUSED) and self.pinned is None:
            self._without.append(self._endpoint)
            scheduler, now = self._driver.scheduler, self._driver.now()
            if failure is Failure.MODEL_GONE or scheduler.least_loaded(self.model, but=self._without, now=now):
                self.begin()
                return
        reason = final_reason(failure)
        if self._committed:
            self.break_off(self.api, reason)
        elif not self.engine_error([]):
            self._refuse(reason, errors.key_refused(self._endpoint) if self._refuses_key else None)
            return
        self._metrics.passed(self.model, self._caller, self._endpoint, Outcome.FAILED, reason)

    def _client_gone(self) -> None:
        self.hang_up()
        self._metrics.passed(self.model, self._caller, self._endpoint, Outcome.FAILED, Reason.CLIENT_GONE)

    def _refuse(self, reason: Reason, message: str | None = None) -> None:
        message = message or errors.message(reason, model=self.model, pinned=self.pinned)
        retry_after_s = 1.0 if reason is Reason.NO_ENDPOINT else None
        status, headers, body = errors.refusal(
            self.api, reason, message, param=errors.PARAM.get(reason), retry_after_s=retry_after_s
        )
        self.exchange.respond(status, [*headers, (b"x-request-id", self._request_id)], body)
        outcome = Outcome.FAILED if self._endpoint else Outcome.REJECTED
        self._metrics.passed(self.model, self._caller, self._endpoint, outcome, reason)
