"""No fairness between flows: first come, first served, all in one line."""

from __future__ import annotations

from penstock.core.queueing.fairness.base import FairnessPolicy


class FirstComeFirstServed(FairnessPolicy):
    """One flow for all."""

    uses_flows = False

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:  # noqa: ARG002
        return 0.0
