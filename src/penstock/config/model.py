"""The settings: their names, meaning and defaults.

Names, defaults and units are those of the YAML file; durations are kept in seconds, sizes in bytes. Tenants, identity
and fairness are in `sections/tenancy.py`, the base class in `sections/section.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from penstock.config import values
from penstock.config.address import host_and_port, root_path, split_listen
from penstock.config.paths import PATHS_MAX, PathSection
from penstock.config.sections.batch import BatchSection, StoreSection, store_form
from penstock.config.sections.clients import ClientAddress, CorsSection, EppSection
from penstock.config.sections.discovery import SOURCES_MAX, SourceSection
from penstock.config.sections.endpoint_tls import EndpointTls
from penstock.config.sections.locality import Instance, KvEvents
from penstock.config.sections.models import ModelSection
from penstock.config.sections.operation import Admin, AutoscaleSection, Log, Tracing, UsageSection
from penstock.config.sections.policies import OrderingName, OrderingNameOrEmpty
from penstock.config.sections.routing import RoutingSection, SessionsSection
from penstock.config.sections.section import Section, setting
from penstock.config.sections.share import ShareSection
from penstock.config.sections.tenancy import (
    ANONYMOUS,
    Accounting,
    Anonymous,
    BandFairness,
    FairnessSection,
    Identity,
    Tenant,
    band_fairness,
)

ENDPOINTS_MAX = 4_096
BANDS_MAX = 8
PRIORITY_MAX = 2**31 - 1  # Kubernetes keeps 32 bits
MODELS_MAX = 1_000
LABELS_MAX = 64
TENANTS_MAX = 10_000


class Tls(Section):
    """HTTPS for clients. Both files or neither."""

    cert: values.OptionalFile = setting(None, "The certificate chain (PEM).")
    key: values.OptionalFile = setting(None, "Its private key (PEM).")


class EndpointSection(Section):
    """The engines. The list may be empty if `--endpoint` names them."""

    url: values.Url = Field(
        description="The engine's base URL, with its path prefix if any, without `/v1`. `unix:/run/vllm.sock` is a "
        "unix socket, `unix:/run/vllm.sock:/prefix` one with a prefix; not with `epp.listen`."
    )
    name: values.Name = setting(
        "",
        "Its name in `?id=`, headers, metrics and admin verbs. Default: host and port of `url`, or its socket's file "
        "name.",
        validate_default=True,
    )
    engine: values.EngineName = setting("auto", "The engine's kind. `auto` asks it; `openai` is any other.")
    models: values.ServedModels = setting(
        "auto",
        "The models it serves; `auto` asks it. A mapping gives its own name for each: `theirs` stands in the body of a "
        "request for `ours` there, and `ours` in the answer.",
    )
    slots: values.Slots = setting("auto", "Concurrent requests; `auto` learns the number.")
    weight: values.Weight = setting(
        1.0,
        "Its share of the requests among endpoints of one model, while they have free slots. Its meaning in each "
        "routing policy: docs/policies/README.md.",
    )
    price: values.Number = setting(
        1.0, "Relative cost of its work. Routing prefers cheaper endpoints by `routing.price_weight`.", ge=0
    )
    kv_tokens: values.OptionalWhole = setting(
        None,
        "Its KV memory in tokens, for `sessions.memory`, if its metrics do not report it. As given it counts before "
        "what they report.",
        ge=1,
    )
    max_kv_usage: values.OptionalNumber = setting(None, "Overrides `admission.max_kv_usage`.", gt=0, le=1)
    max_prefill_tokens: values.OptionalWhole = setting(None, "Overrides `admission.max_prefill_tokens`.", ge=1)
    max_time_per_output_token: values.OptionalDuration = setting(
        None,
        "Overrides `admission.max_time_per_output_token`. If the band has a limit too, the shorter one applies.",
        gt=0,
    )
    max_engine_waiting: values.OptionalWhole = setting(
        None,
        "Send only while fewer requests than this wait inside the engine; the band's own limit applies if lower. 0: "
        "only while none waits and a slot is free.",
        ge=0,
    )
    api_key: values.OptionalSecret = setting(
        None, "The credential sent to it instead of the client's. Never logged or shown."
    )
    tls: EndpointTls | None = setting(None, "TLS to the engine, if its certificate has no public authority.")
    labels: Annotated[dict[str, values.Label], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        {}, "Free labels: role, zone and so on."
    )
    kv_events: KvEvents = setting(
        "off",
        "The address of its KV events (ZMQ), for `routing.locality: kv_events`. `auto` asks the engine; default port "
        "5557.",
    )
    lmcache_instance: Instance = setting(
        None, "Its LMCache instance, for `routing.locality: lmcache`. Default: the only one at its IP address."
    )

    @property
    def names(self) -> Mapping[str, str]:
        """By a model's name, the endpoint's own name for it, as far as given."""
        return self.models if isinstance(self.models, dict) else {}

    @field_validator("name")
    @classmethod
    def _named_after_its_address(cls, name: str, info: ValidationInfo) -> str:
        return host_and_port(info.data["url"]) if not name and "url" in info.data else name


class Queue(Section):
    """Bounds of the queue in front of the engines."""

    enabled: values.Bool = setting(
        default=True, meaning="`false`: no queueing, and slots do not limit; routing and failover stay."
    )
    max_requests: values.Whole = setting(10_000, "Queued requests; 0: nothing waits.", ge=0)
    max_bytes: values.Size = setting(2**30, "Bytes of their bodies, including those still being received.", ge=0)
    max_tokens: values.Whole = setting(100_000_000, "Their estimated prompt tokens.", ge=0)
    max_wait: values.Duration = setting(
        60.0, "How long a request may wait in the queue; 0: what finds no slot is refused at once, `queue_full`.", ge=0
    )
    empty_pool_wait: values.OptionalDuration = setting(
        None,
        "How long, while no endpoint for its model is in service: then 503 `no_endpoint`. When one comes, `max_wait` "
        "begins anew; both times together are the most. Default: no difference.",
        gt=0,
    )
    heartbeat_after: values.Duration = setting(
        0.0,
        "Interval of position updates to a queued stream. The first one commits status 200, so a later refusal is an "
        "event in the stream. A client with a time-out (`x-stainless-…`) always gets an update in time; 0: only then.",
        ge=0,
    )
    drain_delay: values.Duration = setting(
        0.0,
        "On shutdown: how long new requests are still served, while `/ready` says 503, pickers' health says no, and "
        "each answer closes its connection: as long as a load balancer needs to send callers elsewhere. The time-outs "
        "below begin after it.",
        ge=0,
    )
    drain_timeout: values.Duration = setting(
        30.0, "On shutdown: how long queued requests are still served before they get 503.", ge=0
    )
    stop_timeout: values.Duration = setting(
        300.0, "On shutdown: how long running requests may take before they are aborted.", ge=0
    )


class BandSection(Section):
    """Strict priority classes, highest first.

    A list replaces the default one as a whole. A mapping changes bands of the default one by their names, and keeps the
    rest: `bands: {interactive: {deadline: 30s}}`, or `PENSTOCK__BANDS__INTERACTIVE__DEADLINE=30s`.
    """

    removed: ClassVar[dict[str, str]] = {"shed_interval": "delete it: it is 5 s, longer than most answers take"}
    name: values.BandName = Field(description="A free name.")
    max_engine_waiting: values.Whole = setting(
        2,
        "Send only while fewer requests than this wait inside the engine. 0: only while none waits and a slot is free.",
        ge=0,
    )
    priority: values.OptionalWhole = setting(
        None,
        "The least `priority` of an InferenceObjective whose requests belong here; those below all: lowest band. "
        "Default: `default_band` has 0, each band above it 1 more than the next one, each below it 1 less.",
        ge=-PRIORITY_MAX,
        le=PRIORITY_MAX,
    )
    best_effort: values.Bool = setting(default=False, meaning="Work that may be shed under overload, by `shed_target`.")
    preemptible: values.Bool = setting(
        default=False,
        meaning="Requests of higher bands may take its slots: a running request of which its client has seen nothing "
        "is aborted and queued again, three times at most, and within `admission.max_preempted_share`.",
    )
    shed_target: values.OptionalDuration = setting(
        None,
        "Best-effort bands only: once the shortest wait of a flow stays above this for 5 s, its requests "
        "that waited, or are expected to wait, twice this get 429 `overload`. Unset: no shedding. `10s` suits clients "
        "that retry.",
        gt=0,
    )
    ceiling: values.Number = setting(
        1.0, "The share of an endpoint's slots up to which this band may fill it.", gt=0, le=1
    )
    min_share: values.Number = setting(
        0.0,
        "The share of the work, in tokens, it gets even under full load from higher bands; in total less than 1.",
        ge=0,
        lt=1,
    )
    deadline: values.OptionalDuration = setting(
        None, "Deadline for the first token; a request may ask for a shorter one.", gt=0
    )
    max_time_per_output_token: values.OptionalDuration = setting(
        None, "Overrides `admission.max_time_per_output_token`.", gt=0
    )
    max_wait: values.OptionalDuration = setting(None, "Overrides `queue.max_wait`.", ge=0)
    fairness: Annotated[BandFairness, BeforeValidator(band_fairness)] = BandFairness()
    ordering: OrderingNameOrEmpty = setting("", "Overrides the top-level `ordering`.")
    max_requests: values.OptionalWhole = setting(
        None, "Queued requests of this band, within `queue.max_requests`.", ge=0
    )
    max_bytes: values.OptionalSize = setting(None, "Bytes of their bodies, within `queue.max_bytes`.", ge=0)
    max_tokens: values.OptionalWhole = setting(None, "Their estimated prompt tokens, within `queue.max_tokens`.", ge=0)


def numbers_of(bands: Sequence[BandSection], default_band: str) -> list[int]:
    """Returns each band's `priority`, those not given completed from the default band outwards."""
    default = next((rank for rank, band in enumerate(bands) if band.name == default_band), 0)
    numbers = [band.priority or 0 for band in bands]
    for rank in range(default - 1, -1, -1):
        if bands[rank].priority is None:
            numbers[rank] = numbers[rank + 1] + 1
    for rank in range(default + 1, len(bands)):
        if bands[rank].priority is None:
            numbers[rank] = numbers[rank - 1] - 1
    return numbers


