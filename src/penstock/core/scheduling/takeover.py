"""How does one scheduler go on where another ended? Whoever carries requests says what waits and runs, and since when.

Meanwhile it is *halted*: it sends nothing, and takes facts as ever. What it is told of is booked as if it had come and
had been sent here: a lease takes its slot, its prompt and its memory, also where that is more than there is now; a
request that waits stands where its age puts it. What only the other one knew is lost: how often a request failed, who
was put first, what was learned of engines. ServiceGot that flows got recently is told in sums, and tags are levelled:
fairness begins with nobody further behind than by a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.dispatch.under_share import DEMAND_WINDOW_S
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node
from penstock.core.scheduling import ends, judging, returning, sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.request import SERVICE_S, WORK_PER_OUTPUT_TOKEN, Request, ServiceGot, Underway


class TakeoverFacts:
    """What the scheduler is told when another one decided before it, or may decide after it."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def halted(self, *, afresh: bool = False, now: float) -> list[Action]:
        """Send nothing until `begun`. `afresh`: what flows got here counts no more, if no request is here."""
        state = self._state
        state.pauses.halt(halted=True)
        state.holds_changed()
        if afresh and not state.entries:
            state.capped.uncap_all()
            for band in state.queues.bands:
                band.replant()
            state.reweigh()
        state.wait_causes.look(now, at_once=True)
        return []

    def begun(self, *, lease_from: int = 0, afresh: bool = False, now: float) -> list[Action]:
        """Send again. Returns what is sent.

        `lease_from`: leases have higher numbers from now on. `afresh`: what was told of flows is all that is known of
        what they got.
        """
        state = self._state
        state.lease_serial = max(state.lease_serial, lease_from)
        state.pauses.halt(halted=False)
        state.holds_changed()
        state.forecast.resumed(None)
        for band in state.queues.bands:
            band.by_age()
            if afresh:
                band.tree.level(_costs(state, band.entries.values()))
        for endpoint in state.pool:
            state.queues.touch(endpoint)
        actions: list[Action] = []
        returning.evict_unknown(state, now, actions)
        sending.hand_out(state, now, actions)
        return actions

    def adopted(
        self, request: Request, *, came_s: float, waited_s: float, underway: Underway | None = None, now: float
    ) -> list[Action]:
        """Take in a request that another scheduler let in, while halted. Bounds and rates do not refuse it.

        It came `came_s` ago and has waited for `waited_s`. `underway`: the lease under which it runs, by a number that
        no other lease here has or will have; None: it waits.
        """
        state = self._state
        assert state.pauses.halted, "who decides takes nothing over"
        assert request.id not in state.entries, "request ids are unique among those that have not ended"
        state.seq += 1
        entry = Entry(request, state.seq)
        state.recorder.arrived(entry, now)
        state.entries[request.id] = entry
        waiting.appraise(state, entry, now, came_s=now - came_s)
        state.quotas.reserve(entry.account, tokens=entry.estimated_tokens, now=now)
        entry.move(Event.ADMITTED)
        entry.queue.waited_before(waited_s)
        state.under_share.asked(entry, now)
        if underway is not None:
            sending.take_on(state, entry, underway, now)
            state.recorder.took_over(entry, underway.endpoint, now - came_s, now - underway.running_s, now)
            endpoint = state.pool.get(underway.endpoint)
            if underway.begun and endpoint is not None and not endpoint.proof.settled:
                judging.well(state, endpoint, now)
            return []
        state.recorder.came(entry, now - came_s)
        state.under_share.arrived(entry, now)
        waiting.enqueue(state, entry, now)
        waiting.arm(state, entry, now)
        state.groups.waits(entry)
        state.recorder.waits(entry, now)
        return []

    def forgotten(self, request_ids: Iterable[str], *, now: float) -> list[Action]:
        """Forget requests that are decided about elsewhere, as if they had never come. Nothing is sent by that."""
        state = self._state
        for request_id in request_ids:
            entry = state.entries.get(request_id)
            if entry is not None:
                _forget(state, entry, now)
        return []

    def credited(self, services: Iterable[ServiceGot], *, now: float) -> list[Action]:
        """Count what flows got from another scheduler in the last minute, for their turns and against their limits."""
        state = self._state
        for got in services:
            band = state.queues.bands[got.band]
            policy = state.charges.policy_at(got.band, got.prices)
            each = policy.cost(
                prompt_tokens=round(got.prompt_tokens),
                cached_tokens=round(got.cached_tokens),
                completion_tokens=round(got.completion_tokens),
            )
            path, weights = (got.flow, got.weights) if policy.uses_flows else ((), ())
            node = band.tree.node(path, weights)
            band.tree.charge(node, each * got.requests if policy.by_request else each)
            work = got.prompt_tokens - got.cached_tokens + WORK_PER_OUTPUT_TOKEN * got.completion_tokens
            state.under_share.served_before(node, work * DEMAND_WINDOW_S / SERVICE_S, now)
            tokens = got.prompt_tokens + got.completion_tokens
            state.quotas.spent(got.account, requests=got.requests, tokens=tokens, now=now)
        return []

    def remembered(
        self,
        sessions: Iterable[tuple[str, str, str]],
        prefixes: Iterable[tuple[str, Sequence[int]]],
        *,
        now: float,  # noqa: ARG002
    ) -> list[Action]:
        """Note where sessions (model, name, endpoint) live, and which prefixes were sent where, the oldest first."""
        state = self._state
        for model, session, name in sessions:
            state.router.lived(model, session, name)
        for name, prefix in prefixes:
            if (endpoint := state.pool.get(name)) is not None:
                state.router.sent_before(prefix, endpoint)
        return []


def _forget(state: SchedulerState, entry: Entry, now: float) -> None:
    if entry.state is State.WAITING:
        ends.unqueue(state, entry, Event.CANCELLED, now)
    else:
        sending.release(state, entry, now)
        entry.move(Event.CANCELLED)
    state.promised.settle(entry, 0.0)
    state.charges.refund(state.tree_of(entry), entry)
    state.quotas.settle(entry.account, reserved=entry.estimated_tokens, used=0, now=now)
    state.recorder.forgotten(entry, now)
    ends.forget(state, entry)
    if state.watcher is not None:
        state.watcher.settled(entry, None)


def _costs(state: SchedulerState, waiting: Iterable[Entry]) -> dict[Node, float]:
    """Returns what the largest request costs that waits below each flow and group."""
    costs: dict[Node, float] = {}
    for entry in waiting:
        cost = state.charges.estimated_cost(entry)
        node: Node | None = entry.node_of()
        while node is not None and cost > costs.get(node, -1.0):
            costs[node] = cost
            node = node.parent
    return costs
