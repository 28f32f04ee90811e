"""Facts in, actions out: which request goes next, where, and what becomes of the rest.

The scheduler is told what happened, each time with `now` (seconds, monotonic, never going back), and answers with a
list of actions. It never waits, never calls back, reads no clock and draws no randomness but from the generator it is
handed, so the same facts give the same actions.

Theory of operation. Every request enters the queue tree of its band; then one *pump* hands out whatever can be
handed out: band by band, in fair order, to endpoints that are open, chosen at that moment. A request that finds
nothing open simply stays. Everything that may open an endpoint (a lease that ends, a first token, a reading, a
timer) touches it and pumps again. So there is no "fast path" beside the queue, and none can overtake it: a newcomer
whom nobody waits before is decided by the same pump with the same questions, and only spared the way in and out.

How to read it. This file is the list of what the scheduler is told and asked, and nothing else; each line names the
method that answers, and where it is written. They all share one state (`scheduling/state.py`), which is changed by
functions (`ends`, `sending`, `waiting`, `returning`) that the facts call, never the other way round.
"""

from __future__ import annotations

from random import Random

from penstock.core.scheduling.endpoints import EndpointFacts
from penstock.core.scheduling.expiry import TimeFacts
from penstock.core.scheduling.inspection import Inspection
from penstock.core.scheduling.operators import OperatorFacts
from penstock.core.scheduling.questions import Questions
from penstock.core.scheduling.requests import RequestFacts
from penstock.core.scheduling.returning import AVOID_S, REFUSED_AVOID_S, REFUSED_AVOID_S_MAX
from penstock.core.scheduling.sending import BAND_RANKS
from penstock.core.scheduling.state import SchedulerState
from penstock.core.scheduling.takeover import TakeoverFacts
from penstock.core.values.settings import SchedulerSettings

__all__ = ["AVOID_S", "BAND_RANKS", "FACTS", "REFUSED_AVOID_S", "REFUSED_AVOID_S_MAX", "Scheduler", "SchedulerSettings"]

FACTS = [
    name
    for kind in (RequestFacts, EndpointFacts, OperatorFacts, TakeoverFacts, TimeFacts)
    for name in vars(kind)
    if not name.startswith("_")
]


class Scheduler:
    """The one owner of queues, leases and the view of the endpoints."""

    def __init__(self, settings: SchedulerSettings, *, random: Random) -> None:  # noqa: PLR0915  (a list)
        self._state = state = SchedulerState(settings, random.random)

        requests = RequestFacts(state)
        self.arrived = requests.arrived
        self.first_token = requests.first_token
        self.passed_on = requests.passed_on
        self.progressed = requests.progressed
        self.prefilled = requests.prefilled
        self.finished = requests.finished
        self.failed = requests.failed
        self.cancelled = requests.cancelled
        self.located = requests.located
        self.cached = requests.cached

        endpoints = EndpointFacts(state)
        self.endpoint_added = endpoints.endpoint_added
        self.endpoint_changed = endpoints.endpoint_changed
        self.endpoint_removed = endpoints.endpoint_removed
        self.endpoint_up = endpoints.endpoint_up
        self.endpoint_down = endpoints.endpoint_down
        self.endpoint_drained = endpoints.endpoint_drained
        self.endpoint_resumed = endpoints.endpoint_resumed
        self.observed = endpoints.observed
        self.glimpsed = endpoints.glimpsed
        self.moved = endpoints.moved
        self.kv_stored = endpoints.kv_stored
        self.kv_removed = endpoints.kv_removed
        self.kv_cleared = endpoints.kv_cleared
        self.kv_lost = endpoints.kv_lost

        operators = OperatorFacts(state)
        self.paused = operators.paused
        self.drained = operators.drained
        self.resumed = operators.resumed
        self.bumped = operators.bumped
        self.evicted = operators.evicted
        self.all_evicted = operators.all_evicted
        self.tenants_limited = operators.tenants_limited
        self.budget_shared = operators.budget_shared
        self.budget_apart = operators.budget_apart
        self.reconfigured = operators.reconfigured
        self.apportioned = operators.apportioned

        takeover = TakeoverFacts(state)
        self.halted = takeover.halted
        self.begun = takeover.begun
        self.adopted = takeover.adopted
        self.forgotten = takeover.forgotten
        self.credited = takeover.credited
        self.remembered = takeover.remembered

        timing = TimeFacts(state)
        self.expire = timing.expire
        self.drain = timing.drain

        questions = Questions(state)
        self.next_deadline = questions.next_deadline
        self.room = questions.room
        self.stopped = questions.stopped
        self.knows = questions.knows
        self.serving = questions.serving
        self.served = questions.served
        self.least_loaded = questions.least_loaded
        self.wanted = questions.wanted
        self.moved_s = questions.moved_s
        self.requests_of = questions.requests_of
        self.busy = questions.busy
        self.proven = questions.proven
        self.refuses_key = questions.refuses_key
        self.state_of = questions.state_of
        self.wait_s = questions.wait_s
        self.places = questions.places
        self.limits_of = questions.limits_of
        self.allowance = questions.allowance
        self.budgets = questions.budgets
        self.explain = questions.explain
        self.snapshot = questions.snapshot
        self.tokens_under_way = questions.tokens_under_way
        self.loads = questions.loads

    @property
    def watches(self) -> bool:
        """Whether gauges may be worth reading often, `wanted` says whose: requests wait, or an engine is in doubt."""
        return self._state.queues.waiting > 0 or self._state.doubts

    @property
    def divides(self) -> bool:
        """Whether any endpoint only computes prompts, or only answers."""
        return self._state.pool.roles.any

    @property
    def paced(self) -> bool:
        """Whether a limit of time per output token is set anywhere: progress is then worth telling more often."""
        return self._state.paced

    def inspect(self) -> Inspection:
        """Returns the state as it is at any time from now on, to look at: for checkers and tests, never to decide
        by.
        """
        return self._state
