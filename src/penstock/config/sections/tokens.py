"""Tokens: which tokens of an identity provider (OIDC) are keys here, and what do they say of their callers?"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.problems import Refused
from penstock.config.sections.section import Section, setting

AUDIENCES_MAX = 16
URL_CHARACTERS_MAX = 2_048
LEEWAY_S_MAX = 600.0
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # by public keys alone: a shared secret would let whoever verifies tokens make them


def web_address(value: object) -> str:
    """Returns an http(s) URL exactly as it is written: issuers are compared letter by letter."""
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
    """Returns the list that a single name stands for; anything else as it is."""
    return [value] if isinstance(value, str) else value


class JwtSection(Section):
    """Tokens (JWT) of an OIDC issuer as keys, beside those of `tenants[].keys`. Needs the extra `jwt`."""

    issuer: Annotated[str, BeforeValidator(web_address), values.ValueKind("URL")] = setting(
        ..., "Who signs them: exactly the claim `iss`."
    )
    audience: Annotated[
        tuple[values.ClaimName, ...],
        BeforeValidator(values.items(1, AUDIENCES_MAX)),
        BeforeValidator(one_or_more),
        values.ValueKind("name, or a list of names"),
    ] = setting(..., "Whom they are for: one of these has to be in the claim `aud`.")
    jwks_url: Annotated[str | None, BeforeValidator(values.optional(web_address)), values.ValueKind("URL")] = setting(
        None, "Where the issuer's keys are. Default: what its `/.well-known/openid-configuration` says."
    )
    algorithms: Annotated[tuple[Algorithm, ...], BeforeValidator(values.items(1, 10))] = setting(
        ("RS256", "ES256"),
        "How they may be signed. Only by public keys: neither `none` nor a shared secret can be set.",
    )
    tenant_claim: values.ClaimName = setting(
        "sub",
        "The claim that names the tenant, such as `azp`, or with dots inside another: `org.team`. Of a list, the first "
        "that is one of `tenants`, else the first. One that is not in `tenants` is a tenant of its own.",
    )
    user_claim: values.ClaimName = setting(
        "sub", "The claim that names the user. Where a token has it, its caller can name no other."
    )
    band_claim: values.OptionalClaimName = setting(
        None,
        "The claim that names the band. Its requests have that band without asking and may ask for a lower one; the "
        "tenant's `max_band` holds all the same.",
    )
    leeway: values.Duration = setting(30.0, "How far clocks may be apart.", ge=0, le=LEEWAY_S_MAX)
    max_stale: values.Duration = setting(
        86_400.0,
        "How long keys that were fetched count while the issuer can't be reached. After it, 503 "
        "`identity_unavailable`. They are fetched every five minutes, or three times in this.",
        gt=0,
    )


def tokens_problem() -> str | None:
    """Returns what is missing for tokens; None if nothing is."""
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        return "tokens need PyJWT with `cryptography`"
    return None
