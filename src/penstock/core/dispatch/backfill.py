"""Requests overtaken by smaller ones that fit, and the room then reserved for them.

Within a turn of the pump passed-over requests are collected; when one is dispatched, all of them count as overtaken.
One that reached the maximum has room reserved: no other request is sent to its endpoints until it fits
(docs/design.md#group-dispatch).

Counting per request is not enough: a flow with few queued requests would restart with each of them, and fall behind
without end. So a flow gets at most that many of its requests ahead of those it overtakes, which is the K * c_max in the
bound of fairness (docs/design.md#fairness).
"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.charges import Charges
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, QueueTree, lead
from penstock.core.values.settings import PASSED_MAX

EPSILON = 1e-9  # of sums of the same costs, made in another order


class Backfill:
    """The passed-over requests of one turn of the pump."""

    def __init__(self, charges: Charges) -> None:
        self._charges = charges
        self.passed: list[Entry] = []  # in this turn: requests that did not fit
        self.held: dict[Node, None] = {}  # in this turn: flows with requests that may not be sent yet
        self.reserved: set[Endpoint] = set()  # in this turn: endpoints with room reserved for some of them

    def reconfigured(self, account: Charges) -> None:
        """Count service as `account` does from now on."""
        self._charges = account

    def begin(self) -> None:
        """A turn begins."""
        if self.passed or self.held or self.reserved:
            self.passed.clear()
            self.held.clear()
            self.reserved.clear()

    def unreserved(self, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Returns the endpoints without reserved room in this turn."""
        return [e for e in endpoints if e not in self.reserved] if self.reserved else endpoints

    def passes(self, entry: Entry) -> None:
        """Note that `entry` is passed over in this turn."""
        if entry not in self.passed:
            self.passed.append(entry)

    def holds(self, entry: Entry) -> None:
        """Note that `entry` may not be sent in this turn: its tenant is at its limit, or it waits for its endpoint."""
        self.held[entry.node] = None

    def served(self, tree: QueueTree, entry: Entry) -> None:
        """Note that `entry` was served in its turn: flows before it that only had requests on hold gave theirs up."""
        claims = {passed.node for passed in self.passed}
        for node in self.held:
            if node not in claims:
                tree.passed(node, entry.node)

    def reserve(self, entry: Entry, free: list[Endpoint], now: float) -> None:
        """Reserve room for `entry`, which was passed over, if that was so often enough."""
        if entry.backfilled >= PASSED_MAX:
            model = entry.model
            self.reserved.update([e for e in free if e.serves(model) and not entry.excludes(e.name, now)])

    def in_bound(self, entry: Entry, endpoints: list[Endpoint], others: list[Entry], now: float) -> list[Endpoint]:
        """Returns the endpoints that a request may take before `others` that are next and could go there too."""
        node, may_lead = entry.node, (PASSED_MAX - 1) * self._charges.full_cost(entry) + EPSILON
        for other in others:
            if other.band == entry.band and lead(node, other.node) > may_lead:
                model = other.model
                endpoints = [e for e in endpoints if not e.serves(model) or other.excludes(e.name, now)]
                if not endpoints:
                    break
        return endpoints

    def too_far(self, entry: Entry, other: Entry) -> bool:
        """True if the request's flow is as far ahead of another's as it may be, or further."""
        may_lead = (PASSED_MAX - 1) * self._charges.full_cost(entry) + EPSILON
        return other.band == entry.band and lead(entry.node, other.node) > may_lead

    def found(self, endpoints: list[Endpoint]) -> None:
        """Note that a request goes to one of `endpoints`: it overtakes those passed over that could go there."""
        self.passed = [x for x in self.passed if any(e.serves(x.request.model) for e in endpoints)]
        for overtaken in self.passed:
            overtaken.passed()
