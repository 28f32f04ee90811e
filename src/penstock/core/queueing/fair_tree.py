"""The queue tree of a band: fairness levels above, one leaf per flow and model below.

Each node carries a *tag*: the service it got, divided by its weight, as the policy counts service. The child with the
least tag is next, at every level (start-time fair queueing: P. Goyal, H. Vin, H. Cheng, SIGCOMM 1996, applied per level
as in H-WFQ). A node that may be served again is lifted to its parent's virtual time, which is the tag of the child
served last: it keeps debt and hoards no credit. It may be served while a request below it is *sendable*: an idle node
has none, and neither has one with all requests held, because their tenant is capped or their model is held. A request
that only waits for room is sendable, so its flow keeps its claim.

Requests of one flow for different models stand in different leaves, so a model without a free endpoint never hides
another one's requests. Every node therefore keeps one heap of its backlogged children per model. Heap entries are
corrected lazily when they reach the top: a tag that grew is pushed down, a tag that shrank was pushed again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.flow_queue import Leaf

Item = TypeVar("Item")
Path = tuple[str, ...]
PART_PREFIX = " "  # prefix of a shared part's name: a step in the path, not a level
IDLE, ACTIVE, HELD = range(3)  # how a node stands
NODES_SWEEP_MIN = 1_000  # flows below that are not worth a look
NODES_MAX = 20_000  # flows and groups remembered, unless more are at work; about a kilobyte each


class Node:
    """A flow (it has leaves) or a group of flows (it has children)."""

    __slots__ = (
        "active_weight", "backlog", "capped", "children", "demand", "demand_s", "heaps", "held_weight", "in_flight",
        "index", "leaves", "left", "left_s", "lined", "name", "parent", "sendable", "tag", "virtual", "waiting",
        "weight", "work",
    )  # fmt: skip

    def __init__(self, name: str, parent: Node | None, weight: float, index: int) -> None:
        self.name = name
        self.parent = parent
        self.weight = weight
        self.index = index  # order of creation: the tie-break between equal tags
        self.tag = 0.0  # start tag: service got, per weight
        self.virtual = 0.0  # virtual time among its children
        self.waiting = 0  # requests waiting below it
        self.sendable = 0  # of these, those held neither by a node's cap nor by their model
        self.in_flight = 0  # requests below it that hold a lease
        self.backlog: dict[str, int] = {}  # requests waiting, per model
        self.work: dict[str, float] = {}  # their estimated work, per model
        self.active_weight = 0.0  # of its children that have requests waiting or in flight
        self.held_weight = 0.0  # of those of them that are held
        self.children: dict[str, Node] = {}
        self.heaps: dict[str, list[tuple[float, int, Node]]] = {}  # per model: children with backlog, by tag
        self.lined: dict[str, int] = {}  # and their number: other heap items are stale
        self.leaves: dict[str, Leaf] = {}
        self.left = 0.0  # work that recently left unsent, fading; as of `left_s`. Of flows and the root
        self.left_s = 0.0
        self.demand = 0.0  # work asked for recently, fading; as of `demand_s`
        self.demand_s = 0.0
        self.capped = False  # skipped, with everything below it

    @property
    def active(self) -> bool:
        """Whether it has requests, waiting or in flight."""
        return self.waiting > 0 or self.in_flight > 0

    @property
    def standing(self) -> int:
        """Whether it is idle, active, or active and held: none of its waiting requests may be sent."""
        if not self.waiting and not self.in_flight:
            return IDLE
        return HELD if self.capped or (self.waiting and not self.sendable) else ACTIVE

    def stood(self, before: int) -> None:
        """Count the node's weight at its parent by its standing, which was another `before`."""
        after, parent = self.standing, self.parent
        if after == before or parent is None:
            return
        if before == IDLE:
            parent.active_weight += self.weight
        elif after == IDLE:
            parent.active_weight -= self.weight
        if after == HELD:
            parent.held_weight += self.weight
        elif before == HELD:
            parent.held_weight -= self.weight

    def reweigh(self, weight: float) -> None:
        """Let the node weigh so much from now on."""
        if self.parent is not None and self.standing != IDLE:
            self.parent.active_weight += weight - self.weight
            if self.standing == HELD:
                self.parent.held_weight += weight - self.weight
        self.weight = weight

    @property
    def idle(self) -> bool:
        """Whether forgetting it changes nothing: no requests, no cap, no service that others have yet to catch up."""
        return not self.active and not self.capped and (self.parent is None or self.tag <= self.parent.virtual)

    def enlist(self, child: Node, model: str) -> None:
        """Put `child` into the heap of a model, with its present tag."""
        heap = self.heaps.setdefault(model, [])
        heapq.heappush(heap, (child.tag, child.index, child))
        self._trim(model, heap)

    def begins(self, child: Node, model: str) -> None:
        """Note that the first request for a model waits below `child`."""
        self.lined[model] = self.lined.get(model, 0) + 1
        self.enlist(child, model)

    def ends(self, model: str) -> None:
        """Note that the last request for `model` below one of the children no longer waits."""
        self.lined[model] -= 1
        if not self.lined[model]:
            del self.lined[model]
            self.heaps.pop(model, None)  # clients choose the names of models, so they must not accumulate
        elif (heap := self.heaps.get(model)) is not None:
            self._trim(model, heap)

    def _trim(self, model: str, heap: list[tuple[float, int, Node]]) -> None:
        """Keep at most half of a heap stale: a walk in order also visits ended requests and duplicates."""
        if len(heap) > 2 * self.lined.get(model, 0) + 16:
            fresh = {item[2].index: item[2] for item in heap if item[2].backlog.get(model) and not item[2].capped}
            heap[:] = [(node.tag, node.index, node) for node in fresh.values()]
            heapq.heapify(heap)

    def first(self, model: str) -> Node | None:
        """Returns the child to serve next for a model; None if nothing that may be sent waits for it."""
        heap = self.heaps.get(model)
        while heap:
            tag, index, child = heap[0]
            if child.capped or not child.backlog.get(model):
                heapq.heappop(heap)
            elif tag < child.tag:
                heapq.heapreplace(heap, (child.tag, index, child))
            else:
                return child
        if heap is not None:
            del self.heaps[model]
        return None

    def in_order(self, model: str) -> Iterator[Node]:
        """Yields the children with backlog for a model, the least tag first, without disturbing anything."""
        heap = self.heaps.get(model, [])
        front: list[tuple[float, int, int]] = [(heap[0][0], heap[0][1], 0)] if heap else []
        given: set[int] = set()
        while front:
            tag, index, at = heapq.heappop(front)
            if at >= 0:
                for below in (2 * at + 1, 2 * at + 2):
                    if below < len(heap):
                        heapq.heappush(front, (heap[below][0], heap[below][1], below))
            child = heap[at][2] if at >= 0 else heap[-1 - at][2]
            if tag < child.tag and at >= 0:
                heapq.heappush(front, (child.tag, index, -1 - at))  # it stands too early: look again at its true tag
            elif index not in given and not child.capped and child.backlog.get(model):
                given.add(index)
                yield child


