"""Fairness by tokens: each flow gets service in proportion to its weight, for any sizes of its requests.

Service is tokens times price: a completion token keeps an engine busy longer than a prompt token, a cached prompt
token hardly at all. The estimate is charged at dispatch and settled by the true usage, as Kubernetes' fair queuing
does with its guess G and the true S (KEP-1040). Bound, for sibling flows backlogged together from the interval's start:
|W_f/w_f - W_g/w_g| <= (c_max + E_f)/w_f + (c_max + E_g)/w_g, E = the estimates' error of what is in flight.
"""

from __future__ import annotations

from penstock.core.queueing.fairness.base import FairnessPolicy
from penstock.core.values.settings import Prices


class WeightedTokens(FairnessPolicy):
    """Priced tokens, settled by usage."""

    def __init__(self, prices: Prices) -> None:
        self._prompt, self._cached_prompt, self._completion = prices.prompt, prices.cached_prompt, prices.completion

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        computed = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
        return self._prompt * computed + self._cached_prompt * cached_tokens + self._completion * completion_tokens
