"""What a failed dispatch means: back to the queue for free, back at the price of an attempt, or the end.

The rules of DESIGN §4.11. A refusal (429, 503) before the first byte costs nothing but time in the queue. A lost
connection or an engine's error spends one of the request's attempts and one token of a budget that all requests
share: retries may be `budget` of the dispatches in the long run, so a broken pool is not hit three times as hard.
An endpoint that does not have the model (any more) costs no engine any work, and spends nothing either: the request is
bounded by going to each endpoint but once. After the first byte nothing can be taken back.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.core.outcome import Reason

BUDGET_BURST = 256.0  # an engine with that many streams may die at once and have all of them tried elsewhere


class Failure(StrEnum):
    """How a dispatch failed, as the driver reports it."""

    CONNECT = "connect"  #: nobody there: refused, unreachable, name not found, TLS failed
    RESET = "reset"  #: the connection was lost before the first byte
    BUSY = "busy"  #: 429 or 503, or an engine that says it is shutting down
    SERVER_ERROR = "server_error"  #: another 5xx
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    MODEL_GONE = "model_gone"  #: it does not have the model that it is believed to have
    BROKEN = "broken"  #: after the first byte: lost, silent for too long, or an error in the stream


class Verdict(StrEnum):
    """What to do with the request."""

    REQUEUE = "requeue"
    FAIL = "fail"


FIRST_BYTE_TIMEOUTS_MAX = 2  # tried once more, then 504


class RetryBudget:
    """A token bucket filled by dispatches and emptied by retries."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._tokens = BUDGET_BURST if share > 0 else 0.0

    def dispatched(self) -> None:
        self._tokens = min(BUDGET_BURST, self._tokens + self.share)

    def take(self) -> bool:
        """Spend one token; False when there is none."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def verdict(failure: Failure, *, attempts: int, attempts_max: int, budget: RetryBudget) -> Verdict:
    """Judge the `attempts`-th failure that costs an attempt (the current one counted) of one request."""
    if failure in (Failure.BUSY, Failure.MODEL_GONE):
        return Verdict.REQUEUE
    if failure is Failure.BROKEN:
        return Verdict.FAIL
    allowed = min(attempts_max, FIRST_BYTE_TIMEOUTS_MAX) if failure is Failure.FIRST_BYTE_TIMEOUT else attempts_max
    if attempts >= allowed or not budget.take():
        return Verdict.FAIL
    return Verdict.REQUEUE


def final_reason(failure: Failure) -> Reason:
    """The reason under which a request ends after this failure."""
    if failure is Failure.BROKEN:
        return Reason.STREAM_BROKEN
    if failure is Failure.FIRST_BYTE_TIMEOUT:
        return Reason.UPSTREAM_TIMEOUT
    if failure is Failure.MODEL_GONE:
        return Reason.MODEL_NOT_FOUND
    return Reason.UPSTREAM_ERROR
