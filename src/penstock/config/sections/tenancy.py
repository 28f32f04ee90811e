"""Tenancy: who are the callers, what may each have, and how is service divided between them?"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.config import values
from penstock.config.sections.policies import FairnessName, FairnessNameOrEmpty
from penstock.config.sections.section import Section, setting
from penstock.config.sections.tokens import JwtSection

ANONYMOUS, OTHER = "anonymous", "other"  # callers without a name; callers whose names are too many
NAMES_WITHOUT_KEYS = (ANONYMOUS, OTHER)

LEVELS_MAX = 4
KEYS_MAX = 1_000  # of one tenant
KEY_MODELS_MAX = 100  # names and patterns of one key
DYNAMIC_MAX = 100_000  # names that callers bring; each costs some hundred bytes
PROXIES_MAX = 1_000
HOSTS_MAX = 1_000


class PricesSection(Section):
    """What a token costs in the account of its flow, by kind. At least one kind has to cost something."""

    prompt: values.Number = setting(1.0, "A prompt token that the engine has to compute.", ge=0)
    cached_prompt: values.Number = setting(0.0, "A prompt token that was in the engine's prefix cache.", ge=0)
    completion: values.Number = setting(2.0, "A generated token.", ge=0)


class FairnessSection(Section):
    """How service is divided between the flows of one band."""

    policy: FairnessName = setting(
        "weighted_tokens",
        "By weight and tokens served; in turn, request by request; or not at all: first come, first served.",
    )
    levels: Annotated[tuple[Literal["tenant", "user", "model"], ...], BeforeValidator(values.items(1, LEVELS_MAX))] = (
        setting(
            ("tenant",),
            "What a flow is, from the outside in: `[tenant, user]` divides between tenants first, then between the "
            "users of each. Every level once.",
        )
    )
    prices: PricesSection = PricesSection()


class BandFairness(Section):
    """How service is divided between the flows of one band. `fairness: NAME` says it in short."""

    policy: FairnessNameOrEmpty = setting("", "Instead of `fairness.policy`, for this band.")


def band_fairness(value: object) -> object:
    """Returns the section that a policy's name alone stands for; anything else as it is."""
    return {"policy": value} if isinstance(value, str) else value


class TenantLimits(Section):
    """What a tenant may have at most. Nothing given: no limit of its own."""

    running: values.OptionalWhole = setting(
        None, "Requests at the engines at a time. More of them wait in the queue.", ge=1
    )
    queued: values.OptionalWhole = setting(None, "Requests in the queue. More are refused with 429.", ge=1)
    queued_bytes: values.OptionalSize = setting(
        None, "Bytes that the bodies of its waiting requests may hold. More are refused with 429.", ge=1
    )
    queued_tokens: values.OptionalWhole = setting(
        None,
        "Prompt tokens of its waiting requests, by our estimate. More are refused with 429. One prompt that is larger "
        "than this can be sent at once, but not wait.",
        ge=1,
    )
    requests_per_minute: values.OptionalWhole = setting(
        None, "Requests per minute, of which a minute's worth may come at once. More are refused with 429.", ge=1
    )
    tokens_per_minute: values.OptionalWhole = setting(
        None,
        "Prompt and completion tokens per minute: estimated on arrival, corrected by what was used. More are "
        "refused with 429.",
        ge=1,
    )
    tokens_per_day: values.OptionalWhole = setting(
        None,
        "The same per day: a day's worth may come at once, and it comes back evenly over 24 hours. What is left is "
        "kept in memory: a restart begins with a whole day's worth.",
        ge=1,
    )


class TenantKey(Section):
    """One API key of a tenant, and what it may do. `keys: ["sha256:…"]` says it in short, of a key that may do all
    that its tenant may.
    """

    hash: values.KeyHash = Field(
        description="The key's hash: `sha256:` and 64 hexadecimal digits. `penstock keys new NAME` makes a key, "
        "`penstock keys hash` tells the hash of one.",
    )
    name: values.KeyNameOrEmpty = setting(
        "", "What people call it, in `penstock keys ls` and as the user where a caller names none. Default: its hash."
    )
    models: Annotated[tuple[values.ModelName, ...], BeforeValidator(values.items(1, KEY_MODELS_MAX))] = setting(
        (),
        "The models that it may use, as callers name them, aliases too; `*` stands for anything. Others get 403, and "
        "`/v1/models` lists these only. Default: all.",
    )
    max_prompt_tokens: values.OptionalWhole = setting(
        None, "The longest prompt, all inputs of a request together, as the gateway estimates it. Longer: 400.", ge=1
    )
    max_output_tokens: values.OptionalWhole = setting(
        None,
        "The longest answer that may be asked for. More: 400. A request that says nothing of it is sent with this.",
        ge=1,
    )
    expires: values.OptionalMoment = setting(
        None,
        "When it ends: `2027-01-31` (the end of that day) or `2027-01-31T18:00:00Z`; UTC where no zone is given. "
        "After it, 401.",
    )


