"""The fairness policies by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.fairness.base import FairnessPolicy
from penstock.core.fairness.fcfs import FirstComeFirstServed
from penstock.core.fairness.round_robin import RoundRobinFlows
from penstock.core.fairness.weighted_tokens import WeightedTokens
from penstock.core.settings import Prices

POLICIES: dict[str, Callable[[Prices], FairnessPolicy]] = {
    "weighted_tokens": WeightedTokens,
    "round_robin": lambda _: RoundRobinFlows(),
    "fcfs": lambda _: FirstComeFirstServed(),
}
