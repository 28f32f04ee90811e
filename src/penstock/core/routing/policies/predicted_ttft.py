"""Routing: the soonest first token at the least cost to other requests (docs/design.md#routing).

Cost of an endpoint, in seconds: the prompt tokens before it (sent, not computed) and this request's own uncached ones,
over the prefill rate learned there, plus a part of the slow-down of decoding that one more request causes.

Cheapest alone would scatter a conversation for a few milliseconds' gain, and lose its cache for all later turns. So
endpoints that hold at least 80 % of the longest match are preferred, unless going there costs `affinity_escape` seconds
more than going elsewhere. Prefixes held by half of the endpoints are ignored (the router leaves them out).

If endpoints have prices, a finite `price_weight` is that many seconds of cost per unit of price; an infinite one leaves
only the cheapest to choose from (the router sees to it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint, least_loaded
from penstock.core.endpoints.speed import TOKENS_PER_S
from penstock.core.routing.policies.base import Context, RoutingPolicy

AFFINITY_SHARE = 0.8  # of the longest match: near enough to be as good
DECODE_WEIGHT: Final = 0.2  # how much a second of slower decoding counts against one of waiting for the first token
PLAY: Final = 0.1  # with the next, the precision of costs: smaller differences are decided by load, and by turns
PLAY_S: Final = 0.02
COLD = 2.0  # a token that is computed once more, and the one it displaces, which will have to be computed again
PACE_S: Final = 0.02  # per output token, until learned; a mid-size GPU's


class PredictedTtft(RoutingPolicy):
    """Least cost, or a cached prefix if that is nearly as cheap."""

    uses_prefix = True
    weighs_load = True
    weighs_wait = True
    scored_by: str | None = "predicted cost, s"

    def score(self, endpoints: Sequence[Endpoint], context: Context) -> list[float]:
        """Returns seconds. An endpoint not yet seen at work is assumed to be as fast as the fastest; otherwise it would
        never be used.
        """
        now, matched = context.now, context.matched
        prompt_tokens, output_tokens = context.prompt_tokens, context.output_tokens
        fastest = 0.0
        price_weight_s = context.price_weight_s
        costs: list[float] = []
        for endpoint in endpoints:  # one loop without calls, because it runs over all open endpoints
            ledger = endpoint.ledger
            prefill, speed = ledger.prefill, ledger.speed
            if speed.rate_known:
                rate = speed.rate
            else:
                rate = fastest = fastest or _fastest(endpoints)
            uncached = prompt_tokens - (matched.get(endpoint.index, 0) if matched else 0)
            left = prefill.left(now) if prefill.leases else 0.0
            first_token_s = (left + (uncached if uncached > 1 else 1)) / rate
            load = ledger.load(now)
            if not load:
                costs.append(first_token_s + price_weight_s * endpoint.price if price_weight_s else first_token_s)
                continue
            # A step takes a base and a part per request in it. With a batch as large as the endpoint takes, that part
            # is about half of the step on the GPUs measured; so the slow-down is half the pace there, in proportion
            # below.
            pace_s = speed.decode_s(now)
            if pace_s is None:
                pace_s = speed.time_per_output_token_s(now) or PACE_S
            slow_down_s = 0.5 * pace_s * load / (ledger.limit.slots or 1)
            cost = first_token_s + DECODE_WEIGHT * output_tokens * slow_down_s
            costs.append(cost + price_weight_s * endpoint.price if price_weight_s else cost)
        return costs

    def pick(self, endpoints: Sequence[Endpoint], scores: list[float], context: Context) -> Endpoint:
        """Returns the least loaded of the endpoints that cost about the least; of those near the prompt's cache, if
        there are any.
        """
        if context.matched and (near := self._near(endpoints, scores, context)):
            endpoints, scores = [endpoints[at] for at in near], [scores[at] for at in near]
        dearest = min(scores) * (1.0 + PLAY) + PLAY_S
        if max(scores) > dearest:
            endpoints = [endpoints[at] for at, cost in enumerate(scores) if cost <= dearest]
        return least_loaded(endpoints, context.now)

    def at_rest(self, endpoints: Sequence[Endpoint], prompt_tokens: int, now: float) -> Endpoint | None:
        """Returns the next in turn if all are idle, and none computes this prompt so much faster that it counts."""
        fastest, slowest = 0.0, math.inf
        chosen, last = endpoints[0], math.inf
        for endpoint in endpoints:
            ledger = endpoint.ledger
            if ledger.leases or ledger.load(now):
                return None
            if ledger.speed.rate_known:
                rate = ledger.speed.rate
                fastest = rate if rate > fastest else fastest
                slowest = rate if rate < slowest else slowest
            turn = endpoint.turn
            if turn < last or (turn == last and endpoint.index < chosen.index):
                chosen, last = endpoint, turn
        if chosen.weighted or (fastest and prompt_tokens / slowest > prompt_tokens / fastest * (1.0 + PLAY) + PLAY_S):
            return None
        return chosen

    def preferred(self, context: Context) -> Sequence[Endpoint]:
        if not context.matched:
            return ()
        alive = context.alive()
        return [alive[at] for at in self._near(alive, self.score(alive, context), context)]

    def seconds(
        self,
        endpoints: Sequence[Endpoint],
        context: Context,
        ahead: Mapping[Endpoint, int],
        pressure: float,
    ) -> list[float]:
        """Return `when open + queued / rate + uncached / rate * COLD * (1 + pressure)`, and what the endpoint costs."""
        weight, now = COLD * (1.0 + pressure), context.now
        scores: list[float] = []
        for endpoint in endpoints:
            ledger = endpoint.ledger
            uncached, rate, slots = context.uncached_tokens(endpoint), ledger.speed.rate, ledger.limit.slots
            slot_s = 0.0
            if len(ledger.leases) >= slots:
                pace_s = ledger.speed.time_per_output_token_s(now) or PACE_S
                slot_s = pace_s * context.output_tokens / slots
            opens_s = slot_s + ahead.get(endpoint, 0) * max(slot_s, uncached / rate)
            score_s = opens_s + (ledger.prefill.left(now) + weight * uncached) / rate
            scores.append(score_s + context.price_weight_s * endpoint.price if context.price_weight_s else score_s)
        return scores

    def _near(self, endpoints: Sequence[Endpoint], costs: list[float], context: Context) -> list[int]:
        """The places of those that hold most of the prompt and are not much dearer than the cheapest."""
        matched = context.matched
        held = [matched.get(endpoint.index, 0) for endpoint in endpoints]
        most = max(held, default=0)
        if not most:
            return []
        dearest, enough = min(costs) + self.settings.affinity_escape_s, AFFINITY_SHARE * most
        return [at for at, tokens in enumerate(held) if tokens >= enough and costs[at] <= dearest]


def _fastest(endpoints: Sequence[Endpoint]) -> float:
    """Returns the most prompt tokens per second of the endpoints that were seen at work."""
    return max([e.ledger.speed.rate for e in endpoints if e.ledger.speed.rate_known], default=TOKENS_PER_S)
