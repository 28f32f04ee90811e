"""`GET /queue`: a client's own requests and limits.

Those of its tenant, never another's. The oldest are listed one by one; all are counted. With `?usage=today`, also the
key's use since midnight (UTC). A browser gets a page (`queue.html`) that asks for that, with the key typed into it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from penstock.core.queueing.quotas import whose
from penstock.core.values.request import Request
from penstock.core.values.rows import Left
from penstock.gateway.identity.caller import Caller
from penstock.gateway.identity.own_limits import OwnAccounts
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Header

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


def own_queue(driver: Driver, caller: Caller, own: OwnAccounts) -> dict[str, Any]:
    """Returns one client's view as JSON. `own`: the limits of keys and models."""
    now = driver.now()
    mine = [
        journey
        for journey in driver.journeys()
        if isinstance(journey, Queued) and journey.request.tenant == caller.tenant
    ]
    waiting = [journey for journey in mine if journey.waits]
    listed = list(islice(waiting, LISTED_MAX))
    places = driver.scheduler.places([journey.request.id for journey in listed], now=now)
    return {
        "tenant": caller.tenant,
        "running": len(mine) - len(waiting),
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
        "limits": _limits(driver, caller.account, now),
        **_own_limits(driver, own.of_key(caller.account, caller.key), mine, now),
    }


def _own_limits(driver: Driver, accounts: list[str], mine: Sequence[Queued], now: float) -> dict[str, Any]:
    """Returns the limits of the caller's key and of its tenant's models, if there are any, and what counts in each."""
    told: dict[str, Any] = {}
    for account in accounts:
        _, kind, name = whose(account)
        counted = [journey for journey in mine if account in journey.request.also]
        waiting = [journey for journey in counted if journey.waits]
        limits = {
            "limits": _limits(driver, account, now),
            "running": len(counted) - len(waiting),
            "waiting": len(waiting),
            "waiting_bytes": sum([journey.request.body_bytes for journey in waiting]),
        }
        if kind == "key":
            told["key"] = limits
        else:
            told.setdefault("models", {})[name] = limits
    return told


def _limits(driver: Driver, account: str, now: float) -> dict[str, Any]:
    scheduler = driver.scheduler
    limits, allowance = scheduler.limits_of(account), scheduler.allowance((account,), now=now)
    return {
        "running": None if limits is None else limits.running,
        "queued": None if limits is None else limits.queued,
        "queued_bytes": None if limits is None else limits.queued_bytes,
        "queued_tokens": None if limits is None else limits.queued_tokens,
        "requests_per_minute": None if allowance is None else _left(allowance.requests),
        "tokens_per_minute": None if allowance is None else _left(allowance.tokens),
        "tokens_per_day": None if allowance is None else _left(allowance.tokens_day),
    }


def _left(left: Left | None) -> dict[str, float] | None:
    if left is None:
        return None
    return {"limit": left.limit, "remaining": left.remaining, "reset_s": round(left.reset_s, 3)}


class QueuePage:
    """The page of a key's holder: one file that holds nothing of anybody, and asks for the rest."""

    def __init__(self) -> None:
        self.body = (resources.files("penstock.gateway.builtin") / "queue.html").read_bytes()
        script, style = (_hash_of(self.body, tag) for tag in (b"script", b"style"))
        policy = (
            b"default-src 'none'; script-src '%b'; style-src '%b'; connect-src 'self';"
            b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'" % (script, style)
        )
        self.headers: list[Header] = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
            (b"vary", b"accept"),
        ]


def _hash_of(page: bytes, tag: bytes) -> bytes:
    """Returns the hash of an inline element, which the policy names."""
    text = page.partition(b"<%b>" % tag)[2].partition(b"</%b>" % tag)[0]
    return b"sha256-" + base64.b64encode(hashlib.sha256(text).digest())


@cache
def queue_page() -> QueuePage:
    """Returns the page, read once."""
    return QueuePage()
