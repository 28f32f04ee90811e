"""Budgets in Valkey, or in Redis: a bucket for each tenant, which all gateways charge and which refills by itself.

One script per report: it charges the use and returns the remainders. Reports are cumulative, and the store remembers
each gateway's last one: a repeated report is charged once. A missing bucket starts with the first gateway's balance, so
an empty store refills nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.gateway.elect.valkey_hash import FAILURES, client_of, explained

REMEMBERED_S: Final = 86_400.0  # a gateway's last report
HEARD_S: Final = 10.0  # a gateway silent for so long no longer shares
SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[2])
local answer = {redis.call('ZCARD', KEYS[2])}
for at = 4, #ARGV, 6 do
  local size, used, left = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 5])
  local said = redis.call('HGET', KEYS[3], ARGV[at])
  if said then used = tonumber(ARGV[at + 4]) - said end
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 4])
  local known = redis.call('HGET', KEYS[1], ARGV[at])
  if known then
    local level, when = string.match(known, '^(%S+) (%S+)$')
    left = math.min(size, level + math.max(0, now - when) * size / tonumber(ARGV[at + 2])) - used
  end
  redis.call('HSET', KEYS[1], ARGV[at], string.format('%.3f', left) .. ' ' .. now)
  answer[#answer + 1] = string.format('%.3f', left)
end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return answer
"""


class BudgetsError(Exception):
    """The budgets can't be reached. The message is for the operator."""


class Use(msgspec.Struct, frozen=True):
    """One tenant's use since the last report, of the budget of one period."""

    tenant: str
    period_s: float
    size: float
    used: float
    taken: float  #: in all
    left: float  #: as known here, including this use


class ValkeyBudgets:
    """Two keys of one server."""

    def __init__(self, url: str, key: str, *, id_: str, ca_file: str | None = None) -> None:
        """ValueError: the URL is none."""
        self.where = f"{key}:budgets in Valkey"
        self._keys = (f"{key}:budgets", f"{key}:budgets:gateways", f"{key}:budgets:said:{id_}")
        self._id = id_
        self._client: Any = client_of(url, ca_file)

    async def told(self, uses: Sequence[Use]) -> tuple[int, list[float]]:
        """Charge `uses`; returns the number of sharing gateways, and the remainder of each. Raises BudgetsError."""
        given: list[object] = [self._id, int(HEARD_S * 1000), int(REMEMBERED_S * 1000)]
        for use in uses:
            given += [f"{use.tenant} {use.period_s:g}", use.size, use.period_s * 1000, use.used, use.taken, use.left]
        try:
            gateways, *left = await self._client.eval(SCRIPT, len(self._keys), *self._keys, *given)
            return int(gateways), [float(each) for each in left]
        except (*FAILURES, ValueError) as error:
            raise BudgetsError(explained(error)) from None

    async def close(self) -> None:
        await self._client.aclose()
