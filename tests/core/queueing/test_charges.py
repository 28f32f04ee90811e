"""What a flow is charged: an estimate, more when an answer outgrows it, in the end the truth and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queueing.charges import Charges
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import QueueTree
from penstock.core.values.request import Usage
from penstock.core.values.settings import Prices
from tests.core.drive import waiting_entry

REFRESH_TOKENS = 64


def flow(path: tuple[str, ...] = ("t",), weights: tuple[float, ...] = (1.0,)) -> tuple[QueueTree, Charges, Entry]:
    tree, account = QueueTree(), Charges(["weighted_tokens"], Prices())
    entry = waiting_entry("r", prompt_tokens=100, output_tokens=50)
    entry.node = tree.node(path, weights)
    entry.cost = account.estimated_cost(entry)
    return tree, account, entry


def test_policies_for_prices_of_models_are_bounded() -> None:
    account = Charges(["weighted_tokens"], Prices())
    kept = []
    for price in range(5_000):
        account.policy(0, Prices(prompt=float(price)))
        kept.append(len(account._priced))
    assert max(kept) == 4_096


def test_the_estimate_is_charged_at_dispatch() -> None:
    tree, account, entry = flow()
    account.dispatched(tree, entry)
    assert entry.charged == entry.node.tag == 100 + 2 * 50


def test_an_answer_that_outgrows_its_estimate_is_charged_a_step_in_advance() -> None:
    tree, account, entry = flow()
    account.dispatched(tree, entry)
    charged = []
    for tokens in (49, 50, 51, 50 + REFRESH_TOKENS, 51 + REFRESH_TOKENS, 500):
        entry.output_seen = tokens
        account.progressed(tree, entry)
        charged.append((entry.charged - 100) / 2)
        assert charged[-1] - REFRESH_TOKENS < tokens <= charged[-1] or charged[-1] == 50
    assert charged == [50, 50, 114, 114, 178, 50 + 64 * 8]


def test_it_tells_when_others_may_be_next() -> None:
    tree, account, entry = flow()
    account.dispatched(tree, entry)
    entry.output_seen = 50
    assert not account.progressed(tree, entry)
    entry.output_seen = 51
    assert account.progressed(tree, entry)


def test_the_truth_replaces_whatever_was_charged() -> None:
    tree, account, entry = flow()
    account.dispatched(tree, entry)
    entry.output_seen = 1000
    account.progressed(tree, entry)
    assert account.settle(tree, entry, Usage(80, 10, cached_tokens=60)) == 20 + 20
    assert entry.charged == 40
    assert entry.node.tag == pytest.approx(40)


def test_what_did_not_run_costs_nothing_and_may_be_charged_again() -> None:
    tree, account, entry = flow()
    for _ in range(3):
        account.dispatched(tree, entry)
        account.refund(tree, entry)
        assert entry.charged == entry.node.tag == 0
        assert entry.output_seen == 0


USAGES = st.builds(Usage, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
WEIGHTS = st.floats(0.1, 100)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["settle", "refund", "progress"]), USAGES), max_size=60),
    st.tuples(WEIGHTS, WEIGHTS, WEIGHTS),
)
def test_in_the_end_every_level_was_charged_the_true_cost_over_its_weight(
    steps: list[tuple[int, str, Usage]], weights: tuple[float, float, float]
) -> None:
    tree, account = QueueTree(), Charges(["weighted_tokens"], Prices())
    paths = [("a", "x"), ("a", "y"), ("b", "x")]
    nodes = [tree.node(path, (1.5, weights[at])) for at, path in enumerate(paths)]
    true = [0.0, 0.0, 0.0]
    for at, verb, usage in steps:
        entry = waiting_entry("r", prompt_tokens=30, output_tokens=20)
        entry.node = nodes[at]
        entry.cost = account.estimated_cost(entry)
        account.dispatched(tree, entry)
        if verb == "progress":
            entry.output_seen = usage.completion_tokens
            account.progressed(tree, entry)
        if verb == "refund":
            account.refund(tree, entry)
        else:
            true[at] += account.settle(tree, entry, usage)
    for at, node in enumerate(nodes):
        assert node.tag == pytest.approx(true[at] / weights[at], rel=1e-6, abs=1e-3)
    parent = nodes[0].parent
    assert parent is not None
    assert parent.tag == pytest.approx((true[0] + true[1]) / 1.5, rel=1e-6, abs=1e-3)


def test_without_usage_an_answer_that_does_not_stream_counts_as_estimated_and_one_that_does_as_seen() -> None:
    silent, streamed = waiting_entry("a", output_tokens=50), waiting_entry("b", output_tokens=50, streamed=True)
    for entry in (silent, streamed):
        entry.output_seen = 7
    assert silent.presumed_usage().completion_tokens == 50
    assert streamed.presumed_usage().completion_tokens == 7
