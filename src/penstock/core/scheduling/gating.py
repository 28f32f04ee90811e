"""The gate on sessions, before the queue: a request is held until its session comes in, and then waits its turn.

A held request stands in its band, and so in all bounds, limits, time-outs and evictions, but in no flow's queue: it
asks for no slot. When its session comes in, it joins its flow's queue with its age, and goes by the ordinary rules.
"""

from __future__ import annotations

from typing import Final

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.scheduling import waiting
from penstock.core.scheduling.state import SchedulerState
from penstock.core.values.actions import Action
from penstock.core.values.settings import SessionSettings

TIMER: Final = 0  # no request has this arrival number


def passes(state: SchedulerState, entry: Entry, now: float) -> bool:
    """True if a request that arrived may go by the ordinary rules; otherwise it is to be held."""
    if state.gate.arrived(entry, now):
        arm(state, now)
        return True
    return entry in _let_in(state, now)


def hold(state: SchedulerState, entry: Entry, now: float, actions: list[Action]) -> None:
    """Hold a request until its session comes in, or refuse it if it may not wait. Adds to `actions`."""
    held(state, entry, now)
    waiting.admit_to_wait(state, entry, now, actions)


def held(state: SchedulerState, entry: Entry, now: float) -> None:
    """Put an `entry` that is held into its band and all counts."""
    entry.held = True
    entry.queued_since_s = now
    state.allow_held(entry)
    state.queues.push(entry)
    state.quotas.queued(entry.accounts, entry.request.body_bytes, entry.prompt_tokens)
    arm(state, now)


def look(state: SchedulerState, now: float) -> None:
    """Let requests into the queue whose sessions come in now."""
    if state.gate.stirred:
        _let_in(state, now)


def time_has_passed(state: SchedulerState, now: float) -> None:
    """Look at the gate, though nothing happened."""
    state.gate.freed(now)
    _let_in(state, now)


def follow(state: SchedulerState, settings: SessionSettings, now: float) -> None:
    """Use other `settings`. If the gate is off from now on, nothing is held any more."""
    for entry in state.gate.follow(settings):
        _join(state, entry, now)
    for endpoint in state.pool:
        memory_told(state, endpoint)
    arm(state, now)


def memory_told(state: SchedulerState, endpoint: Endpoint) -> None:
    """Note how much KV memory an `endpoint` has for sessions, as it was set or as its page says.

    An idle session holds nothing in an engine that keeps no prefixes, so there none waits.
    """
    kv_tokens = endpoint.kv_tokens if endpoint.keeps_prefixes else 0
    if kv_tokens is None:
        last = endpoint.ledger.page.last
        kv_tokens = round(last.kv_capacity_tokens or 0.0) if last is not None else 0
    if kv_tokens > 0 and state.gateways > 1:
        kv_tokens = max(1, kv_tokens // state.gateways)
    memory = state.gate.ledger.memories.get(endpoint.name)
    if kv_tokens != (0 if memory is None else memory.capacity):
        state.gate.tells(endpoint.name, kv_tokens)


def memory_set(
    state: SchedulerState, endpoint: Endpoint, kv_tokens: int | None, *, keeps_prefixes: bool | None
) -> None:
    """Use so many `kv_tokens` of an `endpoint`, or what its page says if 0; None, of both: as before."""
    if keeps_prefixes is not None:
        endpoint.keeps_prefixes = keeps_prefixes
    if kv_tokens is not None:
        endpoint.kv_tokens = kv_tokens or None
    if kv_tokens is not None or keeps_prefixes is not None:
        memory_told(state, endpoint)


def arm(state: SchedulerState, now: float) -> None:
    """Set the timer of the next look."""
    if (looks_s := state.gate.looks_s(now)) is not None:
        state.timers.set_earlier(TIMER, looks_s)


def _let_in(state: SchedulerState, now: float) -> list[Entry]:
    """Returns the requests that may go; those that were held stand in their flows' queues by then."""
    going = state.gate.released(now)
    for entry in going:
        if entry.held:
            _join(state, entry, now)
    arm(state, now)
    return going


def _join(state: SchedulerState, entry: Entry, now: float) -> None:
    """Let a held request join its flow's queue."""
    band = state.queues.bands[entry.band]
    state.place(entry, band)  # its flow may have been forgotten
    state.look(entry, now)
    state.under_share.arrived(entry, now)
    if entry.model not in band.tree.root.backlog and state.pump.holds(entry.model, band):
        band.tree.held.add(entry.model)
    entry.held_s = now - entry.queued_since_s
    state.queues.let_in(entry)
    waiting.entered(state, entry, now)
    waiting.arm(state, entry, now)
    state.recorder.relined([entry], now)
