"""What does the end of a request say of the endpoint that had it: is it well, and is it an engine?"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.catalogue import Failure
from penstock.core.values.retry import REQUEST_REFUSED

# Failures that are answers, so the process behind them runs.
_ANSWERS = frozenset(
    {Failure.BUSY, Failure.SERVER_ERROR, Failure.KEY_REFUSED, Failure.MODEL_GONE, Failure.NOT_AN_ENGINE}
)


def well(state: SchedulerState, endpoint: Endpoint, now: float, *, refused: bool = False) -> None:
    """It did what was asked of it. A request that it `refused` proves nothing, but shows that it is well."""
    changes = endpoint.health.ejected(now)
    endpoint.health.succeeded()
    if not refused:
        state.pool.answered += 1
        changes = changes or not endpoint.proof.stands
        endpoint.proof.succeeded()
    if changes:
        state.health_changed(now)
    state.queues.touch(endpoint)


def blame(
    state: SchedulerState, endpoint: Endpoint, model: str, failure: Failure, now: float, *, retry_after_s: float
) -> None:
    """A request for `model` failed there: what that says of the endpoint.

    `retry_after_s`: how long its engine asked to be left alone.
    """
    if failure in REQUEST_REFUSED:
        endpoint.liveness.moves(now)
        well(state, endpoint, now, refused=True)
        return
    endpoint.failure, endpoint.failed_s = failure, now
    if failure is Failure.CONNECT:
        endpoint.health.probed(up=False, now=now)
        state.router.down(endpoint)
    elif failure is Failure.BUSY:
        endpoint.health.refused(now, retry_after_s)
    elif failure is Failure.NOT_AN_ENGINE:
        endpoint.proof.struck(now)
    elif failure is Failure.KEY_REFUSED:
        endpoint.proof.refuses_key(now)
    elif failure is Failure.MODEL_GONE:
        if not endpoint.proof.stands and state.pool.stands_in(endpoint, model):
            endpoint.proof.struck(now)
    else:  # which says nothing of how it fares
        endpoint.health.failed(now)
    if failure in _ANSWERS:
        endpoint.liveness.moves(now)
    state.queues.touch(endpoint)
    state.health_changed(now)


def seen_through(state: SchedulerState, endpoint: Endpoint, now: float) -> None:
    """It refuses all it gets, at once: it is left alone, where that costs nobody a model."""
    if state.pool.replaces(endpoint):
        endpoint.proof.close(now)
        state.health_changed(now)