class QueueTree:
    """The tree of one band. Holds waiting requests; independent of endpoints, time and prices."""

    def __init__(self) -> None:
        self.root = Node("", None, 1.0, 0)
        self._weights: dict[int, Mapping[str, float]] = {}  # by level, as settings give them: for flows not remembered
        self._ordered: dict[int, Mapping[str, float]] = {}  # by level, of operators: against those of requests, too
        self.held: set[str] = set()  # models with waiting requests of which none may be sent
        self._created = 0
        self._nodes = 0
        self._sweep_at = NODES_SWEEP_MIN

    @property
    def waiting(self) -> int:
        return self.root.waiting

    @property
    def nodes(self) -> int:
        """How many flows and groups are remembered."""
        return self._nodes

    def models(self) -> list[str]:
        """Returns the models that requests wait for, in a steady order."""
        return list(self.root.backlog)

    def node(self, path: Path, weights: tuple[float, ...]) -> Node:
        """Returns the flow at the end of a path, made if it does not exist yet.

        `weights` has one for each step of the path.
        """
        node = self.root
        assert len(path) == len(weights)
        for level, name in enumerate(path):
            weight = weights[level]
            child = node.children.get(name)
            if child is None:
                if self._nodes >= self._sweep_at:
                    self._sweep(keep=node)
                self._created += 1
                child = Node(name, node, self._in_force(level, name, weight), self._created)
                child.tag = node.virtual
                node.children[name] = child
                self._nodes += 1
            elif child.weight != weight:
                child.reweigh(self._in_force(level, name, weight))
            node = child
        return node

    def _in_force(self, level: int, name: str, weight: float) -> float:
        """Returns an operator's weight of a flow or group, if any, otherwise the given one."""
        ordered = self._ordered.get(level)
        return weight if ordered is None else ordered.get(name, weight)

    def weight(self, path: Path) -> float:
        """Returns the weight of the flow or group at the end of a path, also if it is forgotten."""
        node = self.root
        for name in path:
            child = node.children.get(name)
            if child is None:
                level, last = len(path) - 1, path[-1]
                return self._in_force(level, last, self._weights.get(level, {}).get(last, 1.0))
            node = child
        return node.weight

    def push(self, entry: Entry) -> None:
        """Let an entry wait in its flow's leaf."""
        node, model = entry.node, entry.model
        leaf = node.leaves.get(model)
        if leaf is None:
            leaf = node.leaves[model] = Leaf()
        leaf.push(entry)
        sendable = model not in self.held
        while True:
            parent, restands = node.parent, not node.sendable  # otherwise it is active, or capped, and stays so
            before = node.standing if restands else ACTIVE
            node.waiting += 1
            node.work[model] = node.work.get(model, 0.0) + entry.work
            count = node.backlog[model] = node.backlog.get(model, 0) + 1
            if sendable:
                _may_send(node, 1)
                sendable = not node.capped
            if parent is None:
                return
            if restands:
                node.stood(before)
            if count == 1:
                parent.begins(node, model)
            node = parent

    def remove(self, entry: Entry) -> None:
        """Remove an entry that no longer waits; `entry.state` is already set."""
        node, model = entry.node, entry.model
        leaf = node.leaves[model]
        leaf.remove(entry)
        if not leaf:
            del node.leaves[model]
        up: Node | None = node
        sendable = model not in self.held
        while up is not None:
            restands = up.sendable <= 1  # otherwise more of its requests may be sent
            before = up.standing if restands else ACTIVE
            up.waiting -= 1
            if sendable:
                up.sendable -= 1
                sendable = not up.capped
            up.backlog[model] -= 1
            if up.backlog[model]:
                up.work[model] -= entry.work
            else:
                del up.backlog[model]
                del up.work[model]
                if up.parent is not None:
                    up.parent.ends(model)
            if restands:
                up.stood(before)
            up = up.parent
        if model not in self.root.backlog:
            self.held.discard(model)

    def serve_at_once(self, flow: Node) -> None:
        """Note that a request of `flow`, of which nothing waits, is sent without having waited.

        Tags and virtual times change as by `push`, `serve` and `remove` of that request: a flow returning from idle is
        lifted to the virtual time, which then moves up to the tags along its path.
        """
        node = flow
        while node.parent is not None:
            parent = node.parent
            if node.waiting == 0 and node.tag < parent.virtual:
                node.tag = parent.virtual
            elif node.tag > parent.virtual:
                parent.virtual = node.tag
            node = parent

    def lent(self, flow: Node) -> None:
        """Note that a request of `flow` was given a lease."""
        node: Node | None = flow
        while node is not None:
            node.in_flight += 1
            parent = node.parent
            if node.in_flight == 1 and not node.waiting and parent is not None:  # it was idle (`stood`)
                parent.active_weight += node.weight
                if node.capped:
                    parent.held_weight += node.weight
            node = parent

    def returned(self, flow: Node) -> None:
        """Note that a lease of `flow` ended."""
        node: Node | None = flow
        while node is not None:
            assert node.in_flight > 0
            node.in_flight -= 1
            parent = node.parent
            if not node.in_flight and not node.waiting and parent is not None:  # it is idle now (`stood`)
                parent.active_weight -= node.weight
                if node.capped:
                    parent.held_weight -= node.weight
            node = parent

    def release(self, flow: Node) -> None:
        """Forget `flow`, and its groups, if that changes nothing."""
        node = flow
        while (parent := node.parent) is not None:
            if node.waiting or node.in_flight or node.capped or node.tag > parent.virtual or node.children:
                return  # not `idle`
            if parent.children.get(node.name) is not node:
                return  # forgotten earlier
            del parent.children[node.name]
            self._nodes -= 1
            node = parent

    def _sweep(self, *, keep: Node) -> None:
        """Forget idle flows without remaining debt; too many debtors lose their debt.

        A sweep at the bound leaves at most half of it, or only flows at work, so the next one is far away.
        """
        full = self._nodes >= NODES_MAX
        self._forget_below(self.root, keep, lambda node: node.idle)
        if full and self._nodes > NODES_MAX // 2:
            self._forget_below(self.root, keep, lambda node: not node.active and not node.capped)
        most = self._nodes + NODES_MAX // 2 if full else NODES_MAX
        self._sweep_at = max(NODES_SWEEP_MIN, min(2 * self._nodes, most))

    def _forget_below(self, node: Node, keep: Node, forgettable: Callable[[Node], bool]) -> None:
        for child in list(node.children.values()):
            self._forget_below(child, keep, forgettable)
            if not child.children and child is not keep and forgettable(child):
                del node.children[child.name]
                self._nodes -= 1

    def rekeyed(self) -> None:
        """The keys of waiting requests have changed."""
        for node in _all_below(self.root):
            for leaf in node.leaves.values():
                leaf.rekeyed()

    def reweigh(self, level: int, weights: Mapping[str, float], ordered: Mapping[str, float]) -> None:
        """Set the weights of a level's nodes by name, 1 by default. The service they got stays.

        Requests may bring other `weights`, but nothing against those that operators `ordered`.

        A part that many share stands beside the others of its level, and those that share it one below, each as much.
        """
        self._weights[level], self._ordered[level] = weights, ordered
        for parent in _parents(self.root, level):
            for child in parent.children.values():
                child.reweigh(self._in_force(level, child.name, weights.get(child.name, 1.0)))

    def level(self, costs: Mapping[Node, float]) -> None:
        """Let flows and groups that wait stand as close together as fairness would have kept them.

        Their tags are the recent counts of others. In a tree that had counted them itself, a waiting flow is behind by
        at most one request, because idle ones are lifted. `costs`: the largest request that waits below each. Virtual
        time is the tag of the hindmost waiting flow, or of the foremost if none waits.
        """
        for node in _all_below(self.root):
            waiting = [child for child in node.children.values() if child.waiting]
            first = max([child.tag for child in waiting], default=0.0)
            for child in waiting:
                child.tag = max(child.tag, first - costs[child] / child.weight)
            tags = [child.tag for child in waiting] or [max([child.tag for child in node.children.values()], default=0)]
            node.virtual = max(node.virtual, min(tags))

    def cap(self, node: Node) -> None:
        """Pass over `node` until `uncap`."""
        if node.capped:
            return
        before = node.standing
        node.capped = True
        node.stood(before)
        _may_send_above(node, -node.sendable)

    def uncap(self, node: Node) -> None:
        """Take a capped node's turn into account again, from the virtual time on."""
        if not node.capped:
            return
        before = node.standing
        node.capped = False
        node.stood(before)
        if node.sendable:
            _lift(node)
            _may_send_above(node, node.sendable)
        if node.parent is not None:
            for model in node.backlog:
                node.parent.enlist(node, model)

    def hold(self, models: set[str]) -> None:
        """Hold the requests for these `models`, all of which have some waiting, and no others, from now on."""
        if models != self.held:
            self.held = models
            self._recount(self.root)

    def _recount(self, node: Node) -> int:
        """Recount the sendable requests below a node. Returns the parent's part of it."""
        count = 0
        for child in node.children.values():
            count += self._recount(child)
        if not node.children:
            for model, waiting in node.backlog.items():
                if model not in self.held:
                    count += waiting
        before = node.standing
        _may_send(node, count - node.sendable)
        node.stood(before)
        return 0 if node.capped else count

    def passed(self, flow: Node, other: Node) -> None:
        """Note that a request of `other` was just served, because those of `flow` before it may not be sent yet.

        At their common ancestor, `flow` is lifted to the virtual time.
        """
        path: set[Node] = set()
        node: Node | None = other
        while node is not None:
            path.add(node)
            node = node.parent
        while flow.parent is not None and flow.parent not in path:
            flow = flow.parent
        if flow not in path:
            _lift(flow)

    def head(self, models: Collection[str], node: Node | None = None) -> Entry | None:
        """Returns the next request for one of the models, below `node` if given, or None."""
        top = node = node or self.root
        while node.children:
            best: Node | None = None
            for model in models:
                child = node.first(model)
                if child is not None and (best is None or _before(child, best)):
                    best = child
            if best is None:  # all below this one are held, so the first is found by searching
                return None if node is top else next(self._below(top, models), None)
            node = best
        first: Entry | None = None
        for model in models:
            leaf = node.leaves.get(model)
            entry = leaf.head() if leaf is not None else None
            if entry is not None and (first is None or _age(entry) < _age(first)):
                first = entry
        return first

    def in_order(self, models: Collection[str], node: Node | None = None) -> Iterator[Entry]:
        """Yields the requests in order as if each were passed over: flow by flow, each from its head on."""
        yield from self._below(node or self.root, models)

    def _below(self, node: Node, models: Collection[str]) -> Iterator[Entry]:
        if node.children:
            given: set[int] = set()
            for child in _merged([node.in_order(model) for model in models], fair_order):
                if child.index not in given:
                    given.add(child.index)
                    yield from self._below(child, models)
        else:
            yield from _merged([node.leaves[model].in_order() for model in models if model in node.leaves], _age)

    def serve(self, entry: Entry) -> None:
        """Note that the flow of `entry` is served now: virtual time moves up to the tags along its path."""
        node = entry.node
        while node is not None and node.parent is not None:
            node.parent.virtual = max(node.parent.virtual, node.tag)
            node = node.parent

    def charge(self, flow: Node, cost: float) -> None:
        """Add `cost` to the service that a flow and its ancestors got; negative to give back."""
        node = flow
        while node.parent is not None:
            node.tag += cost / node.weight
            assert math.isfinite(node.tag)
            if cost < 0:
                for model in node.backlog:
                    node.parent.enlist(node, model)
            node = node.parent


