"""What parts of the core show of themselves: flows, tenants with limits, sources of what is cached where."""

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
    is_alone: bool  #: nobody else in its band waits, or got anything to speak of: shares of the band say nothing
    fair_share: float | None  #: what its weight entitles it to; None: nothing of it waits, so it gets all it asks for


class TenantSnapshot(msgspec.Struct, frozen=True):
    """One limited tenant at one moment. What is left of a rate is negative while in debt."""

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
    """What another package's policy got wrong, so that a rule of ours judged instead."""

    decision: str  #: fairness, ordering or routing
    policy: str
    count: int
    last: str  #: what was raised


class SourceSnapshot(msgspec.Struct, frozen=True):
    """One source's record."""

    source: str
    predicted_tokens: int  #: promised, of answers whose engines told
    hit_tokens: int  #: of these, really cached
    checks: int
    wrong: int
    off: int  #: endpoints about which it is not asked now


class Budget(msgspec.Struct, frozen=True):
    """A tenant's tokens for one period, as those have to know it with whom it may be shared."""

    tenant: str
    period_s: float
    size: float  #: what a full one holds
    left: float
    taken: float  #: since the gateway began, here; it never is less but by what was given back


class LimitReached(msgspec.Struct, frozen=True, gc=False):
    """Why a tenant gets no more for now."""

    limit: str  #: the setting's name, in the tenant's `limits`
    most: int  #: what it is set to
    retry_after_s: float | None = None  #: when there will be enough again, if nothing else comes; None: not known


class Left(msgspec.Struct, array_like=True, frozen=True):
    """What is left of one rate: of a minute's worth, or of a day's."""

    limit: int
    remaining: int  #: whole ones, 0 while in debt
    reset_s: float  #: until it is full again


class Allowance(msgspec.Struct, array_like=True, frozen=True):
    """What one tenant may still send; None: no limit of that kind."""

    requests: Left | None
    tokens: Left | None
    tokens_day: Left | None = None


class Serving(msgspec.Struct, frozen=True):
    """What one endpoint serves, and whether it may be sent what needs no turn."""

    name: str
    models: frozenset[str] | None  #: None: it has not told yet
    serves_any: bool
    load: float | None  #: for its size; None: nothing may go there
