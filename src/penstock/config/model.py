"""The model: which settings are there, what do they mean, and what are their defaults?

Names, defaults and units are those of the YAML file; durations are kept in seconds and sizes in bytes. Tenants,
identity and fairness are in `sections/tenancy.py`; what all sections have in common is in `sections/section.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from penstock.config import values
from penstock.config.address import host_and_port, root_path, split_listen
from penstock.config.sections.batch import BatchSection
from penstock.config.sections.clients import ClientAddress, CorsSection
from penstock.config.sections.discovery import SOURCES_MAX, SourceSection
from penstock.config.sections.endpoint_tls import EndpointTls
from penstock.config.sections.locality import Instance, KvEvents
from penstock.config.sections.models import ModelSection
from penstock.config.sections.operation import Admin, AutoscaleSection, Log, Tracing
from penstock.config.sections.policies import OrderingName, OrderingNameOrEmpty
from penstock.config.sections.routing import RoutingSection
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
MODELS_MAX = 1_000
LABELS_MAX = 64
TENANTS_MAX = 10_000


class Tls(Section):
    """HTTPS for callers. Both files or neither."""

    cert: values.OptionalFile = setting(None, "The certificate chain, as a PEM file.")
    key: values.OptionalFile = setting(None, "Its private key, as a PEM file.")


class EndpointSection(Section):
    """The engines to send to. None in the file is fine when `--endpoint` names them."""

    url: values.Url = Field(description="The engine's base URL, with a path prefix if it has one, but without `/v1`.")
    name: values.Name = setting(
        "",
        "Its name in `?id=`, response headers, metrics and admin verbs. Default: host and port of `url`.",
        validate_default=True,
    )
    engine: values.EngineName = setting(
        "auto", "What it speaks beyond the OpenAI API. `auto` asks it; `openai` is anything else."
    )
    models: values.ServedModels = setting("auto", "The models it serves. `auto` asks it.")
    slots: values.Slots = setting("auto", "How many requests it is sent at a time. `auto` learns it.")
    weight: values.Weight = setting(
        1.0,
        "Its share of the requests, compared with other endpoints of the same model: 3 beside 1 is three of four, "
        "while both have slots free. What it means in each routing policy: docs/policies/README.md.",
    )
    price: values.Number = setting(
        1.0,
        "What its work costs, compared with other endpoints': a hosted engine more than an own one. Routing goes where "
        "it is cheaper, as `routing.price_weight` says.",
        ge=0,
    )
    max_kv_usage: values.OptionalNumber = setting(
        None, "Instead of `admission.max_kv_usage`, for this endpoint.", gt=0, le=1
    )
    max_prefill_tokens: values.OptionalWhole = setting(
        None, "Instead of `admission.max_prefill_tokens`, for this endpoint.", ge=1
    )
    max_time_per_output_token: values.OptionalDuration = setting(
        None,
        "Instead of `admission.max_time_per_output_token`, for this endpoint. Where a band has a limit, too, the "
        "shorter one holds.",
        gt=0,
    )
    max_engine_waiting: values.OptionalWhole = setting(
        None,
        "Send only while fewer than this many wait inside this engine, or as the request's band says where that is "
        "less. 0: only while none does and a slot is free.",
        ge=0,
    )
    api_key: values.OptionalSecret = setting(
        None, "The credential sent to it instead of the caller's. Never logged or shown."
    )
    tls: EndpointTls | None = setting(
        None, "How `https` is spoken with it, where its certificate is not one of a public authority."
    )
    labels: Annotated[dict[str, values.Label], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        {}, "Free labels: role, zone and so on."
    )
    kv_events: KvEvents = setting(
        "off",
        "Where it publishes its KV events (ZMQ), with `routing.locality: kv_events`. `auto` asks it, and expects them "
        "at port 5557 where it does not tell.",
    )
    lmcache_instance: Instance = setting(
        None,
        "The name of the LMCache instance it reads from, with `routing.locality: lmcache`. Without it, the one at its "
        "IP address, if only one is.",
    )

    @field_validator("name")
    @classmethod
    def _named_after_its_address(cls, name: str, info: ValidationInfo) -> str:
        return host_and_port(info.data["url"]) if not name and "url" in info.data else name


class Queue(Section):
    """What waits in front of the engines, and for how long."""

    enabled: values.Bool = setting(
        default=True,
        meaning="With `false` nothing waits and slots do not limit; routing and failover stay.",
    )
    max_requests: values.Whole = setting(10_000, "How many requests may wait in all.", ge=0)
    max_bytes: values.Size = setting(
        2**30, "How many bytes their bodies may hold in all; also those still being received.", ge=0
    )
    max_tokens: values.Whole = setting(100_000_000, "How many prompt tokens may wait in all, by our estimate.", ge=0)
    max_wait: values.Duration = setting(60.0, "How long one request may wait in the queue.", gt=0)
    heartbeat_after: values.Duration = setting(
        0.0,
        "Tell a waiting stream its place after so long, and again until it is answered. This commits status 200, so a "
        "later refusal is an event in the stream. Callers whose own `x-stainless-read-timeout` would pass hear "
        "something before it does, in the queue or not; 0: only these.",
        ge=0,
    )
    drain_timeout: values.Duration = setting(
        30.0, "On shutdown: how long what waits is still served before it gets 503.", ge=0
    )
    stop_timeout: values.Duration = setting(
        300.0, "On shutdown: how long what runs may take to finish before it is aborted.", ge=0
    )


class BandSection(Section):
    """Strict priority classes, highest first. A list in the file replaces the default one as a whole."""

    name: values.BandName = Field(description="A free name.")
    max_engine_waiting: values.Whole = setting(
        2,
        "Send only while fewer than this many wait inside the engine. 0: only while none does and a slot is free.",
        ge=0,
    )
    best_effort: values.Bool = setting(
        default=False, meaning="Work that may be shed under overload, where `shed_target` says so."
    )
    shed_target: values.OptionalDuration = setting(
        None,
        "Best-effort bands only: while even the shortest wait of a flow stays above this for `shed_interval`, nobody "
        "of it waits longer than twice this: 429 `overload`, at once where the estimate says so. Without it nothing is "
        "shed. `10s` suits work whose callers come back by themselves.",
        gt=0,
    )
    shed_interval: values.Duration = setting(
        5.0, "How long waits have to stay above `shed_target`. Longer than an answer takes, or bursts are shed.", gt=0
    )
    ceiling: values.Number = setting(1.0, "The share of an endpoint's slots that this band may fill up to.", gt=0, le=1)
    min_share: values.Number = setting(
        0.0,
        "The share of service it gets even while higher bands take all they can; less than 1 over all bands.",
        ge=0,
        lt=1,
    )
    deadline: values.OptionalDuration = setting(
        None, "The time to the first token that its requests have to meet, unless they ask for a shorter one.", gt=0
    )
    max_time_per_output_token: values.OptionalDuration = setting(
        None, "Instead of `admission.max_time_per_output_token`, for this band.", gt=0
    )
    max_wait: values.OptionalDuration = setting(None, "Instead of `queue.max_wait`, for this band.", gt=0)
    fairness: Annotated[BandFairness, BeforeValidator(band_fairness)] = BandFairness()
    ordering: OrderingNameOrEmpty = setting("", "Instead of the top-level `ordering`, for this band.")
    max_requests: values.OptionalWhole = setting(
        None, "How many requests of this band may wait, within `queue.max_requests`.", ge=0
    )
    max_bytes: values.OptionalSize = setting(
        None, "How many bytes their bodies may hold, within `queue.max_bytes`.", ge=0
    )
    max_tokens: values.OptionalWhole = setting(
        None, "How many estimated prompt tokens of this band may wait, within `queue.max_tokens`.", ge=0
    )


class Admission(Section):
    """When an endpoint may be sent another request."""

    slots_initial: values.Whole = setting(
        16, "Slots to begin with where `slots` is `auto` and the engine does not tell.", ge=1
    )
    max_kv_usage: values.Number = setting(0.95, "Send nothing more above this share of KV memory in use.", gt=0, le=1)
    max_prefill_tokens: values.Whole = setting(
        16_384,
        "Prompt tokens that an endpoint may have before it, not yet computed. One request is taken whatever its size.",
        ge=1,
    )
    max_time_per_output_token: values.OptionalDuration = setting(
        None, "Send nothing more while an endpoint takes longer than this per output token.", gt=0
    )
    reserved_slots: values.ReservedSlots = setting(
        "auto",
        "The share of an endpoint's slots kept for flows under their fair share. `auto` measures what they need.",
    )
    engine_priority: values.Bool = setting(
        default=False, meaning="Tell engines that know priorities which requests come first."
    )


class Retry(Section):
    """What happens to a request that failed before its first byte."""

    max_attempts: values.Whole = setting(
        3, "How often one request is tried at most, the first time included.", ge=1, le=100
    )
    budget: values.Number = setting(
        0.2,
        "Retries allowed as a share of the requests of the last 10 s, or of those under way where these are more;"
        " 10 in 10 s in any case, but with 0 none.",
        ge=0,
        le=1,
    )


class HealthSection(Section):
    """When an endpoint is taken out, and for how long."""

    probe_interval: values.Duration = setting(5.0, "The time between two health probes of an endpoint.", gt=0)
    eject_after: values.Whole = setting(3, "Failures in a row that take an endpoint out.", ge=1)
    eject_for: values.Duration = setting(1.0, "How long the first time; doubled each time after.", gt=0)
    eject_for_max: values.Duration = setting(30.0, "How long at most.", gt=0)
    panic_threshold: values.Number = setting(
        0.5, "When a smaller share of the endpoints than this is healthy, all are used.", ge=0, le=1
    )


class Timeouts(Section):
    """How long we wait for an engine (`connect`, `first_byte`, `between_bytes`) and for a caller (`client_…`)."""

    connect: values.Duration = setting(5.0, "To connect to an engine.", gt=0)
    first_byte: values.Duration = setting(600.0, "From sending a request to the answer's first byte.", gt=0)
    between_bytes: values.Duration = setting(120.0, "Between two pieces of an answer.", gt=0)
    client_header: values.Duration = setting(10.0, "For a caller to send a request's head.", gt=0)
    client_body: values.Duration = setting(60.0, "For a caller to send a request's body.", gt=0)
    client_write: values.Duration = setting(60.0, "For a caller to take the next piece of an answer.", gt=0)
    client_idle: values.Duration = setting(
        620.0,
        "For a caller to send its next request on a connection. Longer than load balancers keep theirs (up to 600 s), "
        "so that none of them sends a request on a connection that was just closed here.",
        ge=1,
    )


class LimitsSection(Section):
    """What a caller may send."""

    max_body: values.Size = setting(64 * 2**20, "The largest body, after inflating.", gt=0)
    max_header: values.Size = setting(64 * 2**10, "The largest request head.", gt=0)
    max_connections: values.Whole = setting(20_000, "Open connections from callers.", ge=1)
    max_connections_per_address: values.OptionalWhole = setting(
        None,
        "Of these, those from one address; off by default, for behind a proxy or a NAT all callers have one address.",
        ge=1,
    )


class Observe(Section):
    """How often the engines' own gauges are read."""

    interval: values.Duration = setting(1.0, "Normally.", gt=0)
    fast_interval: values.Duration = setting(
        0.5, "While requests wait for an endpoint near its limit, or its page shows nothing of what it owes.", gt=0
    )


