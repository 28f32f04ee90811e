"""The picture now: frozen values that metrics, the admin page, tests and the simulator share."""

from __future__ import annotations

import msgspec


class EndpointSnapshot(msgspec.Struct, frozen=True):
    """One endpoint at one moment."""

    name: str
    state: str  #: "up", "down", "ejected" or "held"
    models: list[str] | None  #: None: it has not told
    slots: int
    leases: int
    reserved: int  #: leases before their first token
    load: float
    engine_waiting: float | None  #: as last observed; None where nothing credible was
    engine_running: float | None
    kv_usage: float | None
    observed_s_ago: float | None
    dispatches_total: int


class QueueSnapshot(msgspec.Struct, frozen=True):
    """What waits for one model in one band."""

    model: str
    band: str
    requests: int
    body_bytes: int
    prompt_tokens: int
    oldest_wait_s: float


class Snapshot(msgspec.Struct, frozen=True):
    """The whole scheduler at one moment."""

    draining: bool
    waiting: int
    waiting_bytes: int
    running: int
    endpoints: list[EndpointSnapshot]
    queues: list[QueueSnapshot]
