"""What did a caller use? `GET /usage` has the use of its tenant, `GET /queue?usage=today` that of its key.

    /usage?month=2026-11&by=day,model&format=csv

A tenant's use is for its own keys and tokens: names are not enough. It is the bill of the whole tenant, by key if
asked, without users and endpoints. One question of a tenant is answered at a time, and repeated ones from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from penstock.batch.store.port import StoreError
from penstock.batch.values import UsageAsked, UsageRow
from penstock.config.model import Settings
from penstock.core.util.bounded_map import BoundedMap
from penstock.gateway.admin.routes import UNKEPT, AdminError, answer_error
from penstock.gateway.identity.caller import Caller
from penstock.gateway.usage.report import TIMES, question, summed
from penstock.gateway.usage.sheet import csv_text
from penstock.gateway.usage.use_counts import HOUR_S, NO_LEDGER
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.usage.usage_book import UsageBook

KEPT_S = 2.0  # a page looks so often
KEPT_MAX = 1_000  # answers that are remembered for that
PARAMETERS = ("from", "to", "month", "by", "format")
PARTS = (*TIMES, "key", "model", "reason")
FORMS = {"json": b"application/json", "csv": b"text/csv; charset=utf-8; header=present"}
NO_KEY = "The use of a tenant is shown to its own keys only."
BUSY = "A question of this tenant about its use is being answered: ask again then."
AWAY = "The ledger of use can't be read at this moment."
DAY_HOURS, LAST_HOUR = 24, 1 << 40


class OwnUse:
    """Asks the ledger for callers."""

    def __init__(self, book: UsageBook, settings: Callable[[], Settings], wall: Callable[[], float]) -> None:
        self._book = book
        self._settings = settings
        self._wall = wall
        self._kept: BoundedMap[UsageAsked, tuple[float, list[UsageRow]]] = BoundedMap(KEPT_MAX)
        self._asking: set[str] = set()  # tenants

    async def today(self, caller: Caller) -> dict[str, object] | None:
        """Returns the use of the caller's key since midnight (UTC), some seconds old at most; None: it is not known.

        With a token it is that of its user; a tenant of the settings without keys has one use, others have none.
        """
        no_tenant = not caller.has_key and caller.tenant_label != caller.tenant
        if no_tenant or not self._settings().keeps_usage:
            return None
        only = {"key": caller.key} if caller.key else {"user": caller.user} if caller.has_key else {}
        asked = UsageAsked(_day(self._wall()), LAST_HOUR, frozenset(), tenant=caller.tenant, **only)
        try:
            rows = await self._rows(asked)
        except StoreError:
            return None
        return _summed(rows, asked, " ".join(["the", *only]) if only else "the tenant")

    async def told(self, query: str, caller: Caller) -> dict[str, Any]:
        """Returns the use of the caller's tenant, by month if it does not ask otherwise. Raises AdminError."""
        if not caller.has_key:
            raise AdminError(401, "unauthorized", NO_KEY)
        settings = self._settings()
        if not settings.keeps_usage:
            raise AdminError(404, "no_ledger", NO_LEDGER)
        asked = question(query, self._wall(), parameters=PARAMETERS, parts=PARTS, by="month")
        if caller.tenant in self._asking:
            raise AdminError(429, "rate_limited", BUSY)
        self._asking.add(caller.tenant)
        try:
            rows = await self._rows(msgspec.structs.replace(asked, tenant=caller.tenant))
            told = await asyncio.to_thread(summed, rows, asked, settings.usage.prices)
        except StoreError:
            raise AdminError(503, "store_down", AWAY) from None
        finally:
            self._asking.discard(caller.tenant)
        return {"tenant": caller.tenant, **told}

    async def _rows(self, asked: UsageAsked) -> list[UsageRow]:
        found = self._kept.get(asked)
        if found is None or self._wall() - found[0] > KEPT_S:
            found = (self._wall(), await self._book.asked(asked))
            self._kept.set(asked, found)
        return found[1]


async def answer_use(exchange: Exchange, uses: OwnUse | None, caller: Caller) -> None:
    """Answer `GET /usage`, as JSON or CSV."""
    try:
        told, form = await _told(exchange.query, uses, caller)
    except AdminError as error:
        answer_error(exchange, error)
    else:
        body = csv_text(told).encode() if form == "csv" else msgspec.json.encode(told)
        exchange.respond(200, [(b"content-type", FORMS[form]), *UNKEPT, (b"vary", b"accept")], body)


async def _told(query: str, uses: OwnUse | None, caller: Caller) -> tuple[dict[str, Any], str]:
    """Returns the answer, and its form. Raises AdminError."""
    if uses is None:
        raise AdminError(404, "no_ledger", NO_LEDGER)
    told = await uses.told(query, caller)
    form = dict(parse_qsl(query)).get("format", "json")
    if form not in FORMS:
        raise AdminError(400, "bad_request", f"`format` is none of {', '.join(FORMS)}.", param="format")
    return told, form


def _day(now: float) -> int:
    """Returns the hour at which the day began, in UTC."""
    return int(now // HOUR_S) // DAY_HOURS * DAY_HOURS


def _summed(rows: Sequence[UsageRow], asked: UsageAsked, whose: str) -> dict[str, object]:
    since = datetime.fromtimestamp(asked.since * HOUR_S, UTC).strftime("%Y-%m-%d %H:%M UTC")
    names = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated_tokens")
    sums = {name: sum([getattr(row, name) for row in rows]) for name in names}
    answered = sum([row.requests for row in rows if not row.reason])
    return {"of": whose, "since": since, "answered": answered, **sums}