class Admission(Section):
    """When an endpoint may get another request."""

    removed: ClassVar[dict[str, str]] = {"max_preemptions": "delete it: a request is preempted three times at most"}
    slots_initial: values.Whole = setting(
        16, "The first guess if `slots` is `auto` and the engine does not report its number.", ge=1
    )
    max_kv_usage: values.Number = setting(0.95, "Send nothing more above this share of KV memory in use.", gt=0, le=1)
    max_prefill_tokens: values.Whole = setting(
        16_384,
        "Prompt tokens sent to an endpoint and not yet computed. An idle endpoint takes one request of any size.",
        ge=1,
    )
    max_time_per_output_token: values.OptionalDuration = setting(
        None, "Send nothing more while the TPOT of an endpoint is above this.", gt=0
    )
    reserved_slots: values.ReservedSlots = setting(
        "auto", "The share of slots kept free for flows under their fair share. `auto` measures the need."
    )
    max_preempted_share: values.Number = setting(
        0.05, "The share of all slot time that preemption may lose. 0: nothing is preempted.", ge=0, le=1
    )
    engine_priority: values.Bool = setting(default=False, meaning="Send priorities to engines that support them.")


class Retry(Section):
    """Retries of a request that failed before its first byte."""

    max_attempts: values.Whole = setting(3, "Attempts per request, including the first.", ge=1, le=100)
    budget: values.Number = setting(
        0.2,
        "Retries as a share of the requests of the last 10 s, or of those in flight if more; at least 10 in 10 s. 0: "
        "none.",
        ge=0,
        le=1,
    )


