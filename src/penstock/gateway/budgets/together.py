"""One budget of tokens per tenant, shared by independent groups: reported every second, never queried by a request.

Everyday picture: an account that several people spend from, each with a slip of paper. Every second the spending is
reported to the bank, and the balance noted on a slip. So for a second each may spend the balance on its slip: a budget
may be overdrawn by that, but the bank charges it, so the next minute has less.

While the bank is closed, each goes on with the part of the budget that it used of late, among all. A twentieth of the
budget is divided equally beforehand: otherwise a gateway with an idle tenant would have nothing to give.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from penstock import clock
from penstock.core.scheduler import Scheduler
from penstock.core.values.rows import Budget
from penstock.gateway.budgets.valkey_budgets import BudgetsError, Use
from penstock.gateway.process import cancel

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
ANSWER_S: Final = 1.0
APART_S: Final = 3.0  # without an answer
RECENT_S: Final = 60.0  # use of so long ago counts a third
EVEN: Final = 0.05  # of a budget, divided evenly
USES_MAX: Final = 1_000  # in one report; the others come with the next


class Bank(Protocol):
    """The store of the budgets."""

    where: str

    async def told(self, uses: list[Use]) -> tuple[int, list[float]]:
        """Charge `uses`; returns the number of sharing gateways, and the remainder of each. Raises BudgetsError."""

    async def close(self) -> None:
        """Let go of connections."""


class _Shared:
    """One budget's state."""

    def __init__(self, at_s: float) -> None:
        self.told = 0.0  # of the use here: the part known to the bank
        self.own = self.others = 0.0  # used recently
        self.used_s = -math.inf  # when it was used here last
        self.at_s = at_s
        self.apart = False  # the bucket here is a part


class Together:
    """The budgets of one gateway's tenants, as long as it runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        bank: Bank,
        *,
        decides: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = clock.now,
    ) -> None:
        """While `decides` is False, another gateway of the group reports for all of it."""
        self._scheduler = scheduler
        self._bank = bank
        self._decides = decides
        self._now = now
        self._shared: dict[tuple[str, float], _Shared] = {}
        self._heard_s = now()
        self._gateways = 1
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None  #: why the others can't be heard; None: they are

    @property
    def apart(self) -> bool:
        """Whether this gateway goes on with its part."""
        return self.trouble is not None and self._now() >= self._heard_s + APART_S

    def why_apart(self) -> str | None:
        """Returns, in words, why a part of each budget is used here; None: it is not."""
        return f"budgets can't be shared with other groups: {self.trouble}" if self.apart else None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        await cancel(self._task, wait_s=ANSWER_S)
        await self.tell()
        await self._bank.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.tell()
            except Exception:
                logger.exception("budgets")

    async def tell(self) -> None:
        """Report the use here, and read the remainders."""
        if not self._decides():
            self._heard_s, self.trouble = self._now(), None
            return
        now = self._now()
        budgets = {(budget.tenant, budget.period_s): budget for budget in self._scheduler.budgets(now=now)}
        for gone in self._shared.keys() - budgets.keys():
            del self._shared[gone]
        uses = self._uses(budgets, now)
        try:
            async with asyncio.timeout(ANSWER_S):
                self._gateways, left = await self._bank.told(uses)
        except (BudgetsError, TimeoutError) as error:
            self._unheard(f"{self._bank.where}: {error or f'no answer within {ANSWER_S:g} s'}", budgets)
            return
        if self.trouble is not None:
            logger.info("budgets: %s answers", self._bank.where)
        self.trouble, self._heard_s = None, self._now()
        taken = {(budget.tenant, budget.period_s): budget.taken for budget in self._scheduler.budgets(now=self._now())}
        for use, its in zip(uses, left, strict=True):
            key = (use.tenant, use.period_s)
            shared = self._shared[key]
            shared.told, shared.apart = use.taken, False
            shared.others += max(0.0, use.left - its)
            meanwhile = taken.get(key, shared.told) - shared.told
            self._scheduler.budget_shared(*key, its - meanwhile, now=self._now())

    def _uses(self, budgets: dict[tuple[str, float], Budget], now: float) -> list[Use]:
        """Returns the use since the last report, least recently reported first."""
        due: list[tuple[float, Use]] = []
        for key, budget in budgets.items():
            shared = self._shared.get(key)
            if shared is None:
                if not budget.taken:
                    continue  # unused here
                shared = self._shared[key] = _Shared(now)
            used = budget.taken - shared.told
            if used:
                shared.used_s = now
            elif now > shared.used_s + RECENT_S and not shared.apart:
                continue  # it is asked for again with the next use
            use = Use(budget.tenant, budget.period_s, budget.size, used, budget.taken, budget.left)
            due.append((shared.at_s, use))
        due.sort(key=lambda one: one[0])
        uses = [use for _, use in due[:USES_MAX]]
        for use in uses:
            shared = self._shared[use.tenant, use.period_s]
            keeps = math.exp((shared.at_s - now) / RECENT_S)
            shared.own = shared.own * keeps + max(0.0, use.used)
            shared.others *= keeps
            shared.at_s = now
        return uses

    def _unheard(self, why: str, budgets: dict[tuple[str, float], Budget]) -> None:
        if self.trouble is None:
            logger.warning("budgets: %s; after %g s each gateway limits tenants to its own part", why, APART_S)
        self.trouble = why
        if not self.apart:
            return
        for key, budget in budgets.items():
            shared = self._shared.setdefault(key, _Shared(self._now()))
            shared.apart = True
            self._scheduler.budget_apart(*key, self._part(shared, budget), now=self._now())

    def _part(self, shared: _Shared, budget: Budget) -> float:
        """The part of a budget that is this gateway's. Those of all gateways make one."""
        even = budget.size * EVEN
        return (shared.own + even) / (shared.own + shared.others + even * self._gateways)
