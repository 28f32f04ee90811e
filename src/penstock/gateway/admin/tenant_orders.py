"""What have operators said of tenants while the gateway runs, beside what the settings say?

An order pauses a tenant, or puts another limit in the place of the file's. Each is kept with how long it holds: until
it is taken back, or until the next reload. The scheduler is only told what comes of both, so it knows no difference;
who asks is shown it. Nothing is written anywhere: a restart ends all orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from penstock.config.model import Settings
from penstock.config.sections.tenancy import ANONYMOUS, TenantLimits
from penstock.core.values.settings import Limits
from penstock.gateway.admin.events import EventLog
from penstock.gateway.identity.callers import core_limits

ORDERED_MAX = 1_000  # tenants of which something was said
PAUSED = "paused"
LIMITS = tuple(TenantLimits.model_fields)


class TooManyOrderedError(ValueError):
    """Operators have said something of so many tenants that there is no room for another one."""


class Order(msgspec.Struct, frozen=True):
    """One thing that was said of one tenant: that it is paused, or what one of its limits is."""

    value: int | None = None  #: of a limit; None: no such limit
    until_reload: bool = False  #: else until it is taken back


class TenantOrders:
    """All that was said, by tenant and by what it is about: `paused`, or a limit's name."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._orders: dict[str, dict[str, Order]] = {}
        self.file: dict[str, Limits] = {}  #: what the settings say, where they say anything

    def follow(self, settings: Settings) -> None:
        """Go by other settings, and forget what was said until then."""
        sections = {tenant.name: tenant.limits for tenant in settings.tenants} | {ANONYMOUS: settings.anonymous.limits}
        self.file = {name: limits for name, its in sections.items() if (limits := core_limits(its)) is not None}
        ended = [(name, key) for name, its in self._orders.items() for key, order in its.items() if order.until_reload]
        for name, key in ended:
            self._forget(name, key)
            self._events.note("operator", f"tenant {name}: what was said of `{key}` ended with the reload")

    def of(self, name: str) -> Mapping[str, Order]:
        return self._orders.get(name, {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def say(self, name: str, orders: Mapping[str, Order]) -> None:
        """Add to what was said of a tenant. Raises `TooManyOrderedError` where that is one too many."""
        if name not in self._orders and len(self._orders) >= ORDERED_MAX:
            raise TooManyOrderedError(f"{ORDERED_MAX} tenants are paused or limited by operators already")
        self._orders.setdefault(name, {}).update(orders)

    def replace(self, orders: Mapping[str, Mapping[str, Order]]) -> None:
        """This is what was said, and nothing else."""
        self._orders = {name: dict(its) for name, its in orders.items()}

    def take_back(self, name: str, *keys: str) -> None:
        """What the settings say of these holds again."""
        for key in keys:
            self._forget(name, key)

    def limits(self) -> dict[str, Limits]:
        """What holds for each tenant that has limits: the operators' word where there is one, else the settings'."""
        found = dict(self.file)
        for name in self._orders:
            found[name] = self.limits_of(name)
        return found

    def limits_of(self, name: str) -> Limits:
        """What holds for one tenant; a paused one runs nothing."""
        orders = self.of(name)
        said = {key: order.value for key, order in orders.items() if key != PAUSED}
        if PAUSED in orders:
            said["running"] = 0
        return msgspec.structs.replace(self.file.get(name, Limits()), **said)

    def _forget(self, name: str, key: str) -> None:
        orders = self._orders.get(name, {})
        orders.pop(key, None)
        if not orders:
            self._orders.pop(name, None)