class HealthSection(Section):
    """When an endpoint is ejected, and for how long."""

    probe_interval: values.Duration = setting(5.0, "Between two health probes.", gt=0)
    eject_after: values.Whole = setting(3, "Consecutive failures that eject an endpoint.", ge=1)
    eject_for: values.Duration = setting(1.0, "The first ejection; each further one is twice as long.", gt=0)
    eject_for_max: values.Duration = setting(30.0, "The longest ejection.", gt=0)
    panic_threshold: values.Number = setting(
        0.5, "If fewer endpoints than this share are healthy, all are used.", ge=0, le=1
    )


class Timeouts(Section):
    """Timeouts for engines (`connect`, `first_byte`, `between_bytes`) and clients (`client_…`)."""

    connect: values.Duration = setting(5.0, "To connect to an engine.", gt=0)
    first_byte: values.Duration = setting(600.0, "From sending a request to the first byte of the answer.", gt=0)
    between_bytes: values.Duration = setting(120.0, "Between two chunks of an answer.", gt=0)
    background: values.Duration = setting(
        3600.0,
        "How long a background response holds its slot while its engine computes it; then it is charged by estimate.",
        gt=0,
    )
    client_header: values.Duration = setting(10.0, "For receiving a request's head.", gt=0)
    client_body: values.Duration = setting(60.0, "Between two pieces of a request's body.", gt=0)
    client_body_total: values.Duration = setting(
        600.0,
        "For a whole body; for the upload of a file longer by as much as `batch.limits.max_file` is larger than "
        "`limits.max_body`.",
        gt=0,
    )
    client_write: values.Duration = setting(60.0, "For a client to accept the next chunk of an answer.", gt=0)
    client_idle: values.Duration = setting(
        620.0,
        "For the next request on a connection. Longer than load balancers keep theirs (up to 600 s), so that they "
        "never use one that is being closed.",
        ge=1,
    )


