"""The core's part of the configuration, with defaults. Durations in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


class EndpointLimits(msgspec.Struct, frozen=True):
    """An endpoint's own thresholds, beside its slots. None: the common value."""

    kv_usage_max: float | None = None
    prefill_tokens_max: int | None = None
    time_per_output_token_s_max: float | None = None  #: if a band has one too, the shorter applies
    engine_waiting_max: int | None = None  #: or the band's, if lower


class EndpointSpec(msgspec.Struct, frozen=True):
    """An endpoint's configuration."""

    name: str
    slots: int
    models: frozenset[str] | None = None  #: None: to be reported by it
    labels: Mapping[str, str] = {}
    adaptive_slots: bool = False  #: unknown number: start from `slots` and learn it
    price: float = 1.0  #: of its work, compared with other endpoints'
    weight: float = 1.0  #: its share of the requests, compared with other endpoints'
    limits: EndpointLimits = EndpointLimits()
    vouched: bool = True  #: known to be an engine, without further proof
    by_word: bool = False  #: and that is the operator alone
    kv_tokens: int | None = None  #: its KV memory; None: as its engine reports


class BandSettings(msgspec.Struct, frozen=True):
    """A band as configured; bands are listed highest first."""

    name: str
    engine_waiting_max: int = 2  #: it may send while fewer than that wait inside the engine; 0: only when none does
    ceiling: float = 1.0  #: share of an endpoint's slots up to which it may send
    min_share: float = 0.0  #: its share of service while it has work, even under load from higher bands
    wait_s_max: float | None = None  #: otherwise the queue's
    deadline_s: float | None = None  #: for the first token, from arrival
    time_per_output_token_s_max: float | None = None  #: otherwise admission's
    requests_max: int | None = None  #: its own bounds, within the queue's
    bytes_max: int | None = None
    tokens_max: int | None = None
    shed_target_s: float | None = None  #: the wait that a flow may stand at; None: nothing is shed
    shed_interval_s: float = 5.0  #: for how long it has to
    fairness: str | None = None  #: its own policy; None: that of all
    ordering: str | None = None  #: its own; None: that of all
    preemptible: bool = False  #: its leases may be given to higher bands while the client has seen nothing


class QueueBounds(msgspec.Struct, frozen=True):
    """How much may wait in all."""

    requests_max: int = 10_000
    bytes_max: int = 1 << 30
    tokens_max: int = 100_000_000


class Prices(msgspec.Struct, array_like=True, frozen=True):
    """Token prices by kind."""

    prompt: float = 1.0
    cached_prompt: float = 0.0
    completion: float = 2.0


class AdmissionSettings(msgspec.Struct, frozen=True):
    """The limits of admission, unless a band has its own."""

    kv_usage_max: float = 0.95
    prefill_tokens_max: int = 16384
    time_per_output_token_s_max: float | None = None
    reserved_share: float | None = None  #: of the slots, kept for flows under their share; None: measured
    preemptions_max: int = 3  #: of one request
    preempted_share_max: float = 0.05  #: of all slot time, lost to preemption; 0: nothing is preempted


class HealthSettings(msgspec.Struct, frozen=True):
    """When an endpoint is taken out, and for how long (seconds)."""

    eject_after: int = 3
    eject_for_s: float = 1.0
    eject_for_s_max: float = 30.0
    panic_threshold: float = 0.5


PASSED_MAX = 32  #: K, the bound on being passed (`core/dispatch/backfill.py`): past K, others wait, too


class RoutingSettings(msgspec.Struct, frozen=True):
    """The policies' settings, and how long a request waits for its preferred endpoint."""

    affinity_escape_s: float = 2.0
    affinity_wait_s: float | None = None  #: None: as long as the policy finds it worthwhile
    imbalance_threshold: float = math.inf
    prefix_group: int = (
        PASSED_MAX  #: how often a request is passed in its flow by others whose prompts are cached; 0: never
    )
    price_weight_s: float = math.inf  #: how much later a first token may be per unit that an endpoint is cheaper
    strict_sessions: bool = False  #: a session goes nowhere but home while that one is alive
    adapter_affinity: bool = True  #: endpoints that have a request's LoRA adapter in memory are preferred


SHORT_WAIT_S: Final = 60.0  # sessions that wait less for memory turn each other out too often; its price is told


