"""Fairness by requests: flows take turns, one request each (twice as many for twice the weight)."""

from __future__ import annotations

from penstock.core.queueing.fairness.base import FairnessPolicy


class RoundRobinFlows(FairnessPolicy):
    """Every request counts one."""

    by_request = True

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:  # noqa: ARG002
        return 1.0
