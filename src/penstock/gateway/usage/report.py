"""`GET /admin/usage`: sums of the ledger, by what the operator asks for, with the operator's own prices.

    /admin/usage?from=2026-11-01&to=2026-11-30&by=day,tenant,model&tenant=chat
    /admin/usage?month=2026-11

Times are UTC, by the hour: `from` is rounded down, `to` up. A date or a month alone is all of it; `24h` and `7d` are
ago.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from penstock.batch.store.port import USAGE_MAX
from penstock.batch.values import UsageAsked, UsageRow
from penstock.config import values
from penstock.config.model import Settings
from penstock.config.problems import Refused, show
from penstock.config.sections.operation import ANY_MODEL, TokenPrices
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer
from penstock.gateway.usage.use_counts import HOUR_S, NO_LEDGER
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.usage.usage_book import UsageBook

DAY_S = 86_400
TIMES = ("hour", "day", "month")
PARTS = (*TIMES, "tenant", "key", "user", "model", "endpoint", "reason")
BY_DEFAULT = "tenant,model"
MILLION = 1e6  # tokens that a price is for
PARAMETERS = ("from", "to", "month", "by", "tenant", "key", "user")
MONTHS_SHOWN = 12  # by month, if no time is asked for
_AGO = re.compile(r"(\d{1,6})([hd])", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MONTH = re.compile(r"(19[7-9]\d|[2-9]\d{3})-(0[1-9]|1[0-2])", re.ASCII)

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


def question(
    query: str,
    now: float,
    *,
    parameters: Sequence[str] = PARAMETERS,
    parts: Sequence[str] = PARTS,
    by: str = BY_DEFAULT,
) -> UsageAsked:
    """Returns what a query asks for; `by`: if it does not. Raises AdminError."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise AdminError(400, "bad_request", "The query has too many fields.") from None
    asked: dict[str, str] = {}
    for name, value in fields:
        if name not in parameters:
            raise AdminError(
                400, "bad_request", f"`{name[:40]}` is none of `{'`, `'.join(parameters)}`.", param=name[:40]
            )
        if name in asked:
            raise AdminError(400, "bad_request", f"`{name}` is given twice.", param=name)
        asked[name] = value
    by_parts = _parts(asked.get("by", by), parts)
    since_s, until_s = _span(asked, now, by_month="month" in by_parts)
    return UsageAsked(
        since=int(since_s // HOUR_S),
        until=math.ceil(until_s / HOUR_S),
        by=by_parts,
        tenant=asked.get("tenant"),
        key=asked.get("key"),
        user=asked.get("user"),
    )


def _span(asked: Mapping[str, str], now: float, *, by_month: bool) -> tuple[float, float]:
    """Returns the time that is asked for, as two moments in Unix time. Raises AdminError."""
    if "month" in asked:
        if "from" in asked or "to" in asked:
            raise AdminError(400, "bad_request", "`month` is given beside `from` or `to`.", param="month")
        month = {"this": _written_month(now, 0), "last": _written_month(now, -1)}.get(asked["month"], asked["month"])
        if (found := _month(month)) is None:
            message = f"month: {show(asked['month'])} is not a month: write 2026-11, `this` or `last`."
            raise AdminError(400, "bad_request", message, param="month")
        return found
    until_s = _bound("to", asked.get("to", "0h"), now)
    if "from" in asked:
        since_s = _bound("from", asked["from"], now)
    elif by_month:
        since_s = _bound("from", _written_month(until_s - 1.0, 1 - MONTHS_SHOWN), now)
    else:
        since_s = until_s - DAY_S
    if since_s >= until_s:
        raise AdminError(400, "bad_request", "`from` is not before `to`.", param="from")
    return since_s, until_s


def _bound(name: str, written: str, now: float) -> float:
    """Returns a moment as Unix time. Raises AdminError."""
    if ago := _AGO.fullmatch(written):
        return max(0.0, now - int(ago[1]) * (HOUR_S if ago[2] == "h" else DAY_S))
    if (month := _month(written)) is not None:
        return month[name == "to"]
    try:
        moment = values.moment(written.replace(" ", "+") if "T" in written else written)  # a plus sign in a query
    except Refused as refused:
        hint = "write 2026-11-25, 2026-11-25T14:00:00Z, 2026-11, or 24h or 7d for so long ago"
        raise AdminError(400, "bad_request", f"{name}: {str(refused).split(':')[0]}: {hint}.", param=name) from None
    return moment - DAY_S if name == "from" and _DATE.fullmatch(written.strip()) else moment


def _month(written: str) -> tuple[float, float] | None:
    """Returns a month's beginning and end as Unix times, neither before 1970; None if it is none."""
    found = _MONTH.fullmatch(written)
    if found is None:
        return None
    months = int(found[1]) * 12 + int(found[2]) - 1
    return _begins(months), _begins(months + 1)


def _begins(months: int) -> float:
    """Returns the Unix time at which a month begins, counted from the year 0; the year 9999 has no end."""
    if months >= 12 * 10_000:
        return values.MOMENT_S_MAX
    return max(0.0, datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC).timestamp())


