"""The queue tree against a naive one: whoever is next, is next, whatever came, left or was charged before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.conformance.tree_check import check_tree
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, QueueTree
from penstock.core.values.lifecycle import Event
from tests.core.drive import lease, request

NODES_MAX = 20_000

PATHS = [("a", "t1", "u1"), ("a", "t1", "u2"), ("a", "t2", "u1"), ("b", "t1", "u1"), ("b", "t3", "u2")]
MODELS = ["x", "y"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "leave", "serve", "charge", "refund", "return", "hold", "let go", "end"]),
        st.integers(0, 30),
        st.sampled_from(MODELS),
    ),
    min_size=30,
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


def up(entry: Entry) -> Iterator[Node]:
    node: Node | None = entry.node
    while node is not None:
        yield node
        node = node.parent


@dataclass
class Naive:
    """The same order, found by looking at everything."""

    tree: QueueTree
    entries: list[Entry] = field(default_factory=list)

    def in_order(self, models: list[str]) -> list[Entry]:
        wanted = [x for x in self.entries if x.request.model in models and not any(node.capped for node in up(x))]
        return sorted(wanted, key=self._rank)

    def _rank(self, entry: Entry) -> tuple[list[tuple[float, int]], tuple[int, float], int]:
        tags: list[tuple[float, int]] = []
        node: Node | None = entry.node
        while node is not None and node.parent is not None:
            tags.insert(0, (node.tag, node.index))
            node = node.parent
        return tags, entry.key, entry.seq


@given(STEPS)
def test_it_agrees_with_a_naive_tree(steps: list[tuple[str, int, str]]) -> None:
    tree = QueueTree()
    naive = Naive(tree)
    in_flight: list[Entry] = []
    held: list[Node] = []
    for seq, (verb, at, model) in enumerate(steps):
        node = tree.node(path := PATHS[at % len(PATHS)], (1.0, 1.0 + at % len(PATHS), 2.0))
        if verb == "push":
            naive.entries.append(put(tree, node, seq, model))
        elif verb == "return" and in_flight:
            entry = in_flight.pop(at % len(in_flight))
            tree.returned(entry.node)
            entry.move(Event.REQUEUED)
            tree.push(entry)
            naive.entries.append(entry)
        elif verb == "end" and in_flight:
            entry = in_flight.pop(at % len(in_flight))
            tree.returned(entry.node)
            entry.move(Event.FINISHED)
            entry.lease = None
            tree.release(entry.node)
        elif verb in ("leave", "serve") and naive.entries:
            head = tree.head([model])
            entry = naive.entries[at % len(naive.entries)] if verb == "leave" or head is None else head
            if verb == "serve":
                tree.serve(entry)
            naive.entries.remove(entry)
            take(tree, entry)
            tree.lent(entry.node)
            in_flight.append(entry)
        elif verb in ("charge", "refund"):
            tree.charge(node, at if verb == "charge" else -at / 2)
        elif verb == "hold":
            held.append(list(up_from(node))[at % len(path)])
            tree.cap(held[-1])
        elif verb == "let go" and held:
            tree.uncap(held.pop(at % len(held)))
        for entry in in_flight:
            entry.lease = entry.lease or lease(entry.seq)
        check_tree(tree, [*naive.entries, *in_flight])
        assert sorted(tree.models()) == sorted({entry.request.model for entry in naive.entries})
        for models in (["x"], ["y"], ["x", "y"], ["z"], []):
            expected = naive.in_order(models)
            assert list(tree.in_order(models)) == expected
            assert tree.head(models) is (expected[0] if expected else None)


def up_from(node: Node) -> Iterator[Node]:
    """A flow and its groups, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def test_a_group_whose_flows_are_all_held_hides_no_other() -> None:
    tree = QueueTree()
    low, high = tree.node(("a", "t"), (1.0, 1.0)), tree.node(("b", "u"), (1.0, 1.0))
    put(tree, low, 1)
    behind = put(tree, high, 2)
    tree.cap(low)
    assert tree.head(["x"]) is behind
    assert list(tree.in_order(["x"])) == [behind]


def test_a_capped_flow_is_not_forgotten_so_that_its_cap_can_end() -> None:
    tree = QueueTree()
    node = tree.node(("t",), (1.0,))
    entry = put(tree, node, 1)
    tree.cap(node)
    entry.move(Event.CANCELLED)
    tree.remove(entry)
    tree.release(node)
    assert tree.node(("t",), (1.0,)) is node
    tree.uncap(node)
    tree.release(node)
    assert tree.nodes == 0


