"""What the scheduler has to know of the configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.core.admission import AdmissionSettings
from penstock.core.band import BandSettings
from penstock.core.fairness.base import Prices
from penstock.core.health import HealthSettings
from penstock.core.queues import QueueBounds
from penstock.core.routing.registry import RoutingSettings
from penstock.core.tenants import Limits


class SchedulerSettings(msgspec.Struct, frozen=True):
    """What the scheduler has to know of the configuration. Durations in seconds."""

    bands: tuple[BandSettings, ...] = (BandSettings("standard"),)
    queue_enabled: bool = True
    bounds: QueueBounds = QueueBounds()
    wait_s_max: float = 60.0
    fairness: str = "weighted_tokens"
    prices: Prices = Prices()
    levels: tuple[str, ...] = ("tenant",)  #: what the elements of a flow's path stand for
    tenant_level: int | None = 0  #: which element of a flow's path is the tenant's own; None: none is
    ordering: str = "fcfs"
    admission: AdmissionSettings = AdmissionSettings()
    engine_priority: bool = False
    routing: str = "least_loaded"
    router: RoutingSettings = RoutingSettings()
    tenants: Mapping[str, Limits] = {}
    tenant_weights: Mapping[str, float] = {}  #: for flows that are here when settings change; requests bring their own
    attempts_max: int = 3
    retry_budget: float = 0.2
    health: HealthSettings = HealthSettings()
    stale_after_s: float = 5.0  #: readings older than that are not used
    divided_tokens_min: int = 0  #: shorter prompts are not computed apart from their answers
