"""Tenancy: clients, their limits, and their shares of the service."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from penstock.config import values
from penstock.config.sections.policies import FairnessName, FairnessNameOrEmpty
from penstock.config.sections.section import Section, setting
from penstock.config.sections.tokens import JwtSection

ANONYMOUS, OTHER = "anonymous", "other"  # clients without a name; clients beyond `max_dynamic`
KEY_HEADERS = ("authorization", "x-api-key", "api-key")  # headers of credentials; the last one is Azure's clients'
NAMES_WITHOUT_KEYS = (ANONYMOUS, OTHER)
DISTINGUISH: tuple[Literal["address", "key", "user"], ...] = ("address", "key", "user")

LEVELS_MAX = 4
KEYS_MAX = 1_000  # of one tenant
LIMITED_MODELS_MAX = 100  # of one tenant
KEY_MODELS_MAX = 100  # names and patterns of one key
DYNAMIC_MAX = 100_000  # names that clients send; each costs some hundred bytes
PROXIES_MAX = 1_000
HOSTS_MAX = 1_000


class PricesSection(Section):
    """Token prices in a flow's account. At least one must be above 0."""

    prompt: values.Number = setting(1.0, "Per computed prompt token.", ge=0)
    cached_prompt: values.Number = setting(0.0, "Per cached prompt token.", ge=0)
    completion: values.Number = setting(2.0, "Per generated token.", ge=0)


class FairnessSection(Section):
    """How the flows of a band share the service."""

    policy: FairnessName = setting(
        "weighted_tokens", "By weight and tokens served; round robin by request; or first come, first served."
    )
    levels: Annotated[tuple[Literal["tenant", "user", "model"], ...], BeforeValidator(values.items(1, LEVELS_MAX))] = (
        setting(
            ("tenant",),
            "The levels of a flow, outermost first: `[tenant, user]` divides between tenants, then between the users "
            "of each.",
        )
    )
    prices: PricesSection = PricesSection()


class BandFairness(Section):
    """How the flows of a band share the service. Short form: `fairness: NAME`."""

    policy: FairnessNameOrEmpty = setting("", "Overrides `fairness.policy`.")


def band_fairness(value: object) -> object:
    """Returns the section for a policy's name; any other value unchanged."""
    return {"policy": value} if isinstance(value, str) else value


class OwnLimits(Section):
    """Limits of a key, or of a model within a tenant. Default: none."""

    running: values.OptionalWhole = setting(
        None, "Concurrent requests at the engines. Further ones wait in the queue.", ge=1
    )
    queued: values.OptionalWhole = setting(None, "Queued requests. More: 429.", ge=1)
    queued_bytes: values.OptionalSize = setting(None, "Bytes of its queued bodies. More: 429.", ge=1)
    queued_tokens: values.OptionalWhole = setting(
        None,
        "Estimated prompt tokens of its queued requests. More: 429. A single larger prompt is served only if it need "
        "not wait.",
        ge=1,
    )
    requests_per_minute: values.OptionalWhole = setting(
        None, "Requests per minute; the burst is one minute's worth. More: 429.", ge=1
    )
    tokens_per_minute: values.OptionalWhole = setting(
        None, "Prompt and completion tokens per minute, estimated on arrival, corrected by actual use. More: 429.", ge=1
    )
    tokens_per_day: values.OptionalWhole = setting(
        None,
        "The same per day: full at first and refilled evenly over 24 hours, so almost twice as much in the first 24. "
        "Under another limit what was spent stays spent, at most all of it. A restart takes what was spent from the "
        "ledger of use; without one it refills it.",
        ge=1,
    )


class AnonymousLimits(OwnLimits):
    """Limits of all clients without a tenant together. Default: none."""

    removed: ClassVar[dict[str, str]] = {
        "models": "a tenant named `anonymous` has such limits: `tenants: [{name: anonymous, limits: {models: …}}]`"
    }


class TenantLimits(AnonymousLimits):
    """Limits of a tenant. Default: none."""

    removed: ClassVar[dict[str, str]] = {}
    models: Annotated[dict[values.ModelName, OwnLimits], BeforeValidator(values.items(0, LIMITED_MODELS_MAX))] = (
        setting({}, "")
    )


class TenantKey(Section):
    """An API key and its restrictions. Short form without any: `keys: ["sha256:…"]`."""

    hash: values.KeyHash = Field(
        description=(
            "`sha256:` and 64 hexadecimal digits. `penstock keys new NAME` creates a key, `penstock keys hash` hashes "
            "one."
        )
    )
    name: values.KeyNameOrEmpty = setting(
        "", "Its name in `penstock keys ls`, and the user if a client names none. Default: its hash."
    )
    models: Annotated[tuple[values.ModelName, ...], BeforeValidator(values.items(1, KEY_MODELS_MAX))] = setting(
        (),
        "Models and aliases it may use, with `*` as wildcard. Others: 403, and `/v1/models` hides them. Default: all.",
    )
    max_prompt_tokens: values.OptionalWhole = setting(
        None, "The longest prompt by estimate, over all inputs of a request. Longer: 400.", ge=1
    )
    max_output_tokens: values.OptionalWhole = setting(
        None, "Tokens that a request may ask for, over all its answers, and the default. More: 400.", ge=1
    )
    expires: values.OptionalMoment = setting(
        None,
        "When it expires: `2027-01-31` (end of that day) or `2027-01-31T18:00:00Z`; UTC by default. Afterwards: 401.",
    )
    limits: OwnLimits = OwnLimits()


