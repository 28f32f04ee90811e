"""The result of a failed dispatch: requeue for free, requeue at the price of an attempt, or the end.

The rules of docs/design.md#failure. A refusal (429, 503) before the first byte costs nothing but time in the queue. A
lost connection or an engine's error spends one of the request's attempts and one of a common budget: a share of the
requests sent in the last ten seconds, or in flight if more, and ten in any case (`docs/decisions/0041`), so a broken
pool does not get triple load. An endpoint that does not have the model (any more), refuses the gateway's key or is no
engine costs no engine any work, and spends nothing either: the request is bounded by going to each endpoint but once.
After the first byte there are no retries. A request that is too long for an endpoint, of an unsupported kind, or that
needs what the engine was started without, spends an attempt and no budget; it goes only to endpoints that it may fit
(`core/dispatch/fit.py`). A stale connection is as a
rule one that a healthy engine closed while it was idle, often with hundreds of others, so the same endpoint may be
asked again at once, for none of the budget; but the engine may have executed the request, so it costs an attempt.
"""

from __future__ import annotations

from typing import Final

from penstock.core.values.catalogue import Failure, Reason

WINDOW_S: Final = 10  # as in Finagle and Linkerd: long enough for a meaningful share, short enough for an outage
RETRIES_MIN = 10  # in a window, for any share: a gateway with a request per second still gets past a dead engine


#: By an endpoint; final if no other accepts it.
REQUEST_REFUSED = frozenset({Failure.TOO_LONG, Failure.MODALITY, Failure.NO_PATH, Failure.NO_TOOLS, Failure.NO_FEATURE})
FIRST_BYTE_TIMEOUTS_MAX = 2  # tried once more, then 504


class RetryBudget:
    """How many retries there may be: a share of the requests of the last seconds, and a few in any case."""

    __slots__ = ("_retried", "_second", "_sent", "share")

    def __init__(self, share: float) -> None:
        self.share = share  #: 0: nothing is tried again
        self._sent = [0] * WINDOW_S  # in each of the last seconds
        self._retried = [0] * WINDOW_S
        self._second = 0  # the present one

    def sent(self, now: float) -> None:
        """Note that a request was sent for the first time: it allows a part of a retry."""
        if int(now) != self._second:
            self._advance(now)
        self._sent[self._second % WINDOW_S] += 1

    def take(self, now: float, *, under_way: int) -> bool:
        """Spend one retry; returns False without one left. `under_way`: requests that are in engines now."""
        if self.share <= 0:
            return False
        self._advance(now)
        if sum(self._retried) + 1 > max(RETRIES_MIN, self.share * max(sum(self._sent), under_way)):
            return False
        self._retried[self._second % WINDOW_S] += 1
        return True

    def _advance(self, now: float) -> None:
        second = int(now)
        if second == self._second:
            return
        for passed in range(max(self._second, second - WINDOW_S) + 1, second + 1):
            self._sent[passed % WINDOW_S] = self._retried[passed % WINDOW_S] = 0
        self._second = second


def may_retry(
    failure: Failure, *, attempts: int, attempts_max: int, budget: RetryBudget, now: float = 0.0, under_way: int = 0
) -> bool:
    """Judge the `attempts`-th failure that costs an attempt (the current one counted) of one request.

    `under_way`: requests that are in engines now, the failed one not counted. Takes from the budget if True.
    """
    if failure in (Failure.BUSY, Failure.KEY_REFUSED, Failure.MODEL_GONE, Failure.NOT_AN_ENGINE):
        return True
    if failure is Failure.BROKEN:
        return False
    if failure in REQUEST_REFUSED or (failure is Failure.STALE and budget.share > 0):
        # costs an engine next to nothing, so none of the budget
        return attempts < attempts_max
    allowed = min(attempts_max, FIRST_BYTE_TIMEOUTS_MAX) if failure is Failure.FIRST_BYTE_TIMEOUT else attempts_max
    return attempts < allowed and budget.take(now, under_way=under_way)


def final_reason(failure: Failure) -> Reason:
    """Returns the reason under which a request ends after `failure`."""
    return _FINAL.get(failure, Reason.UPSTREAM_ERROR)


_FINAL = {
    Failure.BROKEN: Reason.STREAM_BROKEN,
    Failure.FIRST_BYTE_TIMEOUT: Reason.UPSTREAM_TIMEOUT,
    Failure.MODEL_GONE: Reason.MODEL_NOT_FOUND,
}
