"""Who sent a request, and what it may have: what `identity.py` finds out. Values."""

from __future__ import annotations

import msgspec

from penstock.core.outcome import Reason
from penstock.core.settings import Limits
from penstock.server.names import Names


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who sent a request, and what it may have."""

    tenant: str  #: the flow it belongs to
    user: str  #: within the tenant; "" where nobody is named
    has_key: bool  #: known by one of Penstock's keys, which must not go upstream
    weight: float
    band: int  #: the rank granted, 0 is the highest
    band_lowered: bool  #: it asked for a higher one
    limits: Limits | None
    tenant_label: str  #: for metrics: a configured name, or `other`
    deadline_s: float | None  #: to the first token, from arrival on
    priority: int  #: the body's own, lower first, within its flow


class Unauthorized(msgspec.Struct, frozen=True):
    """The caller is not served."""

    message: str
    reason: Reason = Reason.UNAUTHORIZED


class Known(msgspec.Struct, frozen=True):
    """A tenant of the settings, or the default for all others."""

    name: str
    weight: float
    band_max: int
    limits: Limits | None
    has_keys: bool
    users: Names
    label: str
    capped: bool = False  #: its highest band is its own setting


class Key(msgspec.Struct, frozen=True):
    """A key that is known here."""

    digest: bytes
    owner: Known
    user: str  #: who uses it, where nobody is named
