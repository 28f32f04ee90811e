"""The answer to why a request waits or waited; `recorder.py` makes it."""

from __future__ import annotations

import msgspec

from penstock.core.values.catalogue import Cause, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.rows import LimitReached


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


class Sent(msgspec.Struct):
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
