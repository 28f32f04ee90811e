"""Rows of the snapshot: flows, tenants with limits, sources of cached prefixes."""

from __future__ import annotations

import msgspec

from penstock.core.values.settings import Limits


class FlowSnapshot(msgspec.Struct, frozen=True):
    """One tenant in one band."""

    tenant: str
    band: str
    weight: float
    waiting: int
    running: int
    oldest_wait_s: float
    share: float  #: of the service its band got over the last minute
    share_of_all: float  #: of the service all bands got over the last minute
    is_alone: bool  #: no other flow in its band waits or got service, so shares are meaningless
    fair_share: float | None  #: by weight; None: none of its requests waits, so it gets all it asks for
    models: dict[str, int] = {}  #: how many requests wait for each
    asks_for_more: bool = False  #: its requests wait although it takes more than its share


class TenantSnapshot(msgspec.Struct, frozen=True):
    """One limited tenant at one moment. A rate's remainder is negative while in debt."""

    name: str
    limits: Limits
    running: int
    queued: int
    queued_bytes: int
    queued_tokens: int
    requests_left: float | None
    tokens_left: float | None
    tokens_day_left: float | None = None


class PolicyTrouble(msgspec.Struct, frozen=True):
    """An error of another package's policy, which our default rule replaced."""

    decision: str  #: fairness, ordering or routing
    policy: str
    count: int
    last: str  #: the exception


class SourceSnapshot(msgspec.Struct, frozen=True):
    """One source's record."""

    source: str
    predicted_tokens: int  #: predicted, of answers with reported values
    hit_tokens: int  #: of these, really cached
    checks: int
    wrong: int
    off: int  #: endpoints about which it is not asked now


class SessionRow(msgspec.Struct, frozen=True):
    """One agent's session."""

    session: str
    tenant: str
    model: str  #: of its last turn
    band: int  #: its rank
    #: `resident` (a turn is under way) or `idle`: it holds memory; `waiting`; `paused`: its memory was given to others;
    #: `passing`: it holds none and nothing of it waits, because it is small, has ended, or its engine restarted
    state: str
    stopped: bool  #: an operator paused it
    endpoint: str | None  #: where it is resident
    origin: str | None  #: where it was resident last
    parts: int  #: turns under way, those of sub-agents too
    turns: int  #: answered so far
    prompt_tokens: int  #: of these, with what was in the cache
    cached_tokens: int
    completion_tokens: int
    tokens: int  #: its footprint: prompt and answer of its last turn, and sub-agents under way
    waits_s: float | None  #: so far; None: it does not wait
    expected_s: float | None  #: until it comes in; None: it does not wait, or an operator paused it
    waited_s: float  #: the last time, before it came in
    resident_s: float | None  #: since it came in


class MemoryRow(msgspec.Struct, frozen=True):
    """One endpoint's KV memory, as sessions hold it."""

    endpoint: str
    kv_tokens: int | None  #: None: it tells none, so sessions do not wait for it
    usable_tokens: int  #: of these, by sessions, as hits show
    held_tokens: int  #: booked
    sessions: int  #: resident
    idle: int  #: of these, between turns
    tenants: dict[str, int]  #: tokens by tenant: those that hold most
    keeps_prefixes: bool = True  #: False: its engine keeps no blocks of ended requests, so sessions hold none of it


class SessionsSnapshot(msgspec.Struct, frozen=True):
    """All sessions at one moment. Totals only grow."""

    on: bool
    wait_s: float  #: the bound on waits
    resident: int
    waiting: int
    price: float  #: the part of all prefill that this bound costs, as things are
    price_of_minute: float  #: and that a bound of `SHORT_WAIT_S` would cost
    pauses_total: int
    moves_total: int  #: came back elsewhere
    forced_total: int  #: let in because they waited as long as they may
    memory: list[MemoryRow]


class LimitReached(msgspec.Struct, frozen=True, gc=False):
    """The limit that a tenant, one of its keys, or one of its models has reached."""

    limit: str  #: the setting's name, in the tenant's `limits`
    most: int  #: its value
    retry_after_s: float | None = None  #: when there will be enough again without further requests; None: unknown
    account: str = ""  #: whose limit it is, as in `Request.accounts`; "": the tenant's


class Left(msgspec.Struct, array_like=True, frozen=True):
    """The remainder of a rate per minute or day."""

    limit: int
    remaining: int  #: whole ones, 0 while in debt
    reset_s: float  #: until it is full again


class Allowance(msgspec.Struct, array_like=True, frozen=True):
    """A tenant's remainders; None: no such limit."""

    requests: Left | None
    tokens: Left | None
    tokens_day: Left | None = None


class Serving(msgspec.Struct, frozen=True):
    """An endpoint's models, and whether it accepts requests without a turn."""

    name: str
    models: frozenset[str] | None  #: None: not reported yet
    serves_any: bool
    load: float | None  #: for its size; None: nothing may go there
    works: bool  #: it takes requests, if only after a moment
