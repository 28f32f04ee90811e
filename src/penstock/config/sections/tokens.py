"""Tokens of an identity provider (OIDC) as keys, and their claims."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.problems import Refused
from penstock.config.sections.section import Section, setting

AUDIENCES_MAX = 16
URL_CHARACTERS_MAX = 2_048
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # public keys only: with a shared secret, every verifier could issue tokens


def web_address(value: object) -> str:
    """Returns an http(s) URL unchanged, because issuers are compared exactly."""
    if not isinstance(value, str) or len(value) > URL_CHARACTERS_MAX or not value.isascii() or not value.isprintable():
        raise Refused("expected an http(s) URL")
    try:
        parts = urlsplit(value)
        plain = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.fragment and parts.port != 0
    except ValueError:
        plain = False
    if not plain or "@" in value or " " in value:
        raise Refused("expected an http(s) URL, without credentials")
    return value


def one_or_more(value: object) -> object:
    """Returns a list for a single name; any other value unchanged."""
    return [value] if isinstance(value, str) else value


class JwtSection(Section):
    """JWTs of an OIDC issuer as keys, besides `tenants[].keys` (extra `jwt`)."""

    removed: ClassVar[dict[str, str]] = {
        "leeway": "delete it: clocks may be 30 s apart",
        "max_stale": "delete it: fetched keys are valid for a day while the issuer is unreachable",
    }

    issuer: Annotated[str, BeforeValidator(web_address), values.ValueKind("URL")] = setting(
        ..., "The issuer: exactly the claim `iss`."
    )
    audience: Annotated[
        tuple[values.ClaimName, ...],
        BeforeValidator(values.items(1, AUDIENCES_MAX)),
        BeforeValidator(one_or_more),
        values.ValueKind("name, or a list of names"),
    ] = setting(..., "The audience: the claim `aud` must contain one of these.")
    jwks_url: Annotated[str | None, BeforeValidator(values.optional(web_address)), values.ValueKind("URL")] = setting(
        None, "The issuer's keys. Default: from its `/.well-known/openid-configuration`."
    )
    algorithms: Annotated[tuple[Algorithm, ...], BeforeValidator(values.items(1, 10))] = setting(
        ("RS256", "ES256"), "Accepted signatures, by public keys only."
    )
    tenant_claim: values.ClaimName = setting(
        "sub",
        "The claim that names the tenant, such as `azp`, or nested: `org.team`. In a list, the first that is one of "
        "`tenants` wins, or the first. An unlisted one is a new tenant.",
    )
    user_claim: values.ClaimName = setting(
        "sub", "The claim that names the user. If a token has it, the client cannot name another."
    )
    band_claim: values.OptionalClaimName = setting(
        None, "The claim that names the band, up to the tenant's `max_band`. Requests may ask for a lower one."
    )
