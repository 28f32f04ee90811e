"""The queue tree against a naive one: whoever is next, is next, whatever came, left or was charged before."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fairness.tree import Node, QueueTree
from penstock.core.flow import Entry
from penstock.core.lifecycle import Event
from tests.core.drive import request

PATHS = [("t1", "u1"), ("t1", "u2"), ("t2", "u1"), ("t3", "u1")]
MODELS = ["x", "y"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "leave", "serve", "charge", "refund", "return"]),
        st.integers(0, 30),
        st.sampled_from(MODELS),
    ),
    max_size=120,
)


def put(tree: QueueTree, node: Node, seq: int, model: str = "x") -> Entry:
    entry = Entry(request(f"r{seq}", model=model), seq)
    entry.node = node
    entry.move(Event.ADMITTED)
    tree.push(entry)
    return entry


def take(tree: QueueTree, entry: Entry) -> None:
    entry.move(Event.DISPATCHED)
    tree.remove(entry)


@dataclass
class Naive:
    """The same order, found by looking at everything."""

    tree: QueueTree
    entries: list[Entry] = field(default_factory=list)

    def in_order(self, models: list[str]) -> list[Entry]:
        wanted = [entry for entry in self.entries if entry.request.model in models]
        return sorted(wanted, key=self._rank)

    def _rank(self, entry: Entry) -> tuple[list[tuple[float, int]], tuple[int, float], int]:
        tags: list[tuple[float, int]] = []
        node = entry.node
        while node is not None and node.parent is not None:
            tags.insert(0, (node.tag, node.index))
            node = node.parent
        return tags, entry.key, entry.seq


@given(STEPS)
def test_it_agrees_with_a_naive_tree(steps: list[tuple[str, int, str]]) -> None:
    tree = QueueTree()
    naive = Naive(tree)
    gone: list[Entry] = []
    nodes = [tree.node(path, (1.0, 1.0 + at)) for at, path in enumerate(PATHS)]
    for seq, (verb, at, model) in enumerate(steps):
        node = nodes[at % len(nodes)]
        if verb == "push":
            naive.entries.append(put(tree, node, seq, model))
        elif verb == "return" and gone:
            entry = gone.pop(at % len(gone))
            entry.move(Event.REQUEUED)
            tree.push(entry)
            naive.entries.append(entry)
        elif verb in ("leave", "serve") and naive.entries:
            head = tree.head([model])
            entry = naive.entries[at % len(naive.entries)] if verb == "leave" or head is None else head
            if verb == "serve":
                tree.serve(entry)
            naive.entries.remove(entry)
            take(tree, entry)
            gone.append(entry)
        elif verb in ("charge", "refund"):
            tree.charge(node, at if verb == "charge" else -at / 2)
        assert tree.waiting == len(naive.entries)
        assert sorted(tree.models()) == sorted({entry.request.model for entry in naive.entries})
        for models in (["x"], ["y"], ["x", "y"], ["z"], []):
            expected = naive.in_order(models)
            assert list(tree.in_order(models)) == expected
            assert tree.head(models) is (expected[0] if expected else None)


def test_without_levels_the_root_is_the_only_flow() -> None:
    tree = QueueTree()
    second, first = put(tree, tree.root, 2, "y"), put(tree, tree.root, 1, "x")
    assert tree.head(MODELS) is first
    assert list(tree.in_order(MODELS)) == [first, second]


def test_a_flow_back_from_idle_hoards_no_credit_and_keeps_its_debt() -> None:
    tree = QueueTree()
    busy, idle, debtor = (tree.node((name,), (1.0,)) for name in ("busy", "idle", "debtor"))
    tree.charge(debtor, 100.0)
    for seq in range(10):
        entry = put(tree, busy, seq)
        tree.serve(entry)
        take(tree, entry)
        tree.charge(busy, 1.0)
    put(tree, idle, 10)
    put(tree, debtor, 11)
    assert idle.tag == pytest.approx(9.0)
    assert debtor.tag == 100.0


def test_a_heavier_flow_is_charged_less() -> None:
    tree = QueueTree()
    node = tree.node(("t",), (4.0,))
    tree.charge(node, 8.0)
    assert node.tag == 2.0


def test_refunds_for_ever_keep_the_heaps_small() -> None:
    tree = QueueTree()
    node = tree.node(("t",), (1.0,))
    put(tree, node, 1)
    for _ in range(1000):
        tree.charge(node, 1.0)
        tree.charge(node, -1.0)
    assert len(tree.root.heaps["x"]) <= 2 * len(tree.root.children) + 17