class MetricsSection(Section):
    """What `/metrics` shows."""

    aliases: Annotated[tuple[Literal["vllm_router", "production_stack"], ...], BeforeValidator(values.items(0, 2))] = (
        setting(
            (),
            "Other projects' names for the same metrics, exported too: `vllm_router` (RFC 876's), `production_stack` "
            "(what its dashboards and scalers read of its router).",
        )
    )


RootPath = Annotated[str, BeforeValidator(root_path), values.ValueKind("path")]
DEFAULT_BANDS = (
    BandSection(name="interactive", max_engine_waiting=3),
    BandSection(name="standard", max_engine_waiting=2),
    BandSection(name="batch", max_engine_waiting=0, best_effort=True),
)


class OriginsSection:
    """Where settings came from. All origins are equal, so that equal settings are equal wherever they came from."""

    def __init__(self, find: Callable[[tuple[str, ...]], str | None] = lambda _: None) -> None:
        self.find = find

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OriginsSection)

    def __hash__(self) -> int:
        return 0


class Settings(Section):
    """Everything that can be set."""

    _origins: OriginsSection = PrivateAttr(default_factory=OriginsSection)

    later = frozenset({"journal"})

    listen: values.Listen = setting(
        "127.0.0.1:8080", "Where to listen. `:8080` is every interface; port 0 is any free port."
    )
    root_path: RootPath = setting(
        "", "A prefix of paths, such as `/vllm`, under which everything is served too, for a proxy that leaves it on."
    )
    workers: values.Workers = setting(
        1,
        "Processes that carry requests and answers. From 2 on, one more decides for all of them, so queue, limits and "
        "fairness are those of one gateway. `auto`: as many as there are CPUs. docs/scale.md says when it pays.",
    )
    share: ShareSection = ShareSection()
    tls: Tls = Tls()
    endpoints: Annotated[tuple[EndpointSection, ...], BeforeValidator(values.items(0, ENDPOINTS_MAX))] = ()
    discovery: Annotated[tuple[SourceSection, ...], BeforeValidator(values.items(0, SOURCES_MAX))] = ()
    models: Annotated[dict[values.ModelName, ModelSection], BeforeValidator(values.items(0, MODELS_MAX))] = setting(
        {}, ""
    )
    queue: Queue = Queue()
    bands: Annotated[tuple[BandSection, ...], BeforeValidator(values.items(1, BANDS_MAX))] = DEFAULT_BANDS
    default_band: values.BandName = setting("standard", "The band of requests that ask for none.")
    fairness: FairnessSection = FairnessSection()
    ordering: OrderingName = setting(
        "fcfs",
        "Which request of one flow goes first: the oldest, the one most pressed, or the shortest (with aging).",
    )
    admission: Admission = Admission()
    routing: RoutingSection = RoutingSection()
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
        "The folder for what a gateway keeps for itself: its own admin token, by port. Default: `$STATE_DIRECTORY` "
        "(systemd), `$XDG_STATE_HOME/penstock`, or `~/.local/state/penstock`.",
    )
    batch: BatchSection = BatchSection()
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
        """Returns these settings, which now know where each came from, by `find`."""
        self._origins = OriginsSection(find)
        return self

    @property
    def anonymous(self) -> Anonymous:
        """The share of all callers without a key, whichever of the two ways it was written in."""
        listed = next((tenant for tenant in self.tenants if tenant.name == ANONYMOUS), None)
        return self.identity.anonymous if listed is None else Anonymous(weight=listed.weight, limits=listed.limits)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on; an empty host means every interface."""
        return split_listen(self.listen)

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Host and port of `/admin` and `/metrics`; None where they are with all the rest."""
        return None if self.admin.listen is None else split_listen(self.admin.listen)