def _lift(node: Node) -> None:
    """Let a node that may be served again begin at the virtual time: it hoards no credit. Debt is kept."""
    if node.parent is not None and node.tag < node.parent.virtual:
        node.tag = node.parent.virtual


def _may_send(node: Node, more: int) -> None:
    """Note that so many `more` requests below a node may be sent; negative: fewer."""
    if not node.sendable and more:
        _lift(node)
    node.sendable += more


def _may_send_above(node: Node, more: int) -> None:
    """Note above a node that so many `more` requests below it may be sent, up to the next node that is capped."""
    above = node.parent
    while above is not None:
        before = above.standing
        _may_send(above, more)
        above.stood(before)
        above = None if above.capped else above.parent


def _all_below(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    for child in node.children.values():
        yield from _all_below(child)


def _parents(node: Node, level: int) -> Iterator[Node]:
    """Yields the parents of a level's nodes, counted from below `node`. Flows that share a part keep their weight."""
    if level == 0:
        yield node
        return
    for child in node.children.values():
        if child.name.startswith(PART_PREFIX):
            for one in child.children.values():
                yield from _parents(one, level - 1)
        else:
            yield from _parents(child, level - 1)


def _merged(streams: list[Iterator[Item]], key: Callable[[Item], Any]) -> Iterator[Item]:
    """Several ordered streams as one; of a single one, nothing is asked before it is wanted."""
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=key)


