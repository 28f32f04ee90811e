"""The interface of a routing policy. To score the endpoints that are open to a request, and which are worth waiting
for.

A policy is one list of numbers: `score` gives one for each endpoint, and the least is best. `pick` takes it, and among
equal ones the least recently used endpoint, so that equals take turns (by weight, if weights differ). The explanation
of a dispatch shows the same list. A policy sees a request through a `Context` and an endpoint through its estimates,
and keeps no state between requests, unless it `takes_turns`: so a policy is a few lines, and every choice can be
explained after the fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.values.request import Request
from penstock.core.values.settings import RoutingSettings

NOWHERE: dict[int, int] = {}
LOAD: Final = "load per slot"  # the label of the default comparison


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
        self.home = home  #: the endpoint of its session, while alive
        self._alive = alive
        self.price_weight_s = price_weight_s  #: of a later first token, per unit that an endpoint is cheaper

    def load(self, endpoint: Endpoint) -> float:
        """Returns how many requests are believed to be at the endpoint, running or waiting."""
        return endpoint.ledger.load(self.now)

    def uncached_tokens(self, endpoint: Endpoint) -> int:
        """Returns how many tokens of this prompt the endpoint would have to compute: at least one."""
        return max(1, self.prompt_tokens - self.matched.get(endpoint.index, 0))

    def prefill_tokens(self, endpoint: Endpoint) -> float:
        """Returns how many prompt tokens the endpoint was sent and has not computed yet."""
        return endpoint.ledger.prefill.left(self.now)

    def alive(self) -> Sequence[Endpoint]:
        """Returns all endpoints that are well and serve the model, whether or not they are open now."""
        return self._alive()


class Choice:
    """The chosen endpoint, and the deciding numbers."""

    __slots__ = ("among", "endpoint", "scored_by", "scores")

    def __init__(
        self,
        endpoint: Endpoint,
        among: Sequence[Endpoint] = (),
        scores: Sequence[float] = (),
        scored_by: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.among = among  #: the endpoints that were compared
        self.scores = scores  #: of each of these, in their order
        self.scored_by = scored_by  #: the label of the scores; None: not shown

    def score(self, endpoint: Endpoint) -> float | None:
        """Returns the endpoint's score; None if it was not compared, or by nothing that people can read."""
        if self.scored_by is not None:
            for compared, score in zip(self.among, self.scores, strict=True):
                if compared is endpoint:
                    return score
        return None


class RoutingPolicy:
    """Chooses late: at dispatch, among endpoints that admission leaves open."""

    uses_prefix: bool = False  #: wants to know which endpoint holds how much of the prompt
    weighs_load: bool = False  #: then prefixes that most endpoints hold, or should hold, are ignored
    uses_session: bool = False  #: uses the session's endpoint
    weighs_wait: bool = False  #: has `seconds`, by which a request may wait for a closed endpoint
    takes_turns: bool = False  #: its choices depend on earlier ones, so it is also asked with a single open endpoint
    scored_by: str | None = None  #: the label of its scores; None: not shown

    def __init__(self, settings: RoutingSettings, draw: Callable[[], float]) -> None:
        self.settings = settings
        self.draw = draw  #: a number from 0 up to 1; a policy draws no other, so that a run can be repeated

    def choose(self, endpoints: Sequence[Endpoint], context: Context) -> Choice:
        """Returns one of the `endpoints` (never empty, all serve the request's model), by the policy that judges
        here.
        """
        judge = self.judge(endpoints, context)
        scores = judge.score(endpoints, context)
        return Choice(judge.pick(endpoints, scores, context), endpoints, scores, judge.scored_by)

    def at_rest(self, endpoints: Sequence[Endpoint], prompt_tokens: int, now: float) -> Endpoint | None:  # noqa: ARG002
        """Returns the choice if that needs no scores, because all `endpoints` are idle; None: compare them.

        Asked for a prompt that is cached nowhere, at equal prices.
        """
        return None

    def judge(self, endpoints: Sequence[Endpoint], context: Context) -> RoutingPolicy:  # noqa: ARG002
        """Returns the policy that scores this request: another one if this one has no information."""
        return self

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        """Returns one number for each endpoint, in their order. The least is best."""
        raise NotImplementedError

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:  # noqa: ARG002
        """Returns the endpoint with the least score; among equals the next in turn."""
        chosen, least, last = endpoints[0], math.inf, 0.0
        for at, score in enumerate(scores):  # a loop, because it runs over all open endpoints at every dispatch
            if score > least:
                continue
            endpoint = endpoints[at]
            turn = endpoint.turn
            if score < least or turn < last or (turn == last and endpoint.index < chosen.index):
                chosen, least, last = endpoint, score, turn
        return chosen

    def preferred(self, context: Context) -> Sequence[Endpoint]:  # noqa: ARG002
        """Returns the live endpoints worth waiting for, if any. Changes nothing."""
        return ()

    def seconds(
        self,
        endpoints: Sequence[Endpoint],
        context: Context,
        ahead: Mapping[Endpoint, int],
        pressure: float,
    ) -> list[float]:
        """Return the seconds to the first token at each endpoint, open or not; only asked if `weighs_wait`.

        `ahead`: requests that wait for an endpoint already. `pressure`: further requests that come later by as much as
        this prompt is computed longer.
        """
        raise NotImplementedError
