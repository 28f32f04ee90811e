"""What did a caller use? Its own, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.batch.store.port import StoreError
from penstock.batch.values import UsageAsked, UsageRow
from penstock.config.model import Settings
from penstock.core.util.bounded_map import BoundedMap
from penstock.gateway.identity.caller import Caller
from penstock.gateway.usage.ledger import HOUR_S

if TYPE_CHECKING:
    from penstock.gateway.usage.book import UsageBook

TODAY_S = 2.0  # a page looks so often
TODAY_MAX = 1_000  # callers whose use is remembered for that
DAY_HOURS, LAST_HOUR = 24, 1 << 40


class OwnUse:
    """Asks the ledger for callers."""

    def __init__(self, book: UsageBook, settings: Callable[[], Settings], wall: Callable[[], float]) -> None:
        self._book = book
        self._settings = settings
        self._wall = wall
        self._today: BoundedMap[UsageAsked, tuple[float, list[UsageRow]]] = BoundedMap(TODAY_MAX)

    async def today(self, caller: Caller) -> dict[str, object] | None:
        """Returns the use of the caller's key since midnight (UTC), some seconds old at most; None: it is not known.

        With a token it is that of its user; a tenant of the settings without keys has one use, others have none.
        """
        no_tenant = not caller.has_key and caller.tenant_label != caller.tenant
        if no_tenant or not self._settings().keeps_usage:
            return None
        only = {"key": caller.key} if caller.key else {"user": caller.user} if caller.has_key else {}
        asked = UsageAsked(_day(self._wall()), LAST_HOUR, frozenset(), tenant=caller.tenant, **only)
        found = self._today.get(asked)
        if found is None or self._wall() - found[0] > TODAY_S:
            try:
                rows = await self._book.asked(asked)
            except StoreError:
                return None
            found = (self._wall(), rows)
            self._today.set(asked, found)
        return _summed(found[1], asked, " ".join(["the", *only]) if only else "the tenant")


def _day(now: float) -> int:
    """Returns the hour at which the day began, in UTC."""
    return int(now // HOUR_S) // DAY_HOURS * DAY_HOURS


def _summed(rows: Sequence[UsageRow], asked: UsageAsked, whose: str) -> dict[str, object]:
    since = datetime.fromtimestamp(asked.since * HOUR_S, UTC).strftime("%Y-%m-%d %H:%M UTC")
    names = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated_tokens")
    sums = {name: sum([getattr(row, name) for row in rows]) for name in names}
    answered = sum([row.requests for row in rows if not row.reason])
    return {"of": whose, "since": since, "answered": answered, **sums}
