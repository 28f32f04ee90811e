"""What a flow is charged for a request: an estimate at dispatch, more as a long answer streams, the truth at the end.

Without the estimate a flow could be given a hundred requests before the first of them counts; without the refresh an
underestimated answer would run free until it ends; without the settlement a flow with odd requests would get more or
less than its share for ever. What never reached an engine, or came back from it without a byte, is refunded in full.
"""

from __future__ import annotations

from penstock.core.fairness.base import FairnessPolicy
from penstock.core.fairness.tree import QueueTree
from penstock.core.flow import Entry
from penstock.core.request import Usage

REFRESH_TOKENS = 64  # an answer longer than estimated is charged in steps of that many tokens, so the error stays below


class Account:
    """Charges entries to their flows, by one policy."""

    def __init__(self, policy: FairnessPolicy) -> None:
        self._policy = policy

    def estimated_cost(self, entry: Entry) -> float:
        estimate, cached = entry.estimate, entry.cached_tokens
        tokens = estimate.prompt_tokens
        return self._policy.cost(
            prompt_tokens=tokens,
            cached_tokens=cached if cached < tokens else tokens,
            completion_tokens=estimate.output_tokens,
        )

    def full_cost(self, entry: Entry) -> float:
        """What it is estimated to count for if nothing of its prompt is cached."""
        estimate = entry.estimate
        return self._policy.cost(
            prompt_tokens=estimate.prompt_tokens, cached_tokens=0, completion_tokens=estimate.output_tokens
        )

    def recounted(self, entry: Entry) -> None:
        """Another policy counts from now on, and no tree has been charged by it: note what it would have been."""
        entry.charged = 0.0
        if entry.lease is not None:
            entry.charged = self._policy.cost(
                prompt_tokens=entry.estimate.prompt_tokens,
                cached_tokens=min(entry.cached_tokens, entry.estimate.prompt_tokens),
                completion_tokens=entry.charged_output,
            )

    def dispatched(self, tree: QueueTree, entry: Entry) -> None:
        """Charge the estimate."""
        entry.charged_output = entry.estimate.output_tokens
        self._charge_up_to(tree, entry, entry.cost)

    def progressed(self, tree: QueueTree, entry: Entry) -> bool:
        """An answer has grown: charge what it is ahead of the estimate, a step in advance. True: others may be next."""
        if entry.output_seen <= entry.charged_output:
            return False
        steps = -(-(entry.output_seen - entry.estimate.output_tokens) // REFRESH_TOKENS)
        entry.charged_output = entry.estimate.output_tokens + steps * REFRESH_TOKENS
        self._charge_up_to(
            tree,
            entry,
            self._policy.cost(
                prompt_tokens=entry.estimate.prompt_tokens,
                cached_tokens=min(entry.cached_tokens, entry.estimate.prompt_tokens),
                completion_tokens=entry.charged_output,
            ),
        )
        return True

    def settle(self, tree: QueueTree, entry: Entry, usage: Usage) -> float:
        """Replace the estimate by the truth. Returns the true cost."""
        cost = self._policy.cost(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
        self._charge_up_to(tree, entry, cost)
        return cost

    def refund(self, tree: QueueTree, entry: Entry) -> None:
        """It did not run: give everything back."""
        self._charge_up_to(tree, entry, 0.0)
        entry.charged_output = entry.output_seen = 0

    def _charge_up_to(self, tree: QueueTree, entry: Entry, cost: float) -> None:
        assert entry.node is not None
        if cost != entry.charged:
            tree.charge(entry.node, cost - entry.charged)
            entry.charged = cost
