"""Fairness policies: how service is counted when flows take turns.

The tree (`fair_tree.py`) serves the flow that got the least, per weight. A policy returns the cost of a request; all
else is the tree's. A new one is a class here, its name in `POLICIES`, a page in docs/policies and a line in the
conformance map.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.values.settings import Prices


class FairnessPolicy:
    """How service is counted."""

    uses_flows: bool = True  #: False: all requests are one flow
    by_request: bool = False  #: each request counts the same

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        """Returns the cost of a request by its estimated or actual use. Never negative."""
        raise NotImplementedError


class WeightedTokens(FairnessPolicy):
    """Priced tokens, settled by usage: each flow gets service in proportion to its weight, for any sizes of requests.

    A completion token keeps an engine busy longer than a prompt token, a cached prompt token hardly at all. The
    estimate is charged at dispatch and settled by the true usage, as Kubernetes' fair queuing does with its guess G and
    the true S (KEP-1040). Bound, for sibling flows backlogged together from the interval's start:
    |W_f/w_f - W_g/w_g| <= (c_max + E_f)/w_f + (c_max + E_g)/w_g, E = the estimates' error of what is in flight.
    """

    def __init__(self, prices: Prices) -> None:
        self._prompt, self._cached_prompt, self._completion = prices.prompt, prices.cached_prompt, prices.completion

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        computed = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
        return self._prompt * computed + self._cached_prompt * cached_tokens + self._completion * completion_tokens


class RoundRobinFlows(FairnessPolicy):
    """Flows take turns, one request each, twice as many for twice the weight."""

    by_request = True

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:  # noqa: ARG002
        return 1.0


class FirstComeFirstServed(FairnessPolicy):
    """No fairness: one flow for all."""

    uses_flows = False

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:  # noqa: ARG002
        return 0.0


POLICIES: dict[str, Callable[[Prices], FairnessPolicy]] = {
    "weighted_tokens": WeightedTokens,
    "round_robin": lambda _: RoundRobinFlows(),
    "fcfs": lambda _: FirstComeFirstServed(),
}