def _written_month(at_s: float, further: int) -> str:
    """Returns the month of a moment, or one so many months further."""
    at = datetime.fromtimestamp(at_s, UTC)
    months = max(1970 * 12, at.year * 12 + at.month - 1 + further)
    return f"{months // 12:04}-{months % 12 + 1:02}"


def _parts(written: str, known: Sequence[str]) -> frozenset[str]:
    parts = frozenset(part.strip() for part in written.split(",") if part.strip())
    for part in sorted(parts - set(known)):
        raise AdminError(400, "bad_request", f"by: `{part[:40]}` is none of {', '.join(known)}.", param="by")
    if len(times := [time for time in TIMES if time in parts]) > 1:
        message = f"by: {' and '.join([f'`{time}`' for time in times])} exclude each other."
        raise AdminError(400, "bad_request", message, param="by")
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
        place = tuple([_timed(part, row.hour) if part in TIMES else getattr(row, part) for part in parts])
        its = sums.get(place)
        if its is None:
            its = sums[place] = UseSum()
        price = prices.get(row.model) or prices.get(ANY_MODEL)
        for each in (its, total):
            each.add(row, price)
    is_timed = bool(parts) and parts[0] in TIMES
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
        self._sums = dict.fromkeys(UsageRow.__struct_fields__[7:-1], 0.0)
        self._reasons: dict[str, int] = {}
        self._interrupted_tokens = 0
        self._cost = self._interrupted_cost = 0.0

    def add(self, row: UsageRow, price: TokenPrices | None) -> None:
        for name in self._sums:
            self._sums[name] += getattr(row, name)
        if row.reason:
            self._reasons[row.reason] = self._reasons.get(row.reason, 0) + row.requests
            self._interrupted_tokens += row.estimated_tokens
        if price is not None:
            self._cost += cost(row, price)
            self._interrupted_cost += interrupted_cost(row, price)

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
            "interrupted_tokens": self._interrupted_tokens,
            "cost": round(self._cost, 6) if priced else None,
            "interrupted_cost": round(self._interrupted_cost, 6) if priced else None,
        }


def cost(row: UsageRow, price: TokenPrices) -> float:
    """Returns the cost of the reported tokens. Estimated ones cost nothing."""
    cached = price.prompt if price.cached_prompt is None else price.cached_prompt
    uncached_tokens = row.prompt_tokens - row.cached_tokens
    return (
        uncached_tokens * price.prompt + row.cached_tokens * cached + row.completion_tokens * price.completion
    ) / MILLION


def interrupted_cost(row: UsageRow, price: TokenPrices) -> float:
    """Returns the cost of what interrupted answers used and no engine reported: tokens seen, prompts by estimate."""
    if not row.reason:
        return 0.0
    prompt_tokens = row.estimated_tokens - row.estimated_completion
    return (prompt_tokens * price.prompt + row.estimated_completion * price.completion) / MILLION


def _timed(part: str, hour: int) -> str:
    return _written(hour)[:7] if part == "month" else _written(hour)


def _written(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