class Tenant(Section):
    """The tenants that share the engines. All callers without a key that are none of these have one share,
    `identity.anonymous`.

    Every caller may name a tenant without keys; a caller without a key cannot claim one that has some. An entry named
    `anonymous` is another way to write `identity.anonymous`, with a `max_band` of its own; one named `other` makes a
    tenant of the names beyond `identity.max_dynamic`. Neither can have keys.
    """

    name: values.TenantName = Field(description="As callers without a key name it, and as metrics show it.")
    weight: values.Weight = setting(1.0, "Its part of the service, compared with other tenants.")
    max_band: values.BandNameOrEmpty = setting(
        "", "The highest band that its keys may ask for. Default: `identity.max_band`."
    )
    keys: Annotated[
        tuple[Annotated[TenantKey, BeforeValidator(values.key)], ...],
        BeforeValidator(values.items(0, KEYS_MAX)),
        BeforeValidator(values.key_hashes),
    ] = ()
    limits: TenantLimits = TenantLimits()


class Anonymous(Section):
    """The part that all callers without a key share, whatever names they give. Those names are users inside it."""

    weight: values.Weight = setting(1.0, "Its part of the service, compared with tenants.")
    limits: TenantLimits = TenantLimits()


class Identity(Section):
    """How a caller is identified."""

    require_key: values.Bool = setting(default=False, meaning="Refuse callers without a key of a tenant.")
    made_keys: values.Bool = setting(
        default=False,
        meaning="Let operators make and withdraw keys while it runs (`penstock keys`). They are kept where "
        "`batch.data` or `batch.url` says. Then no listed tenant can be claimed without a key, whether it has one or "
        "not.",
    )
    tenant_header: values.HeaderName = setting(
        "x-tenant-id",
        "The header that names a caller without a key: one of `tenants` that has no keys, or a user of the part that "
        "all without a key share (`identity.anonymous`). After it, `x-llm-d-inference-fairness-id` and "
        "`x-gateway-inference-fairness-id` are understood. Given twice, it is refused.",
    )
    user_header: values.HeaderName = setting(
        "x-user-id",
        "The header that names the user within the tenant. After it, `x-openwebui-user-id` and the body's `user` "
        "are understood.",
    )
    band_header: values.HeaderName = setting(
        "x-penstock-band", "The header that asks for a band. Any caller may lower its band with it."
    )
    max_band: values.BandNameOrEmpty = setting(
        "", "The highest band that a caller without a key may ask for. Default: `default_band`."
    )
    max_dynamic: values.Whole = setting(
        1_000,
        "How many names that are not listed, and how many users of one tenant, have flows of their own at a "
        "time. The rest share the flow `other`.",
        ge=1,
        le=DYNAMIC_MAX,
    )
    anonymous: Anonymous = Anonymous()
    jwt: JwtSection | None = setting(None, "")
    trusted_proxies: Annotated[tuple[values.Network, ...], BeforeValidator(values.items(0, PROXIES_MAX))] = setting(
        (),
        "Addresses or networks of proxies. Their callers without a key may name any tenant, also one that has keys; "
        "names that are not listed are tenants of their own. They are never this machine, wherever they run.",
    )
    allowed_hosts: Annotated[tuple[values.HostPattern, ...], BeforeValidator(values.items(0, HOSTS_MAX))] = setting(
        (),
        "Names under which callers may reach the gateway, besides IP addresses and names without a dot; `*` for any. "
        "Others get 403 where it listens on a loopback address without `require_key`, or where this is set.",
    )
    allowed_origins: Annotated[tuple[values.Origin, ...], BeforeValidator(values.items(0, HOSTS_MAX))] = setting(
        (),
        "Origins whose web pages may use it, besides its own. Others get 403 where it listens on a loopback address "
        "without `require_key`, or where this is set.",
    )


class Accounting(Section):
    """How the tokens that were truly used become known."""

    usage: Literal["auto", "off"] = setting(
        "auto", "`auto` asks engines for the usage of streamed answers and hides it from callers that did not ask."
    )
