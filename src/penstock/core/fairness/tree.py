"""The queue tree of a band: fairness levels above, one leaf per flow and model below.

Each node carries a *tag*: the service it got, divided by its weight, as the policy counts service. The child with
the least tag is next, at every level (start-time fair queueing: P. Goyal, H. Vin, H. Cheng, SIGCOMM 1996, applied
per level as in H-WFQ). A node that comes back from idle is lifted to its parent's virtual time, which is the tag of
the child served last: it keeps debt and hoards no credit.

Requests of one flow for different models stand in different leaves, so a model without a free endpoint never hides
another one's requests. Every node therefore keeps one heap of its backlogged children per model. Heap entries are
corrected lazily when they reach the top: a tag that grew is pushed down, a tag that shrank was pushed again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator

from penstock.core.flow import Entry, Leaf

Path = tuple[str, ...]


class Node:
    """A flow (it has leaves) or a group of flows (it has children)."""

    __slots__ = (
        "backlog",
        "children",
        "heaps",
        "index",
        "leaves",
        "name",
        "parent",
        "tag",
        "virtual",
        "waiting",
        "weight",
    )

    def __init__(self, name: str, parent: Node | None, weight: float, index: int) -> None:
        self.name = name
        self.parent = parent
        self.weight = weight
        self.index = index  # order of creation: the tie-break between equal tags
        self.tag = 0.0  # start tag: service got, per weight
        self.virtual = 0.0  # virtual time among its children
        self.waiting = 0  # requests waiting below it
        self.backlog: dict[str, int] = {}  # the same per model
        self.children: dict[str, Node] = {}
        self.heaps: dict[str, list[tuple[float, int, Node]]] = {}  # per model: children with backlog, by tag
        self.leaves: dict[str, Leaf] = {}

    def enlist(self, child: Node, model: str) -> None:
        """Put a child into the heap of a model, with its present tag."""
        heap = self.heaps.setdefault(model, [])
        heapq.heappush(heap, (child.tag, child.index, child))
        if len(heap) > 2 * len(self.children) + 16:  # duplicates left behind by tags that shrank
            fresh = {item[2].index: item[2] for item in heap if item[2].backlog.get(model)}
            heap[:] = [(node.tag, node.index, node) for node in fresh.values()]
            heapq.heapify(heap)

    def first(self, model: str) -> Node | None:
        """The child to serve next for a model."""
        heap = self.heaps.get(model)
        while heap:
            tag, index, child = heap[0]
            if not child.backlog.get(model):
                heapq.heappop(heap)
            elif tag < child.tag:
                heapq.heapreplace(heap, (child.tag, index, child))
            else:
                return child
        if heap is not None:
            del self.heaps[model]
        return None

    def in_order(self, model: str) -> Iterator[Node]:
        """Its children with backlog for a model, the least tag first, without disturbing anything."""
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
                heapq.heappush(
                    front, (child.tag, index, -1 - at)
                )  # it stands too early: look again at its true tag
            elif index not in given and child.backlog.get(model):
                given.add(index)
                yield child


class QueueTree:
    """The tree of one band. Holds what waits; knows nothing of endpoints, time or cost."""

    def __init__(self) -> None:
        self.root = Node("", None, 1.0, 0)
        self._created = 0

    @property
    def waiting(self) -> int:
        return self.root.waiting

    def models(self) -> list[str]:
        """The models that requests wait for, in a steady order."""
        return list(self.root.backlog)

    def node(self, path: Path, weights: tuple[float, ...]) -> Node:
        """The flow at the end of a path, made where it does not exist yet."""
        node = self.root
        for name, weight in zip(path, weights, strict=True):
            child = node.children.get(name)
            if child is None:
                self._created += 1
                child = Node(name, node, weight, self._created)
                child.tag = node.virtual
                node.children[name] = child
            child.weight = weight
            node = child
        return node

    def push(self, entry: Entry) -> None:
        """Let an entry wait in its flow's leaf."""
        node, model = entry.node, entry.request.model
        assert node is not None
        leaf = node.leaves.get(model)
        if leaf is None:
            leaf = node.leaves[model] = Leaf()
        leaf.push(entry)
        while True:
            node.waiting += 1
            count = node.backlog[model] = node.backlog.get(model, 0) + 1
            parent = node.parent
            if parent is None:
                return
            if node.waiting == 1:
                node.tag = max(node.tag, parent.virtual)
            if count == 1:
                parent.enlist(node, model)
            node = parent

    def remove(self, entry: Entry) -> None:
        """Take an entry out that no longer waits (its state says so already)."""
        node, model = entry.node, entry.request.model
        assert node is not None
        leaf = node.leaves[model]
        leaf.remove(entry)
        if not leaf:
            del node.leaves[model]
        up: Node | None = node
        while up is not None:
            up.waiting -= 1
            up.backlog[model] -= 1
            if not up.backlog[model]:
                del up.backlog[model]
            up = up.parent

    def head(self, models: Collection[str]) -> Entry | None:
        """The request that is next, of those that wait for one of the models."""
        node = self.root
        while node.children:
            best: Node | None = None
            for model in models:
                child = node.first(model)
                if child is not None and (best is None or (child.tag, child.index) < (best.tag, best.index)):
                    best = child
            if best is None:
                return None
            node = best
        return min(_heads(node, models), key=_age, default=None)

    def in_order(self, models: Collection[str]) -> Iterator[Entry]:
        """What would be next if the one before were passed over: flow by flow, each from its head on."""
        yield from self._below(self.root, models)

    def _below(self, node: Node, models: Collection[str]) -> Iterator[Entry]:
        if node.children:
            merged = heapq.merge(
                *(((child.tag, child.index, child) for child in node.in_order(model)) for model in models)
            )
            given: set[int] = set()
            for _, index, child in merged:
                if index not in given:
                    given.add(index)
                    yield from self._below(child, models)
        else:
            streams = (
                ((entry.key, entry.seq, entry) for entry in node.leaves[model].in_order())
                for model in models
                if model in node.leaves
            )
            for _, _, entry in heapq.merge(*streams):
                yield entry

    def serve(self, entry: Entry) -> None:
        """Note that an entry's flow is served now: virtual time moves up to the tags along its path."""
        node = entry.node
        while node is not None and node.parent is not None:
            node.parent.virtual = max(node.parent.virtual, node.tag)
            node = node.parent

    def charge(self, flow: Node, cost: float) -> None:
        """Add to the service a flow and its ancestors got; negative to give back."""
        node = flow
        while node.parent is not None:
            node.tag += cost / node.weight
            assert math.isfinite(node.tag)
            if cost < 0:
                for model in node.backlog:
                    node.parent.enlist(node, model)
            node = node.parent


def _heads(node: Node, models: Collection[str]) -> Iterator[Entry]:
    for model in models:
        leaf = node.leaves.get(model)
        entry = leaf.head() if leaf is not None else None
        if entry is not None:
            yield entry


def _age(entry: Entry) -> tuple[float, int]:
    return entry.key, entry.seq