class LimitsSection(Section):
    """Bounds of clients' requests and connections."""

    max_body: values.Size = setting(64 * 2**20, "The largest body, after inflating.", gt=0)
    max_header: values.Size = setting(64 * 2**10, "The largest request head.", gt=0)
    max_connections: values.Whole = setting(20_000, "Open client connections.", ge=1)
    max_connections_per_address: values.OptionalWhole = setting(
        None, "Open connections per address. Off by default: clients behind a proxy or NAT share an address.", ge=1
    )


class Observe(Section):
    """How often the engines' gauges are read."""

    interval: values.Duration = setting(1.0, "Normally; every second one if nothing runs or waits at an engine.", gt=0)
    fast_interval: values.Duration = setting(
        0.5, "While requests wait for an endpoint near its limit, or its page misses our requests.", gt=0
    )


class MetricsSection(Section):
    """Contents of `/metrics`."""

    aliases: Annotated[
        tuple[Literal["vllm_router", "production_stack", "llm_d"], ...], BeforeValidator(values.items(0, 3))
    ] = setting(
        (),
        "Also export metrics under other projects' names: `vllm_router` (RFC 876), `production_stack` and "
        "`llm_d` (their dashboards and scalers).",
    )


RootPath = Annotated[str, BeforeValidator(root_path), values.ValueKind("path")]
DEFAULT_BANDS = (
    BandSection(name="interactive", max_engine_waiting=3),
    BandSection(name="standard", max_engine_waiting=2),
    BandSection(name="batch", max_engine_waiting=0, best_effort=True, preemptible=True),
)


class OriginsSection:
    """The origin of each setting. All instances are equal, so that origins do not count when settings are compared."""

    def __init__(self, find: Callable[[tuple[str, ...]], str | None] = lambda _: None) -> None:
        self.find = find

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OriginsSection)

    def __hash__(self) -> int:
        return 0


