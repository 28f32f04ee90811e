"""What a new decider learns of edges about the time before: leases that go on, and the service that flows got."""

from __future__ import annotations

import msgspec

from penstock.core.values.settings import Prices


class Underway(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A continuing lease, as known to its edge."""

    lease: int
    endpoint: str
    running_s: float  #: since it was sent there
    begun: bool = False  #: its client has some of the answer
    output_tokens: int = 0  #: that were seen of the answer
    decode: str | None = None  #: only its prompt is computed there; this endpoint is leased to answer it
    decode_lease: int | None = None
    handed_over: bool = False  #: its prompt was computed elsewhere


class ServiceGot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A flow's recent service: sums that decay over a minute."""

    band: int
    flow: tuple[str, ...]
    weights: tuple[float, ...]
    accounts: tuple[str, ...]  #: the names for limits
    prices: Prices | None
    requests: float
    prompt_tokens: float
    cached_tokens: float
    completion_tokens: float
