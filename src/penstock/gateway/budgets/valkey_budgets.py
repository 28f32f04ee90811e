"""Budgets in Valkey, or in Redis: a bucket for each tenant, which all gateways charge and which refills by itself.

One script for all that one gateway has to say: it charges what was used there and answers with what is left. Said is
how much in all, and the store remembers what each said last: a word that was answered to nobody, and is said again, is
charged once. A bucket that is not there begins with what the first gateway knows, so an empty store gives nothing anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from redis.exceptions import RedisError

from penstock.gateway.elect.valkey_hash import client_of, explained

REMEMBERED_S: Final = 86_400.0  # what a gateway said last
HEARD_S: Final = 10.0  # a gateway that said nothing for so long is none of those that share
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
    """What one tenant used here since the last time, of the budget of one period."""

    tenant: str
    period_s: float
    size: float
    used: float
    taken: float  #: in all
    left: float  #: as is known here, what was used included


class ValkeyBudgets:
    """Two keys of one server."""

    def __init__(self, url: str, key: str, *, id_: str, ca_file: str | None = None) -> None:
        """ValueError: the URL is none."""
        self.where = f"{key}:budgets in Valkey"
        self._keys = (f"{key}:budgets", f"{key}:budgets:gateways", f"{key}:budgets:said:{id_}")
        self._id = id_
        self._client: Any = client_of(url, ca_file)

    async def told(self, uses: Sequence[Use]) -> tuple[int, list[float]]:
        """Charge `uses`; returns how many gateways share, and what is left of each. Raises BudgetsError."""
        given: list[object] = [self._id, int(HEARD_S * 1000), int(REMEMBERED_S * 1000)]
        for use in uses:
            given += [f"{use.tenant} {use.period_s:g}", use.size, use.period_s * 1000, use.used, use.taken, use.left]
        try:
            gateways, *left = await self._client.eval(SCRIPT, len(self._keys), *self._keys, *given)
        except (RedisError, OSError) as error:
            raise BudgetsError(explained(error)) from None
        return int(gateways), [float(each) for each in left]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