@pytest.mark.slow
def test_a_million_models_and_users_leave_nothing_behind() -> None:
    """A tenth of a million here; what is remembered does not grow with it."""
    tree = QueueTree()
    for seq in range(100_000):
        node = tree.node(("key", f"user{seq}"), (1.0, 1.0))
        entry = put(tree, node, seq, f"model{seq}")
        tree.serve(entry)
        take(tree, entry)
        tree.lent(node)
        tree.charge(node, 10.0)  # in debt, so it is not forgotten at once
        tree.returned(node)
        tree.release(node)
        assert not tree.root.heaps
        assert not tree.root.backlog
    assert tree.nodes <= NODES_MAX


def test_debtors_beyond_a_number_are_forgiven_and_those_at_work_are_not() -> None:
    tree = QueueTree()
    busy = tree.node(("busy",), (1.0,))
    put(tree, busy, 0)
    most = 0
    for at in range(2 * NODES_MAX + 10):
        tree.charge(tree.node((f"debtor{at}",), (1.0,)), 5.0)
        most = max(most, tree.nodes)
    assert most == NODES_MAX
    assert tree.node(("busy",), (1.0,)) is busy


def test_flows_at_work_beyond_the_bound_are_kept_and_seldom_swept() -> None:
    tree, sweeps = QueueTree(), [0]
    for at in range(25_000):
        tree.lent(tree.node((f"busy{at}",), (1.0,)))
        if tree._sweep_at != sweeps[-1]:
            sweeps.append(tree._sweep_at)
    assert sweeps == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 20_000, 30_000]
    assert tree.nodes == 25_000, "less than the next sweep is at: there was one for each of these"


def test_a_weight_may_change_while_its_flow_is_at_work() -> None:
    tree = QueueTree()
    node = tree.node(("t",), (1.0,))
    put(tree, node, 1)
    assert tree.node(("t",), (3.0,)) is node
    assert tree.root.active_weight == node.weight == 3.0


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


def test_who_looks_through_all_that_wait_meets_few_that_do_not() -> None:
    """Flows that come and go while a few wait all the time, as those do that wait for an endpoint."""
    tree = QueueTree()
    stays = [put(tree, tree.node((f"stays-{seq}",), (1.0,)), seq) for seq in range(3)]
    for seq in range(3, 500):
        node = tree.node((f"passes-{seq}",), (1.0,))
        entry = put(tree, node, seq)
        tree.serve(entry)
        tree.charge(node, 5.0)  # in debt, so it is remembered
        take(tree, entry)
        assert len(tree.root.heaps["x"]) <= 2 * len(stays) + 17
    assert len(tree.root.children) == 500
    assert set(tree.in_order(["x"])) == set(stays)


def test_new_weights_reach_a_level_also_where_many_share_a_part_above_it() -> None:
    tree = QueueTree()
    keyed = tree.node(("team", "x"), (1.0, 1.0))
    shared = tree.node((" anonymous", "team", "x"), (1.0, 1.0, 1.0))
    assert keyed.parent is not None
    assert shared.parent is not None
    assert shared.parent.parent is not None
    tree.reweigh(0, {"team": 2.0, " anonymous": 3.0}, {})
    assert (keyed.parent.weight, shared.parent.parent.weight, shared.parent.weight) == (2.0, 3.0, 1.0)
    tree.reweigh(1, {"x": 4.0}, {})
    assert (keyed.weight, shared.weight, shared.parent.weight) == (4.0, 4.0, 1.0)


def test_a_weight_by_an_operator_holds_against_those_that_requests_bring() -> None:
    tree = QueueTree()
    early = tree.node(("early",), (1.0,))
    tree.reweigh(0, {"early": 2.0, "other": 2.0}, {"early": 5.0, "late": 7.0})
    late = tree.node(("late",), (1.0,))
    assert (early.weight, late.weight) == (5.0, 7.0)
    assert tree.node(("early",), (3.0,)).weight == 5.0
    assert (tree.weight(("late",)), tree.weight(("other",))) == (7.0, 2.0)
    inside = tree.node((" anonymous", "early"), (1.0, 1.0))
    assert inside.weight == 1.0, "a name inside a shared part has no weight of a tenant"
    tree.reweigh(0, {"early": 2.0}, {})
    assert early.weight == 2.0
    assert tree.node(("late",), (3.0,)).weight == 3.0
