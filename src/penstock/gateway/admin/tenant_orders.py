"""Operators' pauses, limits and weights of tenants at run time, beside those of the settings.

An order pauses a tenant, or replaces its weight or one of its limits, until it is taken back or until the next
reload. The scheduler gets the result, so it knows no difference; operators see both. Nothing is stored: a restart ends
all orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.config.model import Settings
from penstock.config.sections.tenancy import OwnLimits
from penstock.core.values.settings import Limits
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.identity.caller import PART_OF
from penstock.gateway.identity.own_limits import all_limits, made_limits

if TYPE_CHECKING:
    from penstock.batch.values import MadeKey

ORDERED_MAX = 1_000  # tenants with orders
PAUSED = "paused"
WEIGHT = "weight"
LIMITS = tuple(OwnLimits.model_fields)


class TooManyOrderedError(ValueError):
    """So many tenants have orders that there is no room for another one."""


class Order(msgspec.Struct, frozen=True):
    """A pause, the weight, or one limit, of one tenant."""

    value: int | float | None = None  #: of a limit or the weight; None: no such limit
    until_reload: bool = False  #: else until it is taken back


class TenantOrders:
    """All orders, by tenant and key: `paused`, `weight`, or a limit's name."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._orders: dict[str, dict[str, Order]] = {}
        self._made: dict[str, Limits] = {}  # limits of issued keys, by account
        self.file: dict[str, Limits] = {}  #: limits of the settings, by account
        self.weighs = True  #: tenants are a level of fairness, so their weights mean something

    def follow(self, settings: Settings) -> None:
        """Go by other settings; orders until the next reload end."""
        self.file = all_limits(settings)
        self.weighs = "tenant" in settings.fairness.levels
        ended = [(name, key) for name, its in self._orders.items() for key, order in its.items() if order.until_reload]
        for name, key in ended:
            self._forget(name, key)
            self._events.note("operator", f"tenant {name}: the order for `{key}` ended with the reload")

    def made_keys(self, keys: Iterable[MadeKey]) -> bool:
        """Go by the limits of these issued keys. Returns True if any changed."""
        before, self._made = self._made, made_limits(keys)
        return self._made != before

    def of(self, name: str) -> Mapping[str, Order]:
        return self._orders.get(name, {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def say(self, name: str, orders: Mapping[str, Order]) -> None:
        """Add orders for a tenant. Raises `TooManyOrderedError` if that is one tenant too many."""
        if name not in self._orders and len(self._orders) >= ORDERED_MAX:
            raise TooManyOrderedError(f"{ORDERED_MAX} tenants are paused or limited by operators already")
        self._orders.setdefault(name, {}).update(orders)

    def replace(self, orders: Mapping[str, Mapping[str, Order]]) -> None:
        self._orders = {name: dict(its) for name, its in orders.items()}

    def take_back(self, name: str, *keys: str) -> None:
        for key in keys:
            self._forget(name, key)

    def limits(self) -> dict[str, Limits]:
        """The limits in force of each tenant that has any: the order's if there is one, otherwise the settings'."""
        found = {**self._made, **self.file}
        for name in self._orders:
            found[name] = self.limits_of(name)
        return found

    def limits_of(self, name: str) -> Limits:
        """The limits in force of one tenant; a paused one runs nothing."""
        orders = self.of(name)
        said: dict[str, Any] = {key: order.value for key, order in orders.items() if key not in (PAUSED, WEIGHT)}
        if PAUSED in orders:
            said["running"] = 0
        return msgspec.structs.replace(self.file.get(name, Limits()), **said)

    def weights(self) -> dict[str, float]:
        """The weights that operators set, by the names of the fairness tree: also of a tenant that is divided there."""
        found = {name: float(order.value or 1.0) for name in self._orders if (order := self._orders[name].get(WEIGHT))}
        return found | {PART_OF.format(name): weight for name, weight in found.items()}

    def _forget(self, name: str, key: str) -> None:
        orders = self._orders.get(name, {})
        orders.pop(key, None)
        if not orders:
            self._orders.pop(name, None)