class Tenant(Section):
    """The tenants that share the engines. All other clients without a key have one share, `identity.anonymous`.

    A client without a key may name a tenant without keys, but none with keys. An entry named `anonymous` is another
    spelling of `identity.anonymous`, with its own `max_band`; one named `other` is the tenant of names beyond
    `identity.max_dynamic`. Neither can have keys.
    """

    name: values.TenantName = Field(description="Its name in headers and metrics.")
    weight: values.Weight = setting(1.0, "Its relative share of the service.")
    max_band: values.BandNameOrEmpty = setting("", "The highest band for its keys. Default: `identity.max_band`.")
    keys: Annotated[
        tuple[Annotated[TenantKey, BeforeValidator(values.key)], ...],
        BeforeValidator(values.items(0, KEYS_MAX)),
        BeforeValidator(values.key_hashes),
    ] = ()
    limits: TenantLimits = TenantLimits()


class Anonymous(Section):
    """The share of all clients without a key. Names they send are users within it."""

    weight: values.Weight = setting(1.0, "Its share, relative to tenants.")
    limits: AnonymousLimits = AnonymousLimits()


class Identity(Section):
    """How clients are identified."""

    require_key: values.Bool = setting(default=False, meaning="Refuse clients without a tenant's key.")
    made_keys: values.Bool = setting(
        default=False,
        meaning=(
            "Let operators issue and revoke keys at runtime (`penstock keys`), kept in `store`. "
            "Then every listed tenant requires a key."
        ),
    )
    tenant_header: values.HeaderName = setting(
        "x-tenant-id",
        "The header by which a client without a key names a tenant without keys, or itself within "
        "`identity.anonymous`. Fallbacks: `x-llm-d-inference-fairness-id`, `x-gateway-inference-fairness-id`. Given "
        "twice: refused.",
    )
    user_header: values.HeaderName = setting(
        "x-user-id",
        "The header that names the user within the tenant. Fallbacks: `x-openwebui-user-id`, the body's `user`, "
        "`safety_identifier`, `metadata.user_id`.",
    )
    band_header: values.HeaderName = setting(
        "x-penstock-band", "The header that asks for a band. Any client may lower its band."
    )
    max_band: values.BandNameOrEmpty = setting(
        "", "The highest band for clients without a key. Default: `default_band`."
    )
    max_dynamic: values.Whole = setting(
        1_000,
        "Unlisted names, and users per tenant, with their own flow. The rest share the flow `other`.",
        ge=1,
        le=DYNAMIC_MAX,
    )
    distinguish: Annotated[
        tuple[Literal["address", "key", "user"], ...], BeforeValidator(values.items(0, len(DISTINGUISH)))
    ] = setting(
        DISTINGUISH,
        "The properties that distinguish callers without a tenant, each with its own flow: address (IPv6: the first "
        "64 bits), the key they send to the engine, user. An address has one share, which its keys and users divide. "
        "`[]`: all are one caller.",
    )
    anonymous: Anonymous = Anonymous()
    jwt: JwtSection | None = setting(None, "")
    trusted_proxies: Annotated[tuple[values.Network, ...], BeforeValidator(values.items(0, PROXIES_MAX))] = setting(
        (),
        "Addresses or networks of proxies whose clients may name any tenant without a key, also one with keys; "
        "unlisted names become tenants. They never count as local: with a loopback address here, `/admin` needs a "
        "token on this machine, too (commands find a generated one in the state folder).",
    )
    allowed_hosts: Annotated[tuple[values.HostPattern, ...], BeforeValidator(values.items(0, HOSTS_MAX))] = setting(
        (),
        "Host names of the gateway, besides IP addresses and names without a dot; `*` for any. Others get 403 if this "
        "is set, or if it listens on a loopback address without `require_key`.",
    )
    allowed_origins: Annotated[tuple[values.Origin, ...], BeforeValidator(values.items(0, HOSTS_MAX))] = setting(
        (),
        "Origins of web pages that may use it, besides its own. Others get 403 if this is set, or if it listens on a "
        "loopback address without `require_key`.",
    )


class Accounting(Section):
    """How the tokens actually used become known."""

    usage: Literal["auto", "off"] = setting(
        "auto", "`auto` asks engines for the usage of streams and hides it from clients that did not ask."
    )
