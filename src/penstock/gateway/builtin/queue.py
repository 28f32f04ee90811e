"""`GET /queue`: a client's own requests and limits.

Those of its tenant, never another's. The oldest are listed one by one; all are counted.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol, runtime_checkable

from penstock.core.values.request import Request
from penstock.core.values.rows import Left
from penstock.gateway.identity.caller import Caller
from penstock.gateway.proxy.driver import Driver

LISTED_MAX = 100


@runtime_checkable
class Queued(Protocol):
    """A journey that waits its turn, wherever its client is."""

    @property
    def request(self) -> Request: ...
    @property
    def waits(self) -> bool: ...
    @property
    def band(self) -> str: ...


def own_queue(driver: Driver, caller: Caller) -> dict[str, Any]:
    """Returns one client's view as JSON."""
    now = driver.now()
    own = [
        journey
        for journey in driver.journeys()
        if isinstance(journey, Queued) and journey.request.tenant == caller.tenant
    ]
    waiting = [journey for journey in own if journey.waits]
    listed = list(islice(waiting, LISTED_MAX))
    places = driver.scheduler.places([journey.request.id for journey in listed], now=now)
    scheduler = driver.scheduler
    limits, allowance = scheduler.limits_of(caller.account), scheduler.allowance((caller.account,), now=now)
    return {
        "tenant": caller.tenant,
        "running": len(own) - len(waiting),
        "waiting": len(waiting),
        "waiting_bytes": sum(journey.request.body_bytes for journey in waiting),
        "requests": [
            {
                "id": journey.request.id,
                "model": journey.request.model,
                "band": journey.band,
                "position": place.position,
                "eta_s": None if place.eta_s is None else round(place.eta_s, 3),
                "waited_s": round(place.waited_s, 3),
            }
            for journey in listed
            if (place := places.get(journey.request.id)) is not None
        ],
        "limits": {
            "running": None if limits is None else limits.running,
            "queued": None if limits is None else limits.queued,
            "queued_bytes": None if limits is None else limits.queued_bytes,
            "queued_tokens": None if limits is None else limits.queued_tokens,
            "requests_per_minute": None if allowance is None else _left(allowance.requests),
            "tokens_per_minute": None if allowance is None else _left(allowance.tokens),
            "tokens_per_day": None if allowance is None else _left(allowance.tokens_day),
        },
    }


def _left(left: Left | None) -> dict[str, float] | None:
    if left is None:
        return None
    return {"limit": left.limit, "remaining": left.remaining, "reset_s": round(left.reset_s, 3)}
