"""Spreading long prompts, so that a small flow's request finds an endpoint that is soon done.

An engine computes prompts first come, first served, and they are not withdrawn: a request at an endpoint waits for the
prompts before it. With one endpoint there is nothing to choose. With several it goes to the one with the least left, so
that they are not all in the middle of long prompts at the same time. Think of two ferries: when both have just left, a
traveller waits a whole crossing; when they leave by turns, half of one.

So while requests of under-share flows arrive, a prompt of an over-share flow that takes longer than `patience_s` is
sent to an endpoint only if another one will finish its prompts within that time. Otherwise it waits for that, and
shorter ones may overtake it. `patience_s` is half of the time that such prompts take, by work: of the one in which a
token of theirs finds itself on average. With equal prompts and two endpoints that equals taking turns, and costs no
throughput; with more endpoints one has little left anyway; and if few huge prompts are most of the work it is half of a
huge one, because with less only one endpoint could ever work on them.

No prompt waits for good: not for an endpoint that takes twice as long as was predicted, not when no other one is well,
and not after having been overtaken as often as may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Entry

FADES = 0.98  # of learned values, per long prompt sent: about the last fifty
STEP_S = 0.005  # a forecast is looked at again no sooner: an engine's step takes longer


class PrefillStagger:
    """How long the prompts of flows over their share take, and which endpoints are soon done with theirs."""

    def __init__(self, pool: Pool, look_again: Callable[[Endpoint, float], None]) -> None:
        self._pool = pool
        self._look_again = look_again
        self._seconds = 0.0
        self._squares = 0.0
        self._soonest: dict[str, list[tuple[float, Endpoint]]] = {}  # in this turn: per model, the two done soonest
        self._overdue_s = math.inf  # in this turn: when the first of these is waited for no longer
        self._due_s = math.inf  # in this turn: when time alone may end a prompt, sooner perhaps than was forecast
        self.made_wait = False  # some prompt was, in this turn

    def begin(self) -> None:
        """A turn begins: results of the last one are void."""
        if self._soonest or self.made_wait:
            self._soonest.clear()
            self._overdue_s = self._due_s = math.inf
            self.made_wait = False

    def sent(self, prefill_s: float) -> None:
        """Note that a prompt of a flow over its share was sent, which takes `prefill_s` to compute."""
        self._seconds = FADES * self._seconds + prefill_s
        self._squares = FADES * self._squares + prefill_s * prefill_s

    @property
    def patience_s(self) -> float:
        """How soon an endpoint has to be done with its prompts to be one for the others."""
        return 0.5 * self._squares / self._seconds if self._seconds > 0.0 else math.inf

    def allowed(self, entry: Entry, endpoints: list[Endpoint], now: float) -> list[Endpoint]:
        """Returns the endpoints that may compute a prompt of an over-share flow now."""
        patience_s, prompt_tokens = self.patience_s, entry.prompt_tokens
        allowed: list[Endpoint] = []
        for endpoint in endpoints:
            rate = endpoint.ledger.speed.rate
            if prompt_tokens / rate <= patience_s or entry.uncached_at(endpoint.index) / rate <= patience_s:
                allowed.append(endpoint)
                continue
            wait_s = self._others_done_s(endpoint, entry.model, now) - patience_s
            if wait_s <= 0.0:
                allowed.append(endpoint)
            else:
                self.made_wait = True
                forecast_s = max(now + STEP_S, min(now + wait_s, self._overdue_s))
                self._look_again(endpoint, min(forecast_s, self._due_s))
        return allowed

    def _others_done_s(self, endpoint: Endpoint, model: str, now: float) -> float:
        """Returns the seconds until the first of the others is done; 0 without any to wait for."""
        soonest = self._soonest.get(model)
        if soonest is None:
            soonest = self._soonest[model] = self._two_soonest(model, now)
        for done_s, other in soonest:
            if other is not endpoint:
                return done_s
        return 0.0

    def _two_soonest(self, model: str, now: float) -> list[tuple[float, Endpoint]]:
        """Returns the endpoints that will be done soonest, with as few checks as possible."""
        patience_s = self.patience_s
        soonest: list[tuple[float, Endpoint]] = []
        within = 0
        for endpoint in self._pool:
            if not endpoint.serves(model) or not self._pool.roles.computes(endpoint, model, whole=False):
                continue
            prefill = endpoint.ledger.prefill
            if now >= prefill.due_s:
                endpoint.ledger.prefill.advance(now)  # not asked of one with all slots taken
            if self._pool.unhealthy(endpoint, now) is not None or now > prefill.overdue_s:
                continue
            self._due_s = min(self._due_s, prefill.due_s)
            done_s = prefill.left(now) / prefill.speed.rate
            soonest = sorted([*soonest, (done_s, endpoint)], key=_first)[:2]
            within += done_s <= patience_s
            if within == 2:
                break
        for _, endpoint in soonest:
            self._overdue_s = min(self._overdue_s, endpoint.ledger.prefill.overdue_s)
        return soonest


def _first(item: tuple[float, Endpoint]) -> float:
    return item[0]
