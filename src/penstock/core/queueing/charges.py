"""Charging a flow for a request: an estimate at dispatch, more as a long answer streams, the actual cost at the end.

Without the estimate a flow could be given a hundred requests before the first of them counts; without the refresh an
underestimated answer would run free until it ends; without the settlement a flow with odd requests would get more or
less than its share for ever. A request that never reached an engine, or returned without a byte, is refunded in full.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import QueueTree
from penstock.core.queueing.fairness import POLICIES, FairnessPolicy
from penstock.core.values.request import Usage
from penstock.core.values.settings import Prices

REFRESH_TOKENS = 64  # an answer longer than estimated is charged in steps of that many tokens, so the error stays below
PRICED_MAX = 4_096  # policies made for prices of models: as many as models may have, and those of some reloads


class Charges:
    """Charges entries to their flows, by the policy of their band and the prices of their model."""

    def __init__(self, policies: Sequence[str], prices: Prices) -> None:
        self._names = tuple(policies)  # by band
        made = {name: POLICIES[name](prices) for name in dict.fromkeys(policies)}
        self._policies = [made[name] for name in policies]
        self.by_flow = [policy.uses_flows for policy in self._policies]  #: whether a band (by rank) has flows
        self._priced: dict[tuple[str, Prices], FairnessPolicy] = {}

    @property
    def uses_flows(self) -> bool:
        """Whether any band has flows."""
        return any(self.by_flow)

    @property
    def by_request(self) -> bool:
        """Whether each request counts the same, in every band."""
        return all(policy.by_request for policy in self._policies)

    def policy(self, band: int, prices: Prices | None = None) -> FairnessPolicy:
        """Returns the policy between the flows of a band (by rank), at `prices`; None: at those of all models."""
        return self._policies[band] if prices is None else self._with(band, prices)

    def _with(self, band: int, prices: Prices) -> FairnessPolicy:
        key = self._names[band], prices
        made = self._priced.get(key)
        if made is None:
            if len(self._priced) >= PRICED_MAX:
                self._priced.clear()
            made = self._priced[key] = POLICIES[key[0]](prices)
        return made

    def appraised(self, entry: Entry) -> None:
        """Record the estimated charge of a request about to be sent."""
        tokens, cached, prices = entry.prompt_tokens, entry.cached_tokens, entry.prices
        policy = self._policies[entry.band] if prices is None else self._with(entry.band, prices)
        entry.cost = policy.cost(
            prompt_tokens=tokens,
            cached_tokens=cached if cached < tokens else tokens,
            completion_tokens=entry.output_tokens,
        )

    def estimated_cost(self, entry: Entry) -> float:
        """Returns the estimated charge of a request, given its cached tokens."""
        return self._cost(entry, entry.band, entry.output_tokens)

    def _cost(self, entry: Entry, band: int, output_tokens: int) -> float:
        """The charge of a request with so many `output_tokens`, by the policy of a band."""
        tokens, cached = entry.prompt_tokens, entry.cached_tokens
        prices = entry.prices
        policy = self._policies[band] if prices is None else self._with(band, prices)
        return policy.cost(
            prompt_tokens=tokens,
            cached_tokens=cached if cached < tokens else tokens,
            completion_tokens=output_tokens,
        )

    def full_cost(self, entry: Entry) -> float:
        """Returns the estimated charge of a request without cached tokens."""
        return self.policy(entry.band, entry.prices).cost(
            prompt_tokens=entry.prompt_tokens, cached_tokens=0, completion_tokens=entry.output_tokens
        )

    def recounted(self, entry: Entry, band: int) -> None:
        """Record the charge by the policy of `band`, which counts the request from now on.

        No tree has been charged by that policy yet: finding its place in one (`SchedulerState.place`) does that.
        """
        entry.charged = 0.0 if entry.lease is None else self._cost(entry, band, entry.charged_output)

    def dispatched(self, tree: QueueTree, entry: Entry) -> None:
        """Charge the estimate to the entry's flow."""
        entry.charged_output = entry.output_tokens
        cost = entry.cost
        if cost != entry.charged:
            tree.charge(entry.node, cost - entry.charged)
            entry.charged = cost

    def progressed(self, tree: QueueTree, entry: Entry) -> bool:
        """Charge an answer's growth beyond its estimate, a step in advance.

        Returns True if something was charged, so that another request may be next.
        """
        if entry.output_seen <= entry.charged_output:
            return False
        steps = -(-(entry.output_seen - entry.output_tokens) // REFRESH_TOKENS)
        entry.charged_output = entry.output_tokens + steps * REFRESH_TOKENS
        self._charge_up_to(tree, entry, self._cost(entry, entry.band, entry.charged_output))
        return True

    def settle(self, tree: QueueTree, entry: Entry, usage: Usage) -> float:
        """Replace the estimate by the true `usage`. Returns the true cost."""
        prices = entry.prices
        policy = self._policies[entry.band] if prices is None else self._with(entry.band, prices)
        cost = policy.cost(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
        if cost != entry.charged:
            self._charge_up_to(tree, entry, cost)
        return cost

    def refund(self, tree: QueueTree, entry: Entry) -> None:
        """Give the flow back everything: the request did not run, so its charge is 0 again."""
        self._charge_up_to(tree, entry, 0.0)
        entry.charged_output = entry.output_seen = 0

    def _charge_up_to(self, tree: QueueTree, entry: Entry, cost: float) -> None:
        if cost != entry.charged:
            tree.charge(entry.node, cost - entry.charged)
            entry.charged = cost
