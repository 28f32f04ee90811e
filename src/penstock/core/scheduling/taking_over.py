"""What does a new leader learn of requests that another scheduler decided about? The facts of a change of leader.

Edges hold the truth about their requests and announce it (docs/decisions/0068). So a leader that begins adopts running
requests with their leases, and queued ones with their age; it counts what flows got in the last minute, and takes what
was spent of budgets from the ledger of use. Bounds and rates refuse none of these. Most gateways never do any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.dispatch.under_share import DEMAND_WINDOW_S
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling import gating, returning, sending, waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.lifecycle import Event, State
from penstock.core.values.request import SERVICE_S, WORK_PER_OUTPUT_TOKEN, Request, Usage
from penstock.core.values.takeover import ServiceGot, Underway


def adopt(
    state: SchedulerState,
    request: Request,
    *,
    came_s: float,
    waited_s: float,
    underway: Underway | None,
    decided: bool,
    now: float,
) -> None:
    """Take in a request: `Scheduler.adopted`."""
    assert request.id not in state.entries, "request ids are unique among those that have not ended"
    state.seq += 1
    entry = Entry(request, state.seq)
    state.recorder.arrived(entry, now)
    state.entries[request.id] = entry
    waiting.appraise(state, entry, now, came_s=now - came_s)
    state.quotas.spent(entry.accounts, requests=0.0, tokens=entry.estimated_tokens, now=now)
    entry.move(Event.ADMITTED)
    entry.waited_s = waited_s
    state.under_share.asked(entry, now)
    if underway is not None:
        sending.take_on(state, entry, underway, now)
        state.recorder.took_over(entry, underway.endpoint, now - came_s, now - underway.running_s, now)
        endpoint = state.pool.get(underway.endpoint)
        if underway.begun and endpoint is not None and not endpoint.proof.settled:
            returning.well(state, endpoint, now)
        return
    state.recorder.came(entry, now - came_s)
    gate = state.gate
    if request.turn is not None and gate.on and not gate.arrived(entry, now, waited_s=waited_s, decided=decided):
        gating.held(state, entry, now)
        waiting.arm(state, entry, now)
        state.recorder.waits(entry, now)
        return
    state.under_share.arrived(entry, now)
    waiting.wait(state, entry, now)


def forget(state: SchedulerState, request_ids: Iterable[str], now: float) -> None:
    """Forget requests as if they had never arrived."""
    for request_id in request_ids:
        entry = state.entries.get(request_id)
        if entry is None:
            continue
        if entry.state is State.WAITING:
            waiting.unqueue(state, entry, Event.CANCELLED, now)
        else:
            sending.release(state, entry, now)
            entry.move(Event.CANCELLED)
        state.promised.settle(entry, 0.0)
        state.charges.refund(state.queues.bands[entry.band].tree, entry)
        state.quotas.settle(entry.accounts, reserved=entry.estimated_tokens, used=0, now=now)
        state.recorder.forgotten(entry, now)
        waiting.forget(state, entry, now)
        if state.watcher is not None:
            state.watcher.settled(entry, None)


def answered(state: SchedulerState, request_id: str, usage: Usage | None, now: float, *, refused: bool) -> None:
    """End and charge a request whose answer came after its lease was taken back: `Scheduler.answered`."""
    entry = state.entries.get(request_id)
    if entry is None:
        return
    if entry.state is State.WAITING:
        waiting.unqueue(state, entry, Event.FINISHED, now)
        state.forecast.left(entry, now)
    else:
        endpoint = sending.release(state, entry, now)
        entry.move(Event.FINISHED)
        if endpoint is not None:
            state.queues.touch(endpoint)
    if usage is None:
        usage = entry.presumed_usage()
    elif not usage.prompt_tokens and not refused:
        usage = Usage(entry.prompt_tokens, usage.completion_tokens)
    waiting.end(state, entry, usage, now)


def credit(state: SchedulerState, services: Iterable[ServiceGot], now: float) -> None:
    """Count the service that flows got."""
    for got in services:
        band = state.queues.bands[got.band]
        policy = state.charges.policy(got.band, got.prices)
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
        state.quotas.spent(got.accounts, requests=got.requests, tokens=tokens, now=now)


def budgets_left(state: SchedulerState, left: Mapping[str, float], now: float) -> None:
    """Lower the budgets of these accounts to their part that is `left`, without what present requests have reserved."""
    days = {name: day for name in left if (day := state.quotas.day(name)) is not None}
    levels = {name: left[name] * day.size for name, day in days.items()}
    for entry in state.entries.values():
        for name in entry.accounts:
            if name in levels:
                levels[name] -= entry.estimated_tokens
    for name, day in days.items():
        day.take(max(0.0, day.left(now) - levels[name]), now)