class SessionSettings(msgspec.Struct, frozen=True):
    """The gate on KV memory (`core/sessions/gate.py`)."""

    memory: bool = False  #: agents' sessions wait until their contexts fit
    wait_s: float = 300.0  #: for so long at most, as a rule
    wait_s_max: float = 360.0  #: a request that the gate holds may wait so long in all, if that is more than its band's
    corrected: bool = True  #: what fits is learnt from the hits that answers report


class Limits(msgspec.Struct, frozen=True):
    """A tenant's limits; None: no such limit."""

    running: int | None = None
    queued: int | None = None
    queued_bytes: int | None = None
    queued_tokens: int | None = None  #: of prompts, as estimated
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


class SchedulerSettings(msgspec.Struct, frozen=True):
    """The scheduler's configuration. Durations in seconds."""

    bands: tuple[BandSettings, ...] = (BandSettings("standard"),)
    queue_enabled: bool = True
    bounds: QueueBounds = QueueBounds()
    wait_s_max: float = 60.0
    named_models: frozenset[str] = frozenset()  #: waited for, although no endpoint may serve them now
    empty_wait_s_max: float | None = None  #: while no endpoint for the model is in service; None: as usual
    fairness: str = "weighted_tokens"
    prices: Prices = Prices()
    levels: tuple[str, ...] = ("tenant",)  #: the meaning of the elements of a flow's path
    tenant_level: int | None = 0  #: which element of a flow's path is the tenant's own; None: none is
    ordering: str = "fcfs"
    admission: AdmissionSettings = AdmissionSettings()
    engine_priority: bool = False
    routing: str = "least_loaded"
    router: RoutingSettings = RoutingSettings()
    tenants: Mapping[str, Limits] = {}
    tenant_weights: Mapping[str, float] = {}  #: for flows that are here when settings change; requests bring their own
    ordered_weights: Mapping[str, float] = {}  #: of tenants, by operators: against those that requests bring
    model_weights: Mapping[str, float] = {}  #: as `tenant_weights`
    attempts_max: int = 3
    retry_budget: float = 0.2
    health: HealthSettings = HealthSettings()
    stale_after_s: float = 5.0  #: readings older than that are not used
    sessions: SessionSettings = SessionSettings()
    divided_tokens_min: int = 0  #: shorter prompts are not computed apart from their answers

    @property
    def gate(self) -> SessionSettings:
        """The gate's settings in force: without a queue nothing may wait."""
        return self.sessions if self.queue_enabled else msgspec.structs.replace(self.sessions, memory=False)

    def fairness_of(self, band: BandSettings) -> str:
        """Returns the name of the policy between the flows of a band: its own, or that of all bands."""
        return band.fairness or self.fairness

    def ordering_of(self, band: BandSettings) -> str:
        """Returns the name of the order inside the flows of a band: its own, or that of all bands."""
        return band.ordering or self.ordering


def part_of(settings: SchedulerSettings, gateways: int) -> SchedulerSettings:
    """Returns one gateway's part of bounds and limits, when each gateway decides alone.

    Nothing becomes 0, because 0 would block everything. Times, shares and weights stay.
    """
    if gateways <= 1:
        return settings
    bounds, bands = settings.bounds, settings.bands
    return msgspec.structs.replace(
        settings,
        bounds=_parted(bounds, ("requests_max", "bytes_max", "tokens_max"), gateways),
        bands=tuple(_parted(band, ("requests_max", "bytes_max", "tokens_max"), gateways) for band in bands),
        tenants=parts_of(settings.tenants, gateways),
    )


def parts_of(tenants: Mapping[str, Limits], gateways: int) -> Mapping[str, Limits]:
    """Returns the part of each tenant's limits that one of so many gateways holds it to."""
    if gateways <= 1:
        return tenants
    return {name: _parted(limits, limits.__struct_fields__, gateways) for name, limits in tenants.items()}


def part(whole: int, gateways: int) -> int:
    """Returns one gateway's part: rounded down, and of something never nothing."""
    return min(whole, max(1, whole // gateways))


def _parted(value: S, names: Iterable[str], gateways: int) -> S:
    whole = {name: getattr(value, name) for name in names}
    return msgspec.structs.replace(value, **{name: part(n, gateways) for name, n in whole.items() if n is not None})