def top(node: Node) -> Node:
    """Returns the flow or group of the highest level that a flow belongs to."""
    parent = node.parent
    while parent is not None and parent.parent is not None:
        node, parent = parent, parent.parent
    return node


def lead(one: Node, other: Node) -> float:
    """Returns a flow's lead over another at their common ancestor: its service beyond its fair part.

    In the unit of the policy's costs; below 0: it is behind. 0 for a flow and itself.
    """
    rivals: dict[Node, Node] = {}
    while other.parent is not None:
        rivals[other.parent] = other
        other = other.parent
    while one.parent is not None:
        rival = rivals.get(one.parent)
        if rival is not None:
            return (one.tag - rival.tag) * one.weight
        one = one.parent
    return 0.0


def fair_order(node: Node) -> tuple[float, int]:
    """Returns the sort key of a node among its siblings: the least goes first."""
    return node.tag, node.index


def in_fair_order(siblings: list[Node]) -> Iterator[Node]:
    """Yields the least of the siblings first; the others are put in order when more than that one is asked for."""
    if not siblings:
        return
    least, tag = siblings[0], siblings[0].tag
    for node in siblings:
        if node.tag < tag or (node.tag == tag and node.index < least.index):
            least, tag = node, node.tag
    yield least
    others = [(node.tag, node.index, node) for node in siblings if node is not least]
    others.sort()
    for _, _, node in others:
        yield node


def _before(one: Node, other: Node) -> bool:
    return one.tag < other.tag or (one.tag == other.tag and one.index < other.index)


def _age(entry: Entry) -> tuple[tuple[int, float], int]:
    return entry.key, entry.seq
