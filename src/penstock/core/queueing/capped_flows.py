"""Flows of tenants, keys and models that run as many requests as they may: passed over until one of those ends.

A tenant's flow is capped as a whole. Requests whose key or model has limits of its own have flows of their own within
the tenant's (`gateway/identity/own_limits.py`), so such a flow is capped alone.

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
        self.flows: dict[str, list[tuple[QueueTree, Node]]] = {}  # by account

    def cap(self, entry: Entry) -> bool:
        """Exclude the flows of the accounts of `entry` that are at their limit, until one of their leases ends.

        Returns False if others share the flow: then skip entry by entry.
        """
        capped = False
        for name in entry.accounts:
            if self._quotas.at_limit((name,)):
                node = self._of_tenant(entry) if name == entry.account else self._own(entry)
                if node is None:
                    continue
                capped = True
                if not node.capped:
                    tree = self._queues.bands[entry.band].tree
                    tree.cap(node)
                    self.found += 1
                    self.flows.setdefault(name, []).append((tree, node))
        return capped

    def _of_tenant(self, entry: Entry) -> Node | None:
        """Returns the flow of a request's tenant or part; None if others share it."""
        if self._tenant_level is None:
            return None
        path: list[Node] = []
        node = entry.node
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[-1 - self._tenant_level] if len(path) > self._tenant_level else None

    def _own(self, entry: Entry) -> Node | None:
        """Returns the innermost flow, in which all requests have the same accounts; None if there are no flows."""
        node = entry.node
        return None if node.parent is None else node

    def uncap(self, account: str) -> None:
        """Give the flows of `account` their turn back: it may run more again."""
        for tree, node in self.flows.pop(account, ()):
            tree.uncap(node)

    def uncap_all(self) -> None:
        """Give all flows their turn back, because limits may have changed. Which to cap is found out again."""
        for account in list(self.flows):
            self.uncap(account)

    def head(self, band: Band, models: list[str]) -> Entry | None:
        """Returns the next entry in fair order that may run, or None.

        Flows of tenants that run as many requests as they may are capped when they are met here.
        """
        head = band.tree.head(models)
        while head is not None and self._quotas.at_limit(head.accounts) and self.cap(head):
            head = band.tree.head(models)
        return head
