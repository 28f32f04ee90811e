"""The answer to why a request waits or waited, made of the notes in `recorder.py`.

Durations per cause, and which requests went first and why, are worked out here when somebody asks, so no request pays
for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from penstock.core.explain.recorder import CANDIDATES_MAX, Recorder, Trail
from penstock.core.explain.wait_causes import Stayed, Waits
from penstock.core.queueing.entry import Entry
from penstock.core.sessions.gate import SessionGate
from penstock.core.sessions.memory_ledger import AgentSession
from penstock.core.values.catalogue import Cause, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import SHORT_WAIT_S

SERVED_SHOWN = 12  # groups of requests that went first


class Waited(msgspec.Struct, frozen=True):
    """A cause, and how long it held."""

    cause: Cause
    seconds: float


class Served(msgspec.Struct, frozen=True):
    """Others for the same model that were sent while it waited."""

    tenant: str
    band: str
    why: str  #: "bumped", "band", "turn", "order", "overtook" or "promised"
    requests: int


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint that was open to it when it was sent. Loads are not noted of a request that went at once, cold."""

    endpoint: str
    leases: int | None = None
    slots: int | None = None
    prefill_tokens: int | None = None  #: ahead of it at that endpoint, sent and not computed
    cached_tokens: int | None = None  #: of its own prompt, believed to be cached there
    score: float | None = None  #: by the routing policy; None: there was no choice


class Sent(msgspec.Struct, frozen=True):
    """One dispatch, and the numbers that decided it."""

    at_s: float  #: after its arrival
    endpoint: str
    open_endpoints: int = 0
    candidates: list[Candidate] = []  #: the chosen one first; empty if another scheduler sent it
    scored_by: str | None = None  #: the unit of the candidates' scores
    service: float = 0.0  #: of its flow by then, per weight: the least goes next
    virtual_time: float = 0.0  #: of its band: the service per weight of the flow served last
    overtaken: int = 0  #: how often others went first that fitted, or were cached, and it not
    decode_endpoint: str | None = None  #: the one that answers it, if another
    fallback: str | None = None  #: the one that a proxy sent it to instead, and that answers it
    decode_at_s: float | None = None  #: when it was handed over; None: its prompt is still being computed


class Requeued(msgspec.Struct, frozen=True):
    """A failure that sent it back to the queue."""

    at_s: float
    endpoint: str
    failure: str


class SessionWait(msgspec.Struct, frozen=True):
    """The session of a request that waits for memory."""

    session: str
    turn: int  #: which of its turns, among those seen here
    tokens: int  #: of its context, and of sub-agents under way
    beside: int  #: sessions that are resident
    stopped: bool  #: an operator paused it
    wait_s_max: float  #: the bound on the wait of a session
    price: float  #: the part of all prefill that this bound costs now
    price_of_minute: float  #: and that a bound of `SHORT_WAIT_S` would cost


class Explanation(msgspec.Struct):
    """Everything known of one request. Times are seconds after its arrival, unless named otherwise."""

    id: str
    tenant: str
    band: str
    model: str
    flow: list[str]
    state: State
    came_s_ago: float
    prompt_tokens: int  #: estimated, or as the engine reported
    output_tokens: int  #: likewise
    waited_s: float
    waits: list[Waited]  #: the longest first
    waits_for: Cause | None  #: now
    closed: dict[Cause, int]  #: now, of the endpoints that serve its model: how many are closed, by cause
    slots_by: dict[str, int]  #: of the endpoints that serve its model and report no size: how many, by the judge of it
    estimated_wait_s: float | None  #: from now on
    before: list[Served]  #: while it waited, of the last `DISPATCHES_KEPT` dispatches
    before_total: int
    sent: Sent | None  #: the last time
    instead_of: str  #: the requested model, if its own is a fallback; else empty
    tried: bool  #: it was sent to measure the wait, though it was forecast to miss its deadline
    first_byte_s: float | None
    requeues: list[Requeued]
    ended_s: float | None
    reason: Reason | None
    limit: LimitReached | None = None  #: of its tenant, if that is the reason
    session: SessionWait | None = None  #: while it waits for memory


