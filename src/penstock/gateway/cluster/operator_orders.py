"""Operators' orders at the gateway that decides, which the next decider has to follow as well.

The first process of each gateway receives them and follows them while it stands by, so the next decider knows them
already; a new gateway receives them when it becomes an edge, and reports its own. They are sent whole, with a number
that grows with each change and with each decider: the highest counts. Orders to a gateway that decides alone are its
own, and end when it joins the group again.

These are pauses and drains of models, tenants, sessions and endpoints, other limits and weights of tenants, and removed
endpoints. Endpoints that were added are not among them, because their keys do not travel between machines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.gateway.admin.tenant_orders import ORDERED_MAX, Order, TenantOrders
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.driver import Driver
from penstock.share.messages import OperatorsSaid

logger = logging.getLogger(__name__)

NAMES_MAX: Final = 10_000  # of models and endpoints
EPOCH_BITS: Final = 32


class Said(msgspec.Struct, frozen=True):
    """All orders that hold."""

    tenants: dict[str, dict[str, Order]] = {}
    paused: list[str | None] = []  #: models; None: all
    drained: list[str | None] = []
    endpoints_drained: list[str] = []
    endpoints_removed: list[str] = []
    sessions_paused: list[tuple[str, str]] = []  #: tenants and names

    @property
    def is_bounded(self) -> bool:
        """Returns False for more than any gateway can have received."""
        names: list[list[str | None] | list[str]] = [self.paused, self.drained]
        names += [self.endpoints_drained, self.endpoints_removed]
        count = sum(len(some) for some in names) + len(self.sessions_paused)
        return len(self.tenants) <= ORDERED_MAX and count <= NAMES_MAX


class OperatorOrders:
    """The orders in force here."""

    def __init__(self, driver: Driver, endpoints: EndpointRegistry, orders: TenantOrders) -> None:
        self._driver = driver
        self._endpoints = endpoints
        self._orders = orders
        self._said = Said()
        self.message = OperatorsSaid(0, msgspec.json.encode(self._said))  #: for gateways that do not know it

    def look(self, epoch: int) -> None:
        """Number the changes since the last call; for the deciding gateway, in this epoch."""
        said = self._now()
        if said != self._said:
            self._said = said
            number = max(self.message.number, epoch << EPOCH_BITS) + 1
            self.message = OperatorsSaid(number, msgspec.json.encode(said))

    def heard(self, message: OperatorsSaid) -> None:
        """Follow another gateway's orders, if later."""
        if message.number <= self.message.number:
            return
        try:
            said = msgspec.json.decode(message.document, type=Said)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("share: cannot read operators' orders: %s", error)
            return
        if not said.is_bounded:
            logger.warning("share: too many operators' orders received")
            return
        self.message = message
        self._go_by(said)

    def stand_by(self) -> None:
        """Another gateway decides: orders to this one alone have ended."""
        if self._now() != self._said:
            self._go_by(msgspec.json.decode(self.message.document, type=Said))

    def _now(self) -> Said:
        paused, drained = self._driver.scheduler.stopped()
        endpoints_drained, endpoints_removed = self._endpoints.by_hand()
        tenants = {name: dict(self._orders.of(name)) for name in self._orders}
        sessions_paused = self._driver.scheduler.stopped_sessions()
        return Said(tenants, paused, drained, endpoints_drained, endpoints_removed, sessions_paused)

    def _go_by(self, said: Said) -> None:
        driver, before = self._driver, self._now()
        self._stop(said.paused, said.drained, before)
        if said.tenants != before.tenants:
            self._orders.replace(said.tenants)
            driver.tell(driver.scheduler.tenants_limited(self._orders.limits(), now=driver.now()))
            driver.tell(driver.scheduler.tenants_weighed(self._orders.weights(), now=driver.now()))
        scheduler, now = driver.scheduler, driver.now()
        for tenant, name in [one for one in said.sessions_paused if one not in before.sessions_paused]:
            driver.tell(scheduler.session_paused(tenant, name, now=now))
        for tenant, name in [one for one in before.sessions_paused if one not in said.sessions_paused]:
            driver.tell(scheduler.session_resumed(tenant, name, now=now))
        self._endpoints.go_by_hand(drained=said.endpoints_drained, removed=said.endpoints_removed)
        self._said = self._now()  # as far as its names are known here

    def _stop(self, paused: Iterable[str | None], drained: Iterable[str | None], before: Said) -> None:
        """Stop these models, and no others: new ones first, so that nothing slips through in between."""
        driver, now = self._driver, self._driver.now()
        for model in [model for model in paused if model not in before.paused]:
            driver.tell(driver.scheduler.paused(model, now=now))
        for model in [model for model in drained if model not in before.drained]:
            driver.tell(driver.scheduler.drained(model, now=now))
        over = {*before.paused} - {*paused} | {*before.drained} - {*drained}
        if not over:
            return
        for model in over:
            driver.tell(driver.scheduler.resumed(model, now=now))
        for model in paused:  # to resume ends both, and of all models every stop there is
            driver.tell(driver.scheduler.paused(model, now=now))
        for model in drained:
            driver.tell(driver.scheduler.drained(model, now=now))
