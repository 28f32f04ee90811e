"""What a routing policy is asked: of these endpoints that are open, which one? And is there one worth waiting for?

A policy sees a request through a `Context`: how loaded each endpoint is, how many prompt tokens it has yet to compute,
how much of this prompt it holds, and where the request's session is at home. Nothing else, so a policy is a few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.values.request import Request

NOWHERE: dict[int, int] = {}
LOAD: Final = "load per slot"  # what endpoints are compared by wherever nothing else is, for people


class Context:
    """One request, at the moment of its decision."""

    __slots__ = ("_alive", "home", "matched", "now", "output_tokens", "price_weight_s", "prompt_tokens", "request")

    def __init__(
        self,
        request: Request,
        *,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        matched: dict[int, int] = NOWHERE,
        home: Endpoint | None = None,
        alive: Callable[[], Sequence[Endpoint]] = tuple,
        price_weight_s: float = 0.0,
    ) -> None:
        self.request = request
        self.prompt_tokens = prompt_tokens  #: as estimated, without the part that most endpoints hold
        self.output_tokens = output_tokens
        self.now = now
        self.matched = matched  #: tokens held of these, by endpoint index
        self.home = home  #: where its session is at home, while that one is alive
        self._alive = alive
        self.price_weight_s = price_weight_s  #: of a later first token, for each unit that an endpoint is cheaper

    def load(self, endpoint: Endpoint) -> float:
        """Requests believed to be there, running or waiting."""
        return endpoint.ledger.load(self.now)

    def matched_tokens(self, endpoint: Endpoint) -> int:
        """How much of this prompt it is believed to hold."""
        return self.matched.get(endpoint.index, 0)

    def uncached_tokens(self, endpoint: Endpoint) -> int:
        """What it would have to compute of this prompt."""
        return max(1, self.prompt_tokens - self.matched.get(endpoint.index, 0))

    def prefill_tokens(self, endpoint: Endpoint) -> float:
        """Prompt tokens it was sent and has not computed yet."""
        return endpoint.ledger.prefill.left(self.now)

    def alive(self) -> Sequence[Endpoint]:
        """All endpoints that are well and serve the model, whether or not they are open now."""
        return self._alive()


class RoutingPolicy:
    """Chooses late: at dispatch, among endpoints that admission leaves open."""

    uses_prefix: bool = False  #: wants to know who holds how much of the prompt
    weighs_load: bool = False  #: then what most endpoints hold, or should hold, is no reason to go to one
    uses_session: bool = False  #: wants to know where the session is at home
    reckons: bool = False  #: says how long a wait for what is cached elsewhere is worth
    takes_turns: bool = False  #: its choices depend on those before, so it has to be told of all
    scores_by: str | None = None  #: what `score` was in the last decision, for people; None: no numbers were compared

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Endpoint:
        """One of `endpoints` (never empty, all serve the request's model)."""
        raise NotImplementedError

    def score(self, endpoint: Endpoint, context: Context) -> float:
        """What it has just compared endpoints by, for explanations. Nothing decides by it."""
        return endpoint.ledger.load(context.now) / max(1, endpoint.slots)

    def preferred(self, context: Context) -> Sequence[Endpoint]:  # noqa: ARG002
        """The endpoints worth waiting for, of those alive; empty where any will do. Changes nothing."""
        return ()

    def worth_waiting(
        self,
        context: Context,  # noqa: ARG002
        holders: Sequence[Endpoint],  # noqa: ARG002
        instead: Sequence[Endpoint],  # noqa: ARG002
        ahead: Mapping[Endpoint, int],  # noqa: ARG002
        pressure: float,  # noqa: ARG002
    ) -> tuple[list[Endpoint], float]:
        """The `holders` to wait for `instead` of going to one of those now, and for how many seconds at most.

        `ahead`: how many wait for an endpoint already. `pressure`: how many others come later by as much as one
        endpoint computes longer. Changes nothing.
        """
        return [], 0.0
