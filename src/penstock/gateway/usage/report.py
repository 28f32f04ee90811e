"""`GET /admin/usage`: sums of the ledger, by what the operator asks for, with the operator's own prices.

    /admin/usage?from=2026-11-01&to=2026-11-30&by=day,tenant,model&tenant=chat

Times are UTC, by the hour: `from` is rounded down, `to` up. A date alone is that whole day; `24h` and `7d` are ago.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from penstock.batch.store.port import USAGE_MAX
from penstock.batch.values import UsageAsked, UsageRow
from penstock.config import values
from penstock.config.model import Settings
from penstock.config.problems import Refused
from penstock.config.sections.operation import ANY_MODEL, TokenPrices
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer
from penstock.gateway.usage.ledger import HOUR_S, NO_LEDGER
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.usage.book import UsageBook

DAY_S = 86_400
PARTS = ("hour", "day", "tenant", "key", "user", "model", "endpoint", "reason")
BY_DEFAULT = "tenant,model"
MILLION = 1e6  # tokens that a price is for
_PARAMETERS = ("from", "to", "by", "tenant", "key", "user")
_AGO = re.compile(r"(\d{1,6})([hd])", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

Prices = Mapping[str, TokenPrices]


class UsageReport:
    """The question and its answer."""

    def __init__(self, book: UsageBook, settings: Callable[[], Settings], wall: Callable[[], float]) -> None:
        self._book = book
        self._settings = settings
        self._wall = wall

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", "/admin/usage", self._ask)

    async def _ask(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        settings = self._settings()
        if not settings.keeps_usage:
            raise AdminError(409, "conflict", NO_LEDGER)
        asked, prices = question(exchange.query, self._wall()), settings.usage.prices
        rows = await self._book.asked(asked)
        told = await asyncio.to_thread(lambda: msgspec.json.encode(summed(rows, asked, prices)))
        answer(exchange, msgspec.Raw(told))


def question(query: str, now: float) -> UsageAsked:
    """Returns what a query asks for. Raises AdminError."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise AdminError(400, "bad_request", "The query has too many fields.") from None
    asked: dict[str, str] = {}
    for name, value in fields:
        if name not in _PARAMETERS:
            raise AdminError(
                400, "bad_request", f"`{name[:40]}` is none of `{'`, `'.join(_PARAMETERS)}`.", param=name[:40]
            )
        if name in asked:
            raise AdminError(400, "bad_request", f"`{name}` is given twice.", param=name)
        asked[name] = value
    until_s = _bound("to", asked.get("to", "0h"), now)
    since_s = _bound("from", asked["from"], now) if "from" in asked else until_s - DAY_S
    if since_s >= until_s:
        raise AdminError(400, "bad_request", "`from` is not before `to`.", param="from")
    return UsageAsked(
        since=int(since_s // HOUR_S),
        until=math.ceil(until_s / HOUR_S),
        by=_parts(asked.get("by", BY_DEFAULT)),
        tenant=asked.get("tenant"),
        key=asked.get("key"),
        user=asked.get("user"),
    )


def _bound(name: str, written: str, now: float) -> float:
    """Returns a moment as Unix time. Raises AdminError."""
    if ago := _AGO.fullmatch(written):
        return max(0.0, now - int(ago[1]) * (HOUR_S if ago[2] == "h" else DAY_S))
    try:
        moment = values.moment(written.replace(" ", "+") if "T" in written else written)  # a plus sign in a query
    except Refused as refused:
        hint = "write 2026-11-25, 2026-11-25T14:00:00Z, or 24h or 7d for so long ago"
        raise AdminError(400, "bad_request", f"{name}: {str(refused).split(':')[0]}: {hint}.", param=name) from None
    return moment - DAY_S if name == "from" and _DATE.fullmatch(written.strip()) else moment


def _parts(written: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in written.split(",") if part.strip())
    for part in sorted(parts - set(PARTS)):
        raise AdminError(400, "bad_request", f"by: `{part[:40]}` is none of {', '.join(PARTS)}.", param="by")
    if {"hour", "day"} <= parts:
        raise AdminError(400, "bad_request", "by: `hour` and `day` exclude each other.", param="by")
    return parts


def summed(rows: list[UsageRow], asked: UsageAsked, prices: Prices) -> dict[str, Any]:
    """Returns the answer: a row per combination of the parts asked for, the earliest and then the largest first.

    Raises AdminError if there are too many.
    """
    if len(rows) > USAGE_MAX:
        message = f"These are more than {USAGE_MAX:,} rows: ask for a shorter time, or name fewer parts in `by`."
        raise AdminError(400, "too_many_rows", message, param="by")
    parts = [part for part in PARTS if part in asked.by]
    sums: dict[tuple[object, ...], UseSum] = {}
    total = UseSum()
    for row in rows:
        place = tuple([_written(row.hour) if part in ("hour", "day") else getattr(row, part) for part in parts])
        its = sums.get(place)
        if its is None:
            its = sums[place] = UseSum()
        price = prices.get(row.model) or prices.get(ANY_MODEL)
        for each in (its, total):
            each.add(row, price)
    is_timed = bool(parts) and parts[0] in ("hour", "day")
    ordered = sorted(sums.items(), key=lambda one: (one[0][:is_timed], -one[1].tokens, one[0]))
    priced = bool(prices)
    return {
        "from": _written(asked.since),
        "to": _written(asked.until),
        "by": parts,
        "rows": [{**dict(zip(parts, place, strict=True)), **its.written(priced=priced)} for place, its in ordered],
        "total": total.written(priced=priced),
    }


class UseSum:
    """Several rows of the ledger, in one."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(UsageRow.__struct_fields__[7:], 0.0)
        self._reasons: dict[str, int] = {}
        self._cost = 0.0

    def add(self, row: UsageRow, price: TokenPrices | None) -> None:
        for name in self._sums:
            self._sums[name] += getattr(row, name)
        if row.reason:
            self._reasons[row.reason] = self._reasons.get(row.reason, 0) + row.requests
        if price is not None:
            self._cost += cost(row, price)

    @property
    def tokens(self) -> float:
        return self._sums["prompt_tokens"] + self._sums["completion_tokens"]

    def written(self, *, priced: bool) -> dict[str, object]:
        sums = {name: round(value, 3) if name.endswith("_s") else int(value) for name, value in self._sums.items()}
        answered = sums["requests"] - sum(self._reasons.values())
        reasons = dict(sorted(self._reasons.items(), key=lambda one: -one[1]))
        return {
            "requests": sums.pop("requests"),
            "answered": answered,
            "reasons": reasons,
            **sums,
            "cost": round(self._cost, 6) if priced else None,
        }


def cost(row: UsageRow, price: TokenPrices) -> float:
    """Returns the cost of the reported tokens. Estimated ones cost nothing."""
    cached = price.prompt if price.cached_prompt is None else price.cached_prompt
    uncached_tokens = row.prompt_tokens - row.cached_tokens
    return (
        uncached_tokens * price.prompt + row.cached_tokens * cached + row.completion_tokens * price.completion
    ) / MILLION


def _written(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
