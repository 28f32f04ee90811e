"""What is left of a day's budget by the ledger of use, when a scheduler does not know what was spent?

Budgets (`tokens_per_day`) are kept in the memory of the scheduler that decides. So they would be full after a restart,
in a gateway that begins to lead, and for a tenant or key that gets one. Here each budget that is new is filled by what
the ledger has: `HOURS` hours, the last one is this, are replayed with a bucket of the present size, empty at first. So
whoever always used all that came has as little as before, and a week is long enough for all others to be exact. The
scheduler only takes away by it, so nothing that is asked twice or late gives anybody more.

The ledger is read in steps of an hour, beside its writing, while requests are served: no start waits for it. Until it
was read, a second as a rule, a budget is full. Without a ledger it stays so. A gateway of several whose ledger is its
own (SQLite) knows what it carried itself; those with one PostgreSQL know all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from penstock.batch.store.port import USAGE_MAX, StoreError
from penstock.batch.values import UsageAsked
from penstock.core.queueing.quotas import own_account
from penstock.core.values.settings import Limits
from penstock.gateway.usage.usage_book import UsageBook
from penstock.gateway.usage.use_counts import HOUR_S

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # for budgets that are new
HOURS = 7 * 24
DAY_HOURS = 24.0


class DayBudgets:
    """Fills budgets.

    `lower` takes the part that is left of each, `limits` returns those in force, by account; `may`: this process
    decides, and there is a ledger.
    """

    def __init__(
        self,
        book: UsageBook,
        lower: Callable[[dict[str, float]], None],
        limits: Callable[[], Mapping[str, Limits]],
        may: Callable[[], bool],
        wall: Callable[[], float],
    ) -> None:
        self._book = book
        self._lower = lower
        self._limits = limits
        self._may = may
        self._wall = wall
        self._filled: Collection[str] = ()
        self._trouble = ""

    async def run(self) -> None:
        """Fill those that come, for ever. While the ledger can't be read, they are tried again."""
        while True:
            try:
                await self._look()
                self._trouble = ""
            except StoreError as error:
                if not self._trouble:
                    logger.warning("budgets for a day are full, because the ledger of use can't be read: %s", error)
                self._trouble = str(error)
            except Exception:
                logger.exception("unexpected error while filling budgets by the ledger of use")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        if not self._may():
            self._filled = ()
            return
        budgets = {name: its.tokens_per_day for name, its in self._limits().items() if its.tokens_per_day}
        if new := {name: most for name, most in budgets.items() if name not in self._filled}:
            self._lower(await self._left(new))
        self._filled = budgets

    async def _left(self, budgets: Mapping[str, int]) -> dict[str, float]:
        """Returns the part of each budget that is left. Raises StoreError."""
        now_hours = self._wall() / HOUR_S
        this = int(now_hours)
        used: dict[int, Counter[str]] = {}
        for hour in range(this - HOURS + 1, this + 1):
            rows = await self._book.asked(UsageAsked(hour, hour + 1, frozenset({"tenant", "key"})))
            if len(rows) > USAGE_MAX:
                logger.warning("the ledger of use has more than %d rows of an hour: budgets miss some", USAGE_MAX)
            its: Counter[str] = Counter()
            used[hour] = its
            for row in rows:
                tokens = row.prompt_tokens + row.completion_tokens + row.estimated_tokens
                its[row.tenant] += tokens
                its[own_account(row.tenant, "key", row.key)] += tokens
                its[own_account(row.tenant, "model", row.model)] += tokens
        return {
            name: left_by({hour: its[name] for hour, its in used.items()}, most, now_hours)
            for name, most in budgets.items()
        }


def left_by(used: Mapping[int, int], budget: int, now_hours: float) -> float:
    """Returns the part that is left at `now_hours` of a budget for a day, by the tokens `used` in each hour."""
    level = 0.0
    for hour in range(int(now_hours) - HOURS + 1, int(now_hours) + 1):
        elapsed = min(1.0, now_hours - hour)
        level = min(1.0, level + elapsed / DAY_HOURS)
        level = max(0.0, level - used.get(hour, 0) / budget)
    return level
