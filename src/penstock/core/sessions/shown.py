"""What is told of sessions to those who look: a row of each, and how many endpoints they fill.

Most gateways have no sessions, and nobody looks at most of the others: `questions.py` imports it when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from penstock.core.endpoints.pool import Pool
from penstock.core.sessions.gate import SPARE, SessionGate
from penstock.core.sessions.memory_ledger import AgentSession
from penstock.core.values.rows import SessionRow


def row(gate: SessionGate, session: AgentSession, now: float) -> SessionRow:
    """Returns the row of a session."""
    waits = bool(session.waiting)
    return SessionRow(
        session=session.name,
        tenant=session.tenant,
        model=session.model,
        band=session.holder.band,
        state=_state(session),
        stopped=session.stopped,
        endpoint=session.home,
        origin=session.origin,
        parts=len(session.parts),
        turns=session.turns_total,
        prompt_tokens=session.prompt_total,
        cached_tokens=session.cached_total,
        completion_tokens=session.completion_total,
        tokens=session.footprint,
        waits_s=now - session.waits_s if waits else None,
        expected_s=gate.expected_s(session, now) if waits else None,
        waited_s=session.last_wait_s,
        resident_s=now - session.admitted_s if session.home is not None else None,
    )


def rows(gate: SessionGate, now: float, most: int, like: Mapping[str, str]) -> list[SessionRow]:
    """Returns the first of those that wait, are resident, and were last seen, in this order.

    `like`: with these values of `session`, `tenant`, `endpoint` or `state`.
    """
    first = [session for holder in gate.lines for session in holder.line.values()]
    first += gate.stopped.values()
    for memory in gate.ledger.memories.values():
        first += [session for tenancy in memory.tenancies.values() for session in tenancy.residents.values()]
    chosen: dict[str, AgentSession] = {}
    for session in chain(first, reversed(gate.ledger.sessions.values())):
        if len(chosen) >= most:
            break
        if not like or _is_like(session, like):
            chosen[session.key] = session
    return [row(gate, session, now) for session in chosen.values()]


def endpoints_filled(gate: SessionGate, pool: Pool, now: float) -> dict[str, float]:
    """Returns by model how many endpoints' memory its sessions fill: those that wait, and residents in use.

    A model of which an endpoint in service tells no memory is left out.
    """
    memories = gate.ledger.memories
    largest = max([memory.usable for memory in memories.values()], default=0)
    tokens: dict[str, int] = {}
    for memory in memories.values():
        for tenancy in memory.tenancies.values():
            for session in tenancy.residents.values():
                if gate.in_use(session, now):
                    tokens[session.model] = tokens.get(session.model, 0) + min(session.booked, largest)
    waits: set[str] = set()
    for holder in gate.lines:
        for session in holder.line.values():
            waits.add(session.model)
            tokens[session.model] = tokens.get(session.model, 0) + min(session.footprint, largest)
    filled = {}
    for model, wanted in tokens.items():
        serving = [endpoint.name for endpoint in pool if endpoint.in_service and endpoint.serves(model)]
        usable = [memories[name].usable for name in serving if name in memories]
        if serving and len(usable) == len(serving):
            spare = SPARE if model in waits else 0.0
            filled[model] = wanted * len(usable) / ((1.0 - spare) * sum(usable))
    return filled


def _state(session: AgentSession) -> str:
    if session.home is not None:
        return "resident" if session.parts else "idle"
    if session.waiting:
        return "waiting"
    return "paused" if session.paused or session.stopped else "passing"


def _is_like(session: AgentSession, like: Mapping[str, str]) -> bool:
    facts = {"session": session.name, "tenant": session.tenant, "endpoint": session.home, "state": _state(session)}
    return all(facts[key] == value for key, value in like.items())
