"""Which flows are under their share, and which slots are reserved for them (docs/design.md#admission)?

A flow is under its share while it takes at most that: of the slots, or of the recently requested and sent work. When
the remaining slots of a model are reserved (`reserved_slots.py`), only requests of such flows are dispatched; and if
these come, others have to leave some of the room for prompts and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from penstock.core.dispatch.backfill import Backfill
from penstock.core.dispatch.preemption_budget import PreemptionBudget
from penstock.core.dispatch.reserved_slots import FREES_MAX, ReservedSlots
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.band import Band
from penstock.core.queueing.capped_flows import CAPPED_MAX, CappedFlows
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import HELD, Node, in_fair_order, top
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Quotas
from penstock.core.util.decaying import Decaying

RESERVE_REVIEW_S = 1.0  # how often a reserve is looked at again; arrivals are forgotten over ten seconds
FORESEEN_SLOTS_MAX = 64  # of a pool with individually predicted lease ends; rates are exact enough beyond
DEMAND_WINDOW_S: Final = 30.0  # some tens of requests of a small flow; shorter calls a burst of three a flood
UNDER_SHARE_WAITING_MAX = 3  # queued requests of one flow: more is a backlog
DEMAND_PLAY = 2.0  # a handful of requests of very different sizes is easily twice its mean


class UnderShare:
    """Identifies flows under their share by their demand and service, and reserves room for them."""

    def __init__(
        self,
        queues: Queues,
        pool: Pool,
        reserved: ReservedSlots,
        *,
        quotas: Quotas,
        capped: CappedFlows,
        backfill: Backfill,
        preemption: PreemptionBudget,
        look_again: Callable[[Endpoint, float], None],
    ) -> None:
        self._queues = queues
        self._pool = pool
        self._reserved = reserved
        self._quotas = quotas
        self._capped = capped
        self._backfill = backfill
        self._preemption = preemption
        self._look_again = look_again
        self._served = Decaying(DEMAND_WINDOW_S)  # work that was sent, over the same window as demands

    # --- facts --------------------------------------------------------------------------------------------------

    def asked(self, entry: Entry, now: float) -> None:
        """Record the demand of the arrived `entry`."""
        node = entry.node
        parent = node.parent
        while parent is not None and parent.parent is not None:
            node, parent = parent, parent.parent
        if parent is None:
            return  # all requests stand in one flow
        node.demand = node.demand * math.exp((node.demand_s - now) / DEMAND_WINDOW_S) + entry.work
        node.demand_s = now
        weight = parent.active_weight + (0.0 if node.waiting or node.in_flight else node.weight)
        self._reserved.weight_seen(parent, weight, now)

    def arrived(self, entry: Entry, now: float) -> None:
        """Note whether slots are reserved for `entry`, which is about to join its flow."""
        node, model = top(entry.node), entry.model
        if node.parent is not None and self.under_share(node, model, now):
            self._queues.bands[entry.band].note_under_share(node, model)
            crowded = any(model in band.tree.root.backlog for band in self._queues.bands)
            if crowded and node.waiting <= UNDER_SHARE_WAITING_MAX and self._needs_reserve(entry, node, now):
                self._reserved.arrived(model, now)

    def returned(self, entry: Entry, now: float) -> None:
        """Note the same of `entry` when it joins its flow again: slots are reserved for it; it arrived before."""
        node, model = top(entry.node), entry.model
        if node.parent is not None and self.under_share(node, model, now):
            self._queues.bands[entry.band].note_under_share(node, model)

    def sent(self, entry: Entry, now: float) -> None:
        """Add the work of the sent `entry` to the total for fair shares."""
        self._served.add(entry.work, now)

    def ended(self, entry: Entry, now: float) -> None:
        """Note that a lease of the flow of `entry` ended: it may be under its share of the slots again."""
        node, model = top(entry.node), entry.model
        self._reserved.freed(model, now)
        if model in node.backlog and node.parent is not None and self.under_share(node, model, now):
            self._queues.bands[entry.band].note_under_share(node, model)

    def served_before(self, node: Node, work: float, now: float) -> None:
        """Note the `work` that a flow recently asked for, and got, from another scheduler."""
        if node.parent is not None:
            node = top(node)
            node.demand = node.demand * math.exp((node.demand_s - now) / DEMAND_WINDOW_S) + work
            node.demand_s = now
        self._served.add(work, now)

    def moved(self, before: Node, after: Node) -> None:
        """Keep a flow's recent demand when it moves to another tree as `after`."""
        if after.parent is not None and before.demand > 0.0:
            last_s = max(before.demand_s, after.demand_s)
            after.demand = sum([x.demand * math.exp((x.demand_s - last_s) / DEMAND_WINDOW_S) for x in (before, after)])
            after.demand_s, before.demand = last_s, 0.0

    def judge_again(self, now: float) -> None:
        """Judge all flows with waiting requests again at `now`: trees and weights may be others."""
        for band in self._queues.bands:
            for flow in band.tree.root.children.values():
                for model in flow.backlog:
                    if self.under_share(flow, model, now):
                        band.note_under_share(flow, model)

    # --- flows under their share --------------------------------------------------------------------------------

    def under_share(self, node: Node, model: str, now: float) -> bool:
        """True if a flow recently took at most its fair share of the slots or of the work.

        By slots alone, a burst of an under-share flow would be excluded just when it needs the reserve; by work alone,
        such a flow with a few large requests. A flood exceeds both.
        """
        parent = node.parent
        if parent is None:
            return False
        part = self._part(node, parent, now)
        return node.in_flight + 1 <= self._pool.slots(model) * part or self._asked_for_less(node, part, now)

    def asks_for_more(self, node: Node, models: Iterable[str], now: float) -> bool:
        """True if a flow, of which requests for these models wait, takes more than its share. Alone in its band, where
        nobody else has a share: if most of what runs is its own.
        """
        parent = node.parent
        if parent is None:
            return False
        if self._part(node, parent, now) >= 1.0:
            return 2 * node.in_flight > sum([band.tree.root.in_flight for band in self._queues.bands])
        return not any(self.under_share(node, model, now) for model in models)

    def asked_under_share(self, node: Node, now: float) -> bool:
        """True if a flow recently asked for about its fair share of the work or less."""
        assert node.parent is not None
        return self._asked_for_less(node, self._part(node, node.parent, now), now)

    def is_over_share(self, entry: Entry, now: float) -> bool:
        """True if the request's flow is over its share while requests of flows under theirs keep arriving: then the
        request may only use `over_share_room`.

        The flow's recent demand counts, because a flood holds few slots if prompts or memory are scarce. While requests
        of a higher band wait for the model, lower bands have no share of it, except what they are owed by promise.
        """
        if not self._reserved.may_count or not self._reserved.under_share_come(entry.model, now):
            return False
        node = top(entry.node)
        if node.parent is None:
            return True
        if self._queues.bands[entry.band].credit <= 0.0 and self._queues.waits_above(entry.band, entry.model):
            return True
        return not self.asked_under_share(node, now)

    def head(self, band: Band, model: str) -> Entry | None:
        """Returns the first request for a model in fair order that its tenant may still run; None if none is found."""
        head = self._capped.head(band, [model])
        if head is not None and self._quotas.at_limit(head.accounts):  # its flow is shared with others
            line = islice(band.tree.in_order([model]), CAPPED_MAX)
            head = next((x for x in line if not self._quotas.at_limit(x.accounts)), None)
        return head

    def in_order(self, band: Band, model: str, now: float) -> Iterator[Entry]:
        """Yields the requests for a model of flows that are under their share, in fair order.

        They are remembered from their arrival, because they need not be among the first: a throttled flood falls behind
        its fair share of the tokens, and then precedes the flows with reserved slots.
        """
        head = self.head(band, model)
        first = top(head.node) if head is not None else None
        if head is not None and first is not None and self.under_share(first, model, now):
            yield from _from_head(head, band, model, first)
        for node in in_fair_order(band.flows_under_share(model)):
            if not self.under_share(node, model, now):
                band.no_longer_under_share(node, model)
            elif node is not first:
                yield from _from_head(band.tree.head([model], node), band, model, node)

    def _needs_reserve(self, entry: Entry, node: Node, now: float) -> bool:
        """Whether a request could use a reserved slot, and there are others to reserve it from."""
        model, queues = entry.model, self._queues
        if self._quotas.at_limit(entry.accounts) or model in queues.bands[entry.band].tree.held:
            return False
        if queues.waits_above(entry.band, model):
            return False  # free slots are not for its band
        return node.parent is not None and self._part(node, node.parent, now) < 1.0

    def _part(self, node: Node, parent: Node, now: float) -> float:
        """The share that a flow's weight gives it among those recently active that are not held."""
        total, lately = parent.active_weight, self._reserved.weight(parent, now)
        if not (node.waiting or node.in_flight):
            total += node.weight
        total = total if total > lately else lately
        if parent.held_weight:
            total -= parent.held_weight
            if node.standing == HELD:
                total += node.weight
        return node.weight / total if total > node.weight else 1.0

    def _asked_for_less(self, node: Node, part: float, now: float) -> bool:
        """Whether a flow recently asked for about that part of the work or less.

        It may be twice that part, but has to leave others at least half of theirs, if any: a closed-loop client asks
        for no more than it gets, and a flood of these for everything that others do not ask for.
        """
        if part >= 1.0:
            return True
        asked = node.demand * math.exp((node.demand_s - now) / DEMAND_WINDOW_S)
        return asked <= self._served.at(now) * min(DEMAND_PLAY * part, 1.0 - (1.0 - part) / DEMAND_PLAY)

    # --- the reserve --------------------------------------------------------------------------------------------

    def reserved_slots(self, model: str, now: float) -> int:
        """Returns how many slots of a model only flows under their share may use."""
        return self._reserved.count(model, self._pool.slots(model), self._frees_s, now)

    def only_reserved_left(self, model: str, band: Band, endpoints: list[Endpoint], now: float) -> bool:
        """True if the slots that are left for a model are reserved for flows under their share."""
        if not self._reserved.may_count or (reserved := self.reserved_slots(model, now)) <= 0:
            return False
        if self._pool.uniform and not self._backfill.reserved:
            free = band.free_slots
        else:
            free = sum([band.open[e].free_slots for e in endpoints if e.serves(model)])
        if free > reserved or (band.settings.preemptible and free + self._preemption.takeable(model) > reserved):
            return False
        # Time alone may shrink the reserve, because arrivals are forgotten, or free slots, because a page is.
        self._look_again(endpoints[-1], min(now + RESERVE_REVIEW_S, band.holds_until_s))
        return True

    def _frees_s(self, model: str, now: float) -> list[float]:
        """In how many seconds the next slots will free: foreseen in a small pool, by their rate in a large one.

        Never sooner than in an engine step: requests end together, at its end.
        """
        foreseen = self._pool.slots(model) <= FORESEEN_SLOTS_MAX
        step_s, ends_s = 0.0, []
        for endpoint in self._pool:
            pace_s = endpoint.ledger.speed.time_per_output_token_s(now) if endpoint.serves(model) else 0.0
            step_s = max(step_s, pace_s)
            if foreseen and pace_s > 0:
                ends_s += [lease.ends_s(pace_s, now) - now for lease in endpoint.ledger.leases.values()]
        per_s = self._reserved.freed_per_s(model, now)
        if not ends_s and per_s > 0:
            ends_s = [(k + 1) / per_s for k in range(FREES_MAX)]
        return [max(end_s, step_s) for end_s in sorted(ends_s)[:FREES_MAX]]


def _from_head(head: Entry | None, band: Band, model: str, flow: Node) -> Iterator[Entry]:
    """The `head` of a flow, then the others in order: these are looked for when they are asked for, which is rare."""
    if head is not None:
        yield head
    for entry in band.tree.in_order([model], flow):
        if entry is not head:
            yield entry