def explained(
    entry: Entry, recorder: Recorder, waits: Waits, *, estimated_wait_s: float | None, now: float
) -> Explanation:
    """Returns all that is known of a request. `estimated_wait_s`: None if it does not wait, or nothing is known."""
    request, trail = entry.request, recorder.trail(entry)
    start_s, waiting = trail.arrived_s, entry.state is State.WAITING
    before = _before(entry, recorder)
    stays = trail.stays or []
    if trail.stay is not None:
        stays = [*stays, waits.so_far(trail.stay, now)]
    seconds = _seconds(stays)
    closed = waits.endpoints(waits.band(request.band), request.model, now)[0] if waiting else {}
    usage = trail.usage
    return Explanation(
        id=request.id,
        tenant=request.tenant,
        band=trail.band,
        model=request.model,
        flow=list(request.flow),
        state=entry.state,
        came_s_ago=now - start_s,
        prompt_tokens=usage.prompt_tokens if usage is not None else entry.prompt_tokens,
        output_tokens=usage.completion_tokens if usage is not None else entry.output_tokens,
        waited_s=now - entry.waits_since_s if waiting else entry.waited_s,
        waits=[Waited(c, s) for c, s in sorted(seconds.items(), key=lambda item: -item[1])],
        waits_for=waits.present(trail.stay.line, now) if trail.stay is not None else None,
        closed=dict(closed),
        slots_by=waits.sized_by(request.model) if waiting else {},
        estimated_wait_s=estimated_wait_s,
        before=[Served(tenant, band, why, count) for (tenant, band, why), count in before.most_common(SERVED_SHOWN)],
        before_total=sum(before.values()),
        sent=_sent(entry, trail),
        first_byte_s=None if trail.first_s is None else trail.first_s - start_s,
        instead_of=request.instead_of,
        tried=trail.tried,
        requeues=[Requeued(at - start_s, where, what) for at, what, where in trail.requeues or ()],
        ended_s=None if trail.ended_s is None else trail.ended_s - start_s,
        reason=trail.reason,
        limit=trail.limit,
    )


def waits_for_memory(session: AgentSession, gate: SessionGate) -> SessionWait:
    """Returns what is known of a `session` of which a request waits for memory."""
    return SessionWait(
        session=session.name,
        turn=session.turns_total + 1,
        tokens=session.footprint,
        beside=sum([memory.residents for memory in gate.ledger.memories.values()]),
        stopped=session.stopped,
        wait_s_max=gate.settings.wait_s,
        price=gate.price(gate.settings.wait_s),
        price_of_minute=gate.price(SHORT_WAIT_S),
    )


def _sent(entry: Entry, trail: Trail) -> Sent | None:
    """Returns the last dispatch; None if there was none."""
    if trail.sent_s is None:
        return None
    return Sent(
        trail.sent_s - trail.arrived_s,
        trail.sent_to,
        trail.open_endpoints,
        candidates=_candidates(trail),
        scored_by=None if trail.choice is None else trail.choice.scored_by,
        service=trail.service,
        virtual_time=trail.virtual_time,
        overtaken=entry.backfilled,
        decode_endpoint=trail.decode_endpoint,
        fallback=trail.fallback,
        decode_at_s=None if trail.decode_at_s is None else trail.decode_at_s - trail.arrived_s,
    )


def _before(entry: Entry, recorder: Recorder) -> Counter[tuple[str, str, str]]:
    """Returns the requests that went first: how many, by tenant, band and why."""
    trail = recorder.trail(entry)
    until = recorder.serial + 1 if trail.sent_s is None else trail.sent_serial
    ended_s = trail.ended_s if trail.sent_s is None else None
    served: Counter[tuple[str, str, str]] = Counter()
    for serial, sent_s, its, noted in reversed(recorder.dispatches):
        if serial <= trail.serial:
            break
        late = serial >= until or (ended_s is not None and sent_s >= ended_s)
        if not late and its is not entry and its.model == entry.model:
            served[its.tenant, noted.band, _why(its, noted, entry)] += 1
    return served


def _candidates(trail: Trail) -> list[Candidate]:
    """Returns the endpoints that were open at the dispatch, the chosen one first, as they stood then."""
    choice = trail.choice
    if choice is None:
        return []
    if trail.open is None:
        among = (choice.endpoint, *[e for e in choice.among[:CANDIDATES_MAX] if e is not choice.endpoint])
        return [Candidate(endpoint.name, score=choice.score(endpoint)) for endpoint in among]
    return [
        Candidate(endpoint.name, leases, slots, ahead, cached, choice.score(endpoint))
        for endpoint, leases, slots, ahead, cached in trail.open
    ]


def _why(other: Entry, noted: Trail, entry: Entry) -> str:
    """Why another one went before this one."""
    if noted.bumped:
        return "bumped"
    if other.band != entry.band:
        return "band" if other.band < entry.band else "promised"
    if other.node is not entry.node and other.request.flow != entry.request.flow:
        return "turn"
    return "order" if (other.key, other.seq) < (entry.key, entry.seq) else "overtook"


def _seconds(stays: Iterable[Stayed]) -> dict[Cause, float]:
    total: dict[Cause, float] = {}
    for stay in stays:
        for cause, seconds in stay.seconds().items():
            total[cause] = total.get(cause, 0.0) + seconds
    return total
