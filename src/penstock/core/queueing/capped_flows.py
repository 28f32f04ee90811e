"""Flows of tenants that run as many requests as they may: they are passed over until one of those ends.

A flow is capped when such a tenant reaches the head of the fair order, or arrives; so unreached ones cost nothing.
"""

from __future__ import annotations

from penstock.core.queueing.band import Band
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, QueueTree
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Quotas

CAPPED_MAX = 1_024  # entries inspected to find one that may be sent, among capped ones


class CappedFlows:
    """The capped flows, and the next in fair order without them."""

    def __init__(self, queues: Queues, quotas: Quotas, *, tenant_level: int | None) -> None:
        self._queues = queues
        self._quotas = quotas
        self._tenant_level = tenant_level
        self.found = 0  #: flows that were capped so far
        self.flows: dict[str, list[tuple[QueueTree, Node]]] = {}  # by tenant

    def cap(self, entry: Entry) -> bool:
        """Exclude the tenant's flow until one of its leases ends.

        Returns False if other tenants share the flow: then skip entry by entry.
        """
        if self._tenant_level is None:
            return False
        path: list[Node] = []
        node = entry.node_of()
        while node.parent is not None:
            path.append(node)
            node = node.parent
        if len(path) <= self._tenant_level:
            return False
        own = path[-1 - self._tenant_level]
        if not own.capped:
            tree = self._queues.bands[entry.request.band].tree
            tree.cap(own)
            self.found += 1
            self.flows.setdefault(entry.account, []).append((tree, own))
        return True

    def uncap(self, tenant: str) -> None:
        """Give the flows of `tenant` their turn back: it may run more again."""
        for tree, node in self.flows.pop(tenant, ()):
            tree.uncap(node)

    def uncap_all(self) -> None:
        """Give all flows their turn back, because limits may have changed. Which to cap is found out again."""
        for tenant in list(self.flows):
            self.uncap(tenant)

    def head(self, band: Band, models: list[str]) -> Entry | None:
        """Returns the next entry in fair order that may run, or None.

        Flows of tenants that run as many requests as they may are capped when they are met here.
        """
        head = band.tree.head(models)
        while head is not None and self._quotas.at_limit(head.account) and self.cap(head):
            head = band.tree.head(models)
        return head
