"""The response to a request that goes no further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.caller import Key, Sender, Unauthorized
from penstock.gateway.openai import errors
from penstock.gateway.openai.routes import api_of
from penstock.gateway.proxy.arrival import RequestIds
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.telemetry.metrics import Metrics
from penstock.http.server.server import Exchange, Header, Refusal

_REFUSALS: Final = {
    Refusal.BAD_REQUEST: Reason.BAD_REQUEST,
    Refusal.CLIENT_TIMEOUT: Reason.CLIENT_TIMEOUT,
    Refusal.REQUEST_TOO_LARGE: Reason.REQUEST_TOO_LARGE,
    Refusal.HEADER_TOO_LARGE: Reason.HEADER_TOO_LARGE,
    Refusal.WEBSOCKET_UNSUPPORTED: Reason.WEBSOCKET_UNSUPPORTED,
    Refusal.EXPECTATION_FAILED: Reason.BAD_REQUEST,
    Refusal.TOO_MANY_CONNECTIONS: Reason.OVERLOAD,
    Refusal.TOO_MANY_BYTES: Reason.OVERLOAD,
}


class Refusals:
    """Refuses requests, and counts refusals."""

    def __init__(self, driver: Driver[Decides], metrics: Metrics) -> None:
        self._metrics = metrics
        self.ids = ids = RequestIds(driver)
        self.request_id = ids.of

    def refuse(
        self,
        exchange: Exchange,
        reason: Reason,
        message: str | None = None,
        *,
        param: str | None = None,
        extra: Sequence[Header] = (),
    ) -> None:
        """Respond with a refusal. `message`: None: the usual one of the reason."""
        if reason is Reason.METHOD_NOT_ALLOWED and message is None:
            message = errors.wrong_method(exchange.method, dict(extra)[b"allow"].decode())
        self.count(reason, exchange)
        retry_after_s = 1.0 if reason.retryable else None
        status, headers, body = errors.refusal(
            api_of(exchange.target_path), reason, message, param=param, retry_after_s=retry_after_s
        )
        exchange.respond(status, [*headers, (b"x-request-id", self.request_id(exchange)), *extra], body)

    def refused(self, exchange: Exchange | None, refusal: Refusal, detail: str) -> tuple[int, Sequence[Header], bytes]:
        """Returns the response to a request that is not valid HTTP."""
        reason = _REFUSALS[refusal]
        api = api_of(exchange.target_path) if exchange is not None else errors.Api.OPENAI
        self.count(reason, exchange)
        retry_after_s = 1.0 if reason.retryable else None
        status, headers, body = errors.refusal(api, reason, detail, retry_after_s=retry_after_s)
        if exchange is not None and exchange.method:
            headers.append((b"x-request-id", self.request_id(exchange)))
        return status, headers, body

    def count(self, reason: Reason, exchange: Exchange | None) -> None:
        """Count it, for its tenant if it has a valid key, or one that was."""
        key, ended = exchange.note if exchange is not None else None, ""
        if isinstance(key, Unauthorized) and key.former is not None:
            ended, key = f"key {key.former.key.name}, {key.former.ended}", key.former.key
        if isinstance(key, Sender):
            key = key.key
        if isinstance(key, Key):
            owner = key.owner
            self._metrics.refused(
                reason, tenant=owner.name, label=owner.label, key=key.name, user=key.user, ended=ended
            )
        else:
            self._metrics.refused(reason)
