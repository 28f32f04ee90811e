"""Policies of other packages: their faults are replaced by a default, counted and reported, and never stop the
scheduler.

A policy of our own that raised would be a bug to be seen at once. A request that such a policy can't judge is judged by
our rule, and `Trouble` counts these and keeps the last error. `config/sections/policies.py` finds such policies, the
conformance suite (`penstock.conformance`) tries them before they serve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, SupportsFloat

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fairness import FairnessPolicy, WeightedTokens
from penstock.core.routing.policies.base import Choice, Context, RoutingPolicy
from penstock.core.routing.policies.least_loaded import LeastLoaded
from penstock.core.values.rows import PolicyTrouble
from penstock.core.values.settings import Prices, RoutingSettings

TOLD_CHARACTERS_MAX = 200  # of an error's text


class Counts(Protocol):
    """Another package's fairness. Its results are checked here."""

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> SupportsFloat: ...


class Routes(Protocol):
    """Another package's routing. Beside this it has `score`, or `choose` if it names an endpoint itself."""

    def preferred(self, context: Context, /) -> Sequence[Endpoint]: ...


class Trouble:
    """The faults of one policy."""

    def __init__(self, decision: str, name: str) -> None:
        self.decision = decision
        self.name = name
        self.count = 0
        self.last = ""

    def note(self, what: str) -> None:
        """Count a fault and keep its text `what`."""
        self.count += 1
        self.last = what[:TOLD_CHARACTERS_MAX]

    def now(self) -> PolicyTrouble:
        """Returns the count and the last fault, for people."""
        return PolicyTrouble(self.decision, self.name, self.count, self.last)


class OutsideFairness(FairnessPolicy):
    """Counts by another package's policy; by tokens if its result is not a number of at least 0."""

    def __init__(self, policy: Counts, prices: Prices, trouble: Trouble) -> None:
        self.uses_flows = bool(getattr(policy, "uses_flows", True))
        self.by_request = bool(getattr(policy, "by_request", False))
        self._policy = policy
        self._instead = WeightedTokens(prices)
        self._trouble = trouble

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        try:
            cost = float(
                self._policy.cost(
                    prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, completion_tokens=completion_tokens
                )
            )
        except Exception as error:  # noqa: BLE001 - whatever another package raises
            self._trouble.note(repr(error))
        else:
            if 0.0 <= cost < math.inf:
                return cost
            self._trouble.note(f"a cost of {cost}")
        return self._instead.cost(
            prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, completion_tokens=completion_tokens
        )


class OutsideRouting(RoutingPolicy):
    """Routes by another package's policy; to the least loaded endpoint if its result is invalid."""

    def __init__(self, policy: Routes, settings: RoutingSettings, draw: Callable[[], float], trouble: Trouble) -> None:
        super().__init__(settings, draw)
        self.uses_prefix = bool(getattr(policy, "uses_prefix", False))
        self.weighs_load = bool(getattr(policy, "weighs_load", False))
        self.uses_session = bool(getattr(policy, "uses_session", False))
        self.takes_turns = bool(getattr(policy, "takes_turns", False))
        scored_by = getattr(policy, "scored_by", None)
        self.scored_by = None if scored_by is None else str(scored_by)
        self._policy = policy
        self._choose: Callable[[Sequence[Endpoint], Context], object] | None = getattr(policy, "choose", None)
        self._score: Callable[[Sequence[Endpoint], Context], Iterable[SupportsFloat]] | None
        self._score = getattr(policy, "score", None)
        self._instead = LeastLoaded(settings, draw)
        self._trouble = trouble

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Choice:
        try:
            if self._choose is None:
                return self._by_score(endpoints, context)
            chosen = self._choose(endpoints, context)
        except Exception as error:  # noqa: BLE001
            self._trouble.note(repr(error))
            return self._instead.choose(endpoints, context)
        for endpoint in endpoints:
            if endpoint is chosen:
                return Choice(endpoint)
        self._trouble.note(f"chose {chosen!r}, which is none of those it was given")
        return self._instead.choose(endpoints, context)

    def _by_score(self, endpoints: Sequence[Endpoint], context: Context) -> Choice:
        """The endpoint with the least of its scores. Raises the policy's errors, and `ValueError`."""
        assert self._score is not None
        scores = [float(score) for score in self._score(endpoints, context)]
        if len(scores) != len(endpoints) or math.isnan(sum(scores)):
            raise ValueError(f"scored {len(endpoints)} endpoints by {scores}")
        return Choice(self.pick(endpoints, scores, context), endpoints, scores, self.scored_by)

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        try:
            preferred = list(self._policy.preferred(context))
        except Exception as error:  # noqa: BLE001
            self._trouble.note(repr(error))
            return ()
        return [endpoint for endpoint in context.alive() if endpoint in preferred]


def outside_order(key: Callable[[Entry, float], SupportsFloat], trouble: Trouble) -> Callable[[Entry, float], float]:
    """Returns a key function of another package's order; by arrival if that raises or is not a number."""

    def guarded(entry: Entry, now: float) -> float:
        try:
            found = float(key(entry, now))
        except Exception as error:  # noqa: BLE001
            trouble.note(repr(error))
            return float(entry.seq)
        if found != found:  # noqa: PLR0124 - not a number: such keys have no order
            trouble.note(f"a key of {found}")
            return float(entry.seq)
        return found

    return guarded
