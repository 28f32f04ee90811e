"""The picture now: frozen values that metrics, the admin page, tests and the simulator share, and how they are taken.

Taking it costs per endpoint, band and model, never per waiting request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from penstock.core.band import Band
from penstock.core.endpoint import Endpoint
from penstock.core.tenants import TenantSnapshot


class EndpointSnapshot(msgspec.Struct, frozen=True):
    """One endpoint at one moment."""

    name: str
    state: str  #: "up", "draining" (by an operator), "down", "ejected" or "held"
    models: list[str] | None  #: None: it has not told
    slots: int
    slots_auto: bool  #: found out, so they may change
    leases: int
    reserved: int  #: leases before their first token
    load: float
    engine_waiting: float | None  #: as last observed; None where nothing credible was
    engine_running: float | None
    kv_usage: float | None
    prefix_hit_ratio: float | None  #: share of prompt tokens its cache held, as the engine counts
    observed_s_ago: float | None
    time_per_output_token_s: float
    dispatches_total: int


class QueueSnapshot(msgspec.Struct, frozen=True):
    """What waits for one model in one band."""

    model: str
    band: str
    requests: int
    prompt_tokens: int


class BandSnapshot(msgspec.Struct, frozen=True):
    """One band at one moment."""

    name: str
    waiting: int
    oldest_wait_s: float


class Snapshot(msgspec.Struct, frozen=True):
    """The whole scheduler at one moment."""

    draining: bool  #: on the way to the end: nothing new is let in
    paused: list[str]  #: models of which nothing is sent; `*` for all
    drained: list[str]  #: models of which nothing new is let in
    waiting: int
    waiting_bytes: int
    waiting_tokens: int
    running: int
    endpoints: list[EndpointSnapshot]
    bands: list[BandSnapshot]
    queues: list[QueueSnapshot]
    tenants: list[TenantSnapshot]


def stopped_models(stopped: Iterable[str | None]) -> list[str]:
    return sorted("*" if model is None else model for model in stopped)


def queues_of(bands: Iterable[Band]) -> list[QueueSnapshot]:
    return [
        QueueSnapshot(model=model, band=band.settings.name, requests=requests, prompt_tokens=band.tokens_of[model])
        for band in bands
        for model, requests in band.tree.root.backlog.items()
    ]


def band_now(band: Band, now: float) -> BandSnapshot:
    oldest = next(iter(band.entries.values()), None)  # in order of entering
    return BandSnapshot(
        name=band.settings.name,
        waiting=band.tree.waiting,
        oldest_wait_s=oldest.waited_s + now - oldest.queued_since_s if oldest is not None else 0.0,
    )


def endpoint_now(endpoint: Endpoint, now: float) -> EndpointSnapshot:
    health, ledger = endpoint.health, endpoint.ledger
    base = ledger.base if ledger.credible(now) else None
    if not health.up:
        state = "down"
    elif endpoint.drained:
        state = "draining"
    elif health.ejected(now):
        state = "ejected"
    else:
        state = "held" if health.held(now) else "up"
    return EndpointSnapshot(
        name=endpoint.name,
        state=state,
        models=sorted(endpoint.models) if endpoint.models is not None else None,
        slots=endpoint.slots,
        slots_auto=endpoint.adaptive is not None,
        leases=len(ledger.leases),
        reserved=sum(lease.first_token_s is None for lease in ledger.leases.values()),
        load=ledger.load(now),
        engine_waiting=base.waiting if base is not None else None,
        engine_running=base.running if base is not None else None,
        kv_usage=base.kv_usage if base is not None else None,
        prefix_hit_ratio=base.prefix_hit_ratio if base is not None else None,
        observed_s_ago=now - ledger.asked_s if ledger.asked_s > -math.inf else None,
        time_per_output_token_s=ledger.time_per_output_token_s(now),
        dispatches_total=endpoint.dispatches_total,
    )
