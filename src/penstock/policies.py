"""For policies of other packages: the base classes and the values that a policy gets.

See docs/policies/README.md; `penstock.conformance` tests a policy. Plain Python, whether or not the rest is compiled.
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
    """Which flow is next: the one with the least service per weight. A policy returns the cost of a request.

    The entry point names this class, or a factory that takes the prices of a model's tokens.
    """

    uses_flows = True  #: False: all requests are one flow
    by_request = False  #: each request counts the same, so waits are estimated by turns

    def __init__(self, prices: Prices) -> None:
        self.prices = prices

    def cost(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        """Returns the cost of a request by its estimated or actual use. Never negative."""
        raise NotImplementedError


class Routing:
    """Choosing an endpoint for a request.

    The entry point names this class, or a factory that takes the settings and a source of random numbers (0 to 1), the
    only allowed randomness, so that a run can be repeated.
    """

    uses_prefix = False  #: uses `context.matched`: the cached tokens of the prompt by endpoint
    weighs_load = False  #: then prefixes cached on most endpoints are left out
    uses_session = False  #: uses `context.home`: the endpoint of the request's session
    takes_turns = False  #: its choices depend on earlier ones, so it is also asked with a single endpoint
    scored_by: str | None = None  #: the label of its scores ("KV usage, %"); None: not shown

    def __init__(self, settings: RoutingSettings, draw: Callable[[], float]) -> None:
        self.settings = settings
        self.draw = draw

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> Sequence[float]:
        """Returns a number for each of `endpoints`, in order: the least is best, infinity is chosen only as a last
        resort, and the least recently used endpoint wins ties.

        `endpoints` are never empty and all serve the request's model. A policy may instead have a method
        `choose(endpoints, context)` that returns one of them.
        """
        raise NotImplementedError

    def preferred(self, context: Context) -> Sequence[Endpoint]:  # noqa: ARG002
        """Returns those of `context.alive()` worth waiting for (`routing.affinity_wait`), if any."""
        return ()
