"""Does a queue tree agree with its requests? Every sum in the tree is made again from the entries below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, QueueTree
from penstock.core.values.lifecycle import State


class _Sums:
    """Sums over the entries below one node."""

    def __init__(self) -> None:
        self.waiting = 0
        self.in_flight = 0
        self.backlog: Counter[str] = Counter()
        self.work: Counter[str] = Counter()


def check_tree(tree: QueueTree, entries: Iterable[Entry]) -> None:
    """Assert that the sums of `tree` agree with `entries`, all of its band that have not ended."""
    sums: dict[Node, _Sums] = {}
    for entry in entries:
        node: Node | None = entry.node_of()
        while node is not None:
            below = sums.setdefault(node, _Sums())
            if entry.state is State.WAITING:
                below.waiting += 1
                below.backlog[entry.request.model] += 1
                below.work[entry.request.model] += entry.charge.work  # type: ignore[assignment]
            elif entry.lease is not None:
                below.in_flight += 1
            node = node.parent
    reached = _check_below(tree.root, sums)
    assert reached == tree.nodes + 1, f"{reached - 1} nodes, counted as {tree.nodes}"
    found = {node for node, _ in _walk(tree.root)}
    assert sums.keys() <= found, f"forgotten while in use: {[node.name for node in sums.keys() - found]}"


def _walk(node: Node) -> Iterable[tuple[Node, int]]:
    yield node, len(node.children)
    for child in node.children.values():
        yield from _walk(child)


def _check_below(node: Node, sums: dict[Node, _Sums]) -> int:
    own = sums.get(node) or _Sums()
    assert (node.waiting, node.in_flight) == (own.waiting, own.in_flight), node.name
    assert node.backlog == own.backlog, node.name
    assert node.work.keys() == own.work.keys(), node.name
    assert all(math.isclose(node.work[model], own.work[model], rel_tol=1e-9) for model in node.work), node.name
    active = math.fsum(child.weight for child in node.children.values() if child.active)
    assert math.isclose(node.active_weight, active, rel_tol=1e-9, abs_tol=1e-6), node.name
    assert math.isfinite(node.tag), node.name
    lined = Counter([model for child in node.children.values() for model in child.backlog])
    assert node.lined == lined, node.name
    assert all(len(heap) <= 2 * lined[model] + 16 for model, heap in node.heaps.items()), (
        f"{node.name}'s heaps are full"
    )
    assert node.heaps.keys() <= node.backlog.keys(), f"{node.name} remembers models nobody waits for"
    assert all(leaf.live > 0 for leaf in node.leaves.values())
    for name, child in node.children.items():
        assert child.parent is node, name
    return 1 + sum(_check_below(child, sums) for child in node.children.values())
