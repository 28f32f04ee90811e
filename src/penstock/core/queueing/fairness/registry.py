"""The fairness policies by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.queueing.fairness.base import FairnessPolicy
from penstock.core.queueing.fairness.fcfs import FirstComeFirstServed
from penstock.core.queueing.fairness.round_robin import RoundRobinFlows
from penstock.core.queueing.fairness.weighted_tokens import WeightedTokens
from penstock.core.values.settings import Prices

POLICIES: dict[str, Callable[[Prices], FairnessPolicy]] = {
    "weighted_tokens": WeightedTokens,
    "round_robin": lambda _: RoundRobinFlows(),
    "fcfs": lambda _: FirstComeFirstServed(),
}
