"""Does a queue tree agree with its requests? Every sum in the tree is made again from the entries below."""

from __future__ import annotations

import math
from collections.abc import Iterable

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import HELD, Node, QueueTree
from penstock.core.values.lifecycle import State


class _Sums:
    """Sums over the entries below one node."""

    __slots__ = ("backlog", "in_flight", "sendable", "waiting", "work")

    def __init__(self) -> None:
        self.waiting = 0
        self.in_flight = 0
        self.sendable = 0
        self.backlog: dict[str, int] = {}
        self.work: dict[str, float] = {}

    def add(self, other: _Sums) -> None:
        self.waiting += other.waiting
        self.in_flight += other.in_flight
        for model, count in other.backlog.items():
            self.backlog[model] = self.backlog.get(model, 0) + count
            self.work[model] = self.work.get(model, 0) + other.work[model]


_NONE = _Sums()


def check_tree(tree: QueueTree, entries: Iterable[Entry]) -> None:
    """Assert that the sums of `tree` agree with `entries`, all of its band that have not ended."""
    leaves: dict[Node, _Sums] = {}
    for entry in entries:
        leaf = entry.node
        if (own := leaves.get(leaf)) is None:
            own = leaves[leaf] = _Sums()
        if entry.state is State.WAITING:
            model = entry.model
            own.waiting += 1
            own.sendable += model not in tree.held
            own.backlog[model] = own.backlog.get(model, 0) + 1
            own.work[model] = own.work.get(model, 0) + entry.work
        elif entry.lease is not None:
            own.in_flight += 1
    sums: dict[Node, _Sums] = {}
    for leaf, own in leaves.items():
        node: Node | None = leaf
        sendable = own.sendable
        while node is not None:
            if (below := sums.get(node)) is None:
                below = sums[node] = _Sums()
            below.add(own)
            below.sendable += sendable
            sendable = 0 if node.capped else sendable
            node = node.parent
    assert tree.held <= tree.root.backlog.keys(), "models are held that no request waits for"
    found: set[Node] = set()
    _check_below(tree.root, sums, found)
    assert len(found) == tree.nodes + 1, f"{len(found) - 1} nodes, counted as {tree.nodes}"
    assert sums.keys() <= found, f"forgotten while in use: {[node.name for node in sums.keys() - found]}"


def _check_below(node: Node, sums: dict[Node, _Sums], found: set[Node]) -> None:
    found.add(node)
    own = sums.get(node, _NONE)
    assert (node.waiting, node.in_flight) == (own.waiting, own.in_flight), node.name
    assert node.backlog == own.backlog, node.name
    assert node.sendable == own.sendable, f"of {node.name} {own.sendable} may be sent, counted as {node.sendable}"
    assert node.work.keys() == own.work.keys(), node.name
    assert all(math.isclose(node.work[model], own.work[model], rel_tol=1e-9) for model in node.work), node.name
    active = math.fsum(child.weight for child in node.children.values() if child.active)
    assert math.isclose(node.active_weight, active, rel_tol=1e-9, abs_tol=1e-6), node.name
    assert math.isfinite(node.tag), node.name
    held = math.fsum(child.weight for child in node.children.values() if child.standing == HELD)
    assert math.isclose(node.held_weight, held, rel_tol=1e-9, abs_tol=1e-6), node.name
    lined: dict[str, int] = {}
    for child in node.children.values():
        for model in child.backlog:
            lined[model] = lined.get(model, 0) + 1
    assert node.lined == lined, node.name
    assert all(len(heap) <= 2 * lined.get(model, 0) + 16 for model, heap in node.heaps.items()), (
        f"{node.name}'s heaps are full"
    )
    assert node.heaps.keys() <= node.backlog.keys(), f"{node.name} remembers models nobody waits for"
    assert all(leaf.live > 0 for leaf in node.leaves.values())
    for name, child in node.children.items():
        assert child.parent is node, name
        _check_below(child, sums, found)
