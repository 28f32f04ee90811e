"""Limits of a tenant, and of its keys and models, independent of its fair share.

`running` holds: the tenant's flows wait while that many of its requests are at the engines; 0 is how an operator pauses
a tenant. The others refuse: `queued`, `queued_bytes` and `queued_tokens` bound the queue, `requests_per_minute` and
`tokens_per_minute` are token buckets of a minute's worth, `tokens_per_day` is one of a day's. A request reserves its
estimated tokens on arrival and settles the difference when the truth is known, so an account may go into debt and then
refuses until it is paid off; a request larger than all that a bucket holds is let in when the bucket is full, and
leaves that debt. Promised and tested: from any moment on, admitted work stays within rate × time + one bucket (+ the
part of the last request beyond a bucket), and the final charge is the actual use.

A request counts in several accounts if its key or its model within the tenant has limits: it has to be within all of
them. The names of these begin with the tenant's and a line break, which no tenant's name has.

Only accounts that have limits are known here, so memory is bounded by the settings and all others cost one look-up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from penstock.core.queueing.entry import Entry
from penstock.core.values.lifecycle import State
from penstock.core.values.rows import Allowance, Left, LimitReached, TenantSnapshot
from penstock.core.values.settings import Limits

MINUTE_S = 60.0
DAY_S = 86_400.0
SHOWN_MAX = 50  # tenants in a snapshot; the others are counted
BUDGETS_MAX = 300  # rates whose spent share is told, three of each tenant
FOUND_MAX = 4096  # sets of accounts, whose records are kept

Accounts = tuple[str, ...]  # of one request: its tenant's or part's, then those of its key and model


class TokenBucket:
    """An allowance that refills at a steady rate, up to the worth of one period."""

    __slots__ = ("_at_s", "_level", "_rate_per_s", "size")

    def __init__(self, per_period: int, period_s: float = MINUTE_S) -> None:
        assert per_period > 0
        self.size = float(per_period)
        self._rate_per_s = per_period / period_s
        self._level = self.size  # as of `_at_s`
        self._at_s: float | None = None

    def left(self, now: float) -> float:
        """Returns how much can be taken now; negative while there is a debt."""
        if self._at_s is None:
            return self.size
        return min(self.size, self._level + self._rate_per_s * max(0.0, now - self._at_s))

    def wait_s(self, amount: float, now: float) -> float:
        """Returns the seconds until `amount` can be taken; 0 if it can be now."""
        missing = min(amount, self.size) - self.left(now)
        return missing / self._rate_per_s if missing > self.size * 1e-9 else 0.0  # less is rounding, not debt

    def allowance(self, now: float) -> Left:
        """Returns the limit, its remainder, and the seconds until it is full again, for headers."""
        left = self.left(now)
        return Left(round(self.size), max(0, int(left + 1e-9)), (self.size - left) / self._rate_per_s)

    def take(self, amount: float, now: float) -> None:
        """Charge `amount`, negative to give back. Nothing is kept beyond a full bucket."""
        self._level = min(self.size, self.left(now) - amount)
        self._at_s = now


def own_account(tenant: str, kind: Literal["key", "model"], name: str) -> str:
    """Returns the name for limits of one key or model within a tenant (or part)."""
    return f"{tenant}\n{kind}\n{name}"


def whose(account: str) -> tuple[str, str, str]:
    """Returns the tenant (or part) of an account, and `key` or `model` with its name, or two empty texts."""
    tenant, _, own = account.partition("\n")
    kind, _, name = own.partition("\n")
    return tenant, kind, name


class _Account:
    """The current use of one tenant, or of one of its keys or models."""

    __slots__ = (
        "limits", "name", "own", "queued", "queued_bytes", "queued_tokens", "rated", "requests", "running",
        "token_buckets", "tokens", "tokens_day",
    )  # fmt: skip

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.own = name if "\n" in name else ""  # of a key or a model
        self.limits = limits
        self.running = 0
        self.queued = 0
        self.queued_bytes = 0
        self.queued_tokens = 0
        self.requests = _bucket(limits.requests_per_minute, MINUTE_S)
        self.tokens = _bucket(limits.tokens_per_minute, MINUTE_S)
        self.tokens_day = _bucket(limits.tokens_per_day, DAY_S)
        self.token_buckets = [bucket for bucket in (self.tokens, self.tokens_day) if bucket is not None]
        self.rated = self.requests is not None or bool(self.token_buckets)

    def take_over(self, before: _Account, now: float) -> None:
        """Start with what was spent under earlier limits. A lower limit adds no debt to one that there was."""
        for ours, theirs in (
            (self.requests, before.requests),
            (self.tokens, before.tokens),
            (self.tokens_day, before.tokens_day),
        ):
            if ours is not None and theirs is not None:
                left = theirs.left(now)
                ours.take(min(theirs.size - left, ours.size - min(left, 0.0)), now)


class Quotas:
    """The accounts of all tenants, keys and models that have limits. All others are unlimited."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._set(limits)

    def _set(self, limits: Mapping[str, Limits]) -> None:
        self._accounts = {name: _Account(name, its) for name, its in limits.items() if its != Limits()}
        self.any = bool(self._accounts)  #: whether anybody has limits; otherwise most callers ask no further
        self._found: dict[Accounts, tuple[list[_Account], list[_Account]]] = {}  # by `_held` and `_rated`
        self.capped = frozenset([name for name, its in limits.items() if its.running is not None])

    # --- rates: refused on arrival, settled at the end ------------------------------------------------------

    def admit(self, accounts: Accounts, *, tokens: int, now: float) -> LimitReached | None:
        """Charge a request and its estimated tokens; None if both were had.

        If either is too much in any account, nothing is charged, and the limit that takes longest is returned.
        """
        if not self.any or not (held := self._rated(accounts)):
            return None
        waits = [
            LimitReached(limit, round(bucket.size), wait_s, account.own)
            for account in held
            for limit, bucket, amount in (
                ("requests_per_minute", account.requests, 1),
                ("tokens_per_minute", account.tokens, tokens),
                ("tokens_per_day", account.tokens_day, tokens),
            )
            if bucket is not None and (wait_s := bucket.wait_s(amount, now)) > 0.0
        ]
        if waits:
            return max(waits, key=lambda reached: reached.retry_after_s or 0.0)
        for account in held:
            if account.requests is not None:
                account.requests.take(1, now)
            for bucket in account.token_buckets:
                bucket.take(tokens, now)
        return None

    def refund(self, accounts: Accounts, *, tokens: int, now: float) -> None:
        """Refund an admitted request that was refused after all: `tokens` as in `admit`."""
        self.spent(accounts, requests=-1, tokens=-tokens, now=now)

    def settle(self, accounts: Accounts, *, reserved: int, used: int, now: float) -> None:
        """Replace the `reserved` tokens of an admitted request by those `used`, which may be more. Once per request."""
        for account in self._rated(accounts) if self.any else ():
            for bucket in account.token_buckets:
                bucket.take(used - reserved, now)

    def spent(self, accounts: Accounts, *, requests: float, tokens: float, now: float) -> None:
        """Charge use without asking, because it was admitted elsewhere; negative to give back."""
        for account in self._held(accounts):
            if account.requests is not None:
                account.requests.take(requests, now)
            for bucket in account.token_buckets:
                bucket.take(tokens, now)

    def day(self, name: str) -> TokenBucket | None:
        """Returns the budget for a day of an account; None: it has none."""
        account = self._accounts.get(name)
        return None if account is None else account.tokens_day

    # --- other limits ---------------------------------------------------------------------------------------

    def reconfigured(self, limits: Mapping[str, Limits], entries: Iterable[Entry], now: float) -> None:
        """Use other `limits` from now on, also for present requests. What was spent stays spent."""
        before = self._accounts
        self._set(limits)
        for name, account in self._accounts.items():
            old = before.get(name)
            if old is not None:
                account.take_over(old, now)
        for entry in entries:
            for held in self._held(entry.accounts):
                if entry.lease is not None:
                    held.running += 1
                if entry.state is State.WAITING:
                    held.queued += 1
                    held.queued_bytes += entry.request.body_bytes
                    held.queued_tokens += entry.prompt_tokens

    # --- queued ---------------------------------------------------------------------------------------------

    def queued(self, accounts: Accounts, body_bytes: int, prompt_tokens: int) -> None:
        """Count a request that entered the queue against the limits of its accounts."""
        for account in self._held(accounts) if self.any else ():
            account.queued += 1
            account.queued_bytes += body_bytes
            account.queued_tokens += prompt_tokens

    def unqueued(self, accounts: Accounts, body_bytes: int, prompt_tokens: int) -> None:
        """Count a request out that left the queue, wherever to."""
        for account in self._held(accounts) if self.any else ():
            assert account.queued > 0
            assert account.queued_bytes >= body_bytes
            account.queued -= 1
            account.queued_bytes -= body_bytes
            account.queued_tokens -= prompt_tokens

    def over_queued(self, accounts: Accounts) -> LimitReached | None:
        """Returns the exceeded bound of the queue, or None.

        Asked after a newcomer was queued and could not go on at once.
        """
        for account in self._held(accounts):
            limits, name = account.limits, account.own
            if limits.queued is not None and account.queued > limits.queued:
                return LimitReached("queued", limits.queued, account=name)
            if limits.queued_bytes is not None and account.queued_bytes > limits.queued_bytes:
                return LimitReached("queued_bytes", limits.queued_bytes, account=name)
            if limits.queued_tokens is not None and account.queued_tokens > limits.queued_tokens:
                return LimitReached("queued_tokens", limits.queued_tokens, account=name)
        return None

    def room(self, tenant: str, now: float) -> float:
        """Returns how many more requests of the tenant may wait; infinity without a limit."""
        account = self._accounts.get(tenant)
        if account is None:
            return math.inf
        limits, room = account.limits, math.inf
        if limits.queued is not None:
            room = float(limits.queued - account.queued)
        if account.requests is not None:
            room = min(room, account.requests.left(now))
        if limits.running == 0 or any(bucket.left(now) < 1.0 for bucket in account.token_buckets):
            room = 0.0
        return max(0.0, room)

    # --- running --------------------------------------------------------------------------------------------

    def at_limit(self, accounts: Accounts) -> bool:
        """True if none of the requests of these accounts may be sent for now, because one runs as many as it may."""
        return bool(self.capped) and self.full(accounts) is not None

    def full(self, accounts: Accounts) -> LimitReached | None:
        """Returns the limit of running requests of the first account that is at it, or None."""
        for account in self._held(accounts):
            most = account.limits.running
            if most is not None and account.running >= most:
                return LimitReached("running", most, account=account.own)
        return None

    def limits_of(self, name: str) -> Limits | None:
        """Returns the limits of an account; None: it has none."""
        account = self._accounts.get(name)
        return None if account is None else account.limits

    def paused(self, tenant: str) -> bool:
        """Whether none of its requests is sent, however few run."""
        account = self._accounts.get(tenant)
        return account is not None and account.limits.running == 0

    def any_paused(self, accounts: Accounts) -> bool:
        """Whether an operator paused one of these accounts."""
        return bool(self.capped) and any(map(self.paused, accounts))

    def started(self, accounts: Accounts, *, beyond: bool = False) -> bool:
        """Count a request that was sent. Returns True if it was the last one for now: cap its flows.

        `beyond`: it was sent elsewhere, so maybe beyond the limit.
        """
        if not self.any or not (held := self._held(accounts)):
            return False
        assert beyond or not self.at_limit(accounts), "an account at its limit is sent nothing"
        for account in held:
            account.running += 1
        return self.at_limit(accounts)

    def ended(self, accounts: Accounts) -> list[str]:
        """Count a request out that is no longer at an engine. Returns the accounts whose flows need no cap any more."""
        freed: list[str] = []
        for account in self._held(accounts) if self.any else ():
            assert account.running > 0
            account.running -= 1
            # A limit may have fallen below the running requests.
            if account.limits.running is not None and account.running == account.limits.running - 1:
                freed.append(account.name)
        return freed

    def allowance(self, accounts: Accounts, now: float) -> Allowance | None:
        """Returns the least remainder of each rate over the accounts, if any has rates."""
        held = self._rated(accounts)
        if not held:
            return None
        found: list[Left | None] = []
        for buckets in zip(*[(a.requests, a.tokens, a.tokens_day) for a in held], strict=True):
            lefts = [bucket.allowance(now) for bucket in buckets if bucket is not None]
            found.append(min(lefts, key=lambda left: left.remaining) if lefts else None)
        return Allowance(*found) if any(left is not None for left in found) else None

    def _held(self, accounts: Accounts) -> list[_Account]:
        """Returns those of the accounts that have limits."""
        return (self._found.get(accounts) or self._find(accounts))[0]

    def _rated(self, accounts: Accounts) -> list[_Account]:
        """Returns those of them that limit a rate."""
        return (self._found.get(accounts) or self._find(accounts))[1]

    def _find(self, accounts: Accounts) -> tuple[list[_Account], list[_Account]]:
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        held = [self._accounts[name] for name in accounts if name in self._accounts]
        found = self._found[accounts] = held, [account for account in held if account.rated]
        return found

    # --- the picture ----------------------------------------------------------------------------------------

    def paused_names(self) -> list[str]:
        """Returns the tenants (or parts) none of whose requests is sent."""
        return [name for name in self.capped if self.paused(name)]

    def __len__(self) -> int:
        """How many tenants have limits."""
        return sum(["\n" not in name for name in self._accounts])

    def snapshot(self, now: float, *, most: int = SHOWN_MAX, own: bool = False) -> list[TenantSnapshot]:
        """Returns at most `most` tenants, those first of which most waits, then most runs.

        `own`: also the accounts of keys and models.
        """
        accounts = [item for item in self._accounts.items() if own or "\n" not in item[0]]
        shown = heapq.nlargest(most, accounts, key=lambda item: (item[1].queued, item[1].running))
        return [
            TenantSnapshot(
                name=name,
                limits=account.limits,
                running=account.running,
                queued=account.queued,
                queued_bytes=account.queued_bytes,
                queued_tokens=account.queued_tokens,
                requests_left=None if account.requests is None else account.requests.left(now),
                tokens_left=None if account.tokens is None else account.tokens.left(now),
                tokens_day_left=None if account.tokens_day is None else account.tokens_day.left(now),
            )
            for name, account in shown
        ]

    def budgets(self, now: float, *, most: int = BUDGETS_MAX) -> list[tuple[tuple[str, str], float]]:
        """Returns tenant, limit and spent share of the rates that are spent most: 1 is all of it, more is debt."""
        limits = ("requests_per_minute", "tokens_per_minute", "tokens_per_day")
        rows = [
            ((account.name, limit), 1.0 - bucket.left(now) / bucket.size)
            for account in self._accounts.values()
            for limit, bucket in zip(limits, (account.requests, account.tokens, account.tokens_day), strict=True)
            if bucket is not None and not account.own
        ]
        return heapq.nlargest(most, rows, key=lambda row: row[1])


def _bucket(per_period: int | None, period_s: float) -> TokenBucket | None:
    return None if per_period is None else TokenBucket(per_period, period_s)