class Settings(Section):
    """Everything that can be set."""

    _origins: OriginsSection = PrivateAttr(default_factory=OriginsSection)

    listen: values.Listen = setting(
        "127.0.0.1:8080",
        "The address to listen on. `:8080` is every interface; port 0 is any free port; `unix:/run/penstock.sock` is a "
        "unix socket, without `tls`. See docs/operations.md.",
    )
    root_path: RootPath = setting(
        "", "A path prefix such as `/vllm` under which everything is served too, for a proxy that does not strip it."
    )
    workers: values.Workers = setting(
        1,
        "Worker processes. From 2 on, one more process schedules for all of them, so queue, limits and fairness are "
        "shared. `auto`: one per CPU. See docs/scale.md.",
    )
    share: ShareSection = ShareSection()
    epp: EppSection = EppSection()
    tls: Tls = Tls()
    endpoints: Annotated[tuple[EndpointSection, ...], BeforeValidator(values.items(0, ENDPOINTS_MAX))] = ()
    discovery: Annotated[tuple[SourceSection, ...], BeforeValidator(values.items(0, SOURCES_MAX))] = ()
    models: Annotated[dict[values.ModelName, ModelSection], BeforeValidator(values.items(0, MODELS_MAX))] = setting(
        {}, ""
    )
    paths: Annotated[tuple[PathSection, ...], BeforeValidator(values.items(0, PATHS_MAX))] = ()
    queue: Queue = Queue()
    bands: Annotated[tuple[BandSection, ...], BeforeValidator(values.items(1, BANDS_MAX))] = DEFAULT_BANDS
    default_band: values.BandName = setting("standard", "The band of requests that name none.")
    fairness: FairnessSection = FairnessSection()
    ordering: OrderingName = setting(
        "fcfs", "The order within a flow: oldest first, most urgent first, or shortest first (with aging)."
    )
    admission: Admission = Admission()
    routing: RoutingSection = RoutingSection()
    sessions: SessionsSection = SessionsSection()
    retry: Retry = Retry()
    health: HealthSection = HealthSection()
    timeouts: Timeouts = Timeouts()
    limits: LimitsSection = LimitsSection()
    accounting: Accounting = Accounting()
    tenants: Annotated[tuple[Tenant, ...], BeforeValidator(values.items(0, TENANTS_MAX))] = ()
    identity: Identity = setting(Identity(), "", validate_default=True)
    client_address: ClientAddress = ClientAddress()
    cors: CorsSection = CorsSection()
    observe: Observe = Observe()
    autoscale: AutoscaleSection = AutoscaleSection()
    metrics: MetricsSection = MetricsSection()
    admin: Admin = Admin()
    state_dir: values.OptionalFile = setting(
        None,
        "The state folder: the generated admin token, and the store if `store` names none. Default: "
        "`$STATE_DIRECTORY` (systemd), `$XDG_STATE_HOME/penstock`, or `~/.local/state/penstock`.",
    )
    store: Annotated[StoreSection, BeforeValidator(store_form)] = StoreSection()
    batch: BatchSection = BatchSection()
    usage: UsageSection = UsageSection()
    log: Log = Log()
    tracing: Tracing = Tracing()

    @field_validator("identity")
    @classmethod
    def _max_band_follows_default_band(cls, identity: Identity, info: ValidationInfo) -> Identity:
        if identity.max_band or "default_band" not in info.data:
            return identity
        return identity.model_copy(update={"max_band": info.data["default_band"]})

    def origin(self, *path: str) -> str | None:
        """Returns the file, variable or flag that gave the setting at `path`; None if it is a default."""
        return self._origins.find(path)

    def with_origins(self, find: Callable[[tuple[str, ...]], str | None]) -> Settings:
        """Returns these settings with their origins, looked up by `find`."""
        self._origins = OriginsSection(find)
        return self

    @property
    def anonymous(self) -> Anonymous:
        """The share of all clients without a key, in either of its two spellings."""
        listed = next((tenant for tenant in self.tenants if tenant.name == ANONYMOUS), None)
        return self.identity.anonymous if listed is None else Anonymous(weight=listed.weight, limits=listed.limits)

    @property
    def keeps_usage(self) -> bool:
        """True if there is a ledger of use: it needs a store."""
        return self.store.enabled and self.usage.keep > 0

    @property
    def needs_store(self) -> str | None:
        """The setting that asks for a store, so the gateway can't do without; None: there is one by default only."""
        asked = {
            "store": self.store.enabled and (self.store.data is not None or self.store.url is not None),
            "identity.made_keys": self.identity.made_keys,
            "batch.serve": self.batch.serve,
            "usage": bool(self.usage.model_fields_set) and self.usage.keep > 0,
        }
        return next((name for name, is_so in asked.items() if is_so), None)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on; an empty host means every interface."""
        return split_listen(self.listen)

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Host and port of `/admin` and `/metrics`; None if they are served at `listen`."""
        return None if self.admin.listen is None else split_listen(self.admin.listen)

    @property
    def at_operators(self) -> str:
        """The operators' address, as it is named in messages."""
        return f"{self.admin.listen} (admin.listen)"
