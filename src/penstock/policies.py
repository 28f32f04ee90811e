"""What another package needs to write a policy: the bases to begin from, and what a policy is told.

docs/policies/README.md says how; `penstock.conformance` tries one. Plain Python, whether or not the rest is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.queueing.entry import Entry
from penstock.core.routing.policies.base import Context
from penstock.core.values.request import Request
from penstock.core.values.settings import Prices, RoutingSettings

__all__ = [
    "Context",
    "Endpoint",
    "Entry",
    "Fairness",
    "Prices",
    "Request",
    "Routing",
    "RoutingSettings",
    "least_loaded",
]


class Fairness:
    """Which flow is next: the one that got the least, per weight. A policy says what a request counts for.

    The entry point names this class, or whatever makes one of the prices of a model's tokens.
    """

    uses_flows = True  #: False: all requests stand in one line, whoever sent them
    by_request = False  #: each request counts the same, so waits are foreseen by turns

    def __init__(self, prices: Prices) -> None:
        self.prices = prices

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        """What a request counts for, by what it is estimated to use or was seen to use. Never negative."""
        raise NotImplementedError


class Routing:
    """Where a request goes, of the endpoints that are open to it.

    The entry point names this class, or whatever makes one of the settings and of a source of random numbers (0 to 1):
    a policy has no randomness of its own, so that a run can be repeated.
    """

    uses_prefix = False  #: wants `context.matched`: who holds how much of the prompt
    weighs_load = False  #: then what most endpoints hold is no reason to go to one of them, and is left out
    uses_session = False  #: wants `context.home`: where the request's session lives
    takes_turns = False  #: its choices depend on those before, so it is asked also where there is one endpoint only
    scored_by: str | None = None  #: what its scores are, to be shown beside them ("KV usage, %"); None: not shown

    def __init__(self, settings: RoutingSettings, draw: Callable[[], float]) -> None:
        self.settings = settings
        self.draw = draw

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> Sequence[float]:
        """One number for each of `endpoints`, in their order: the least is best, infinity is never taken while another
        will do, and among equals the endpoint whose last request is the longest ago goes first.

        `endpoints` are never empty and all serve the request's model. A policy that would rather name the endpoint has
        a method `choose(endpoints, context)` that returns one of them; then it is not asked for scores.
        """
        raise NotImplementedError

    def preferred(self, context: Context) -> Sequence[Endpoint]:  # noqa: ARG002
        """Those of `context.alive()` worth waiting for (`routing.affinity_wait`); none where any will do."""
        return ()
