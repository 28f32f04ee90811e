"""Verifies a token and reads its claims.

A token is held against its issuer's key once, which takes some 150 microseconds; from then on its digest is looked up,
until it expires or the keys change. Only signatures by public keys count, by the algorithms that the settings name:
which one a token claims to have never chooses more than among these, and a public key is never taken for a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jwt
import msgspec

from penstock import clock
from penstock.config.sections.tokens import JwtSection
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.caller import Claims, Unauthorized
from penstock.gateway.identity.name_quota import safe_name
from penstock.gateway.identity.tokens.issuer_keys import IssuerKey, IssuerKeys

TOKENS_MAX = 10_000  # good ones that are remembered, each a few hundred bytes
TOKEN_BYTES_MAX = 16_384
LEEWAY_S = 30.0  # that two clocks may be apart
LIST_MAX = 64  # of names in one claim
_RESERVED = ("anonymous", "other")  # reserved names of unknown clients

_NOT_GOOD = "The token was not accepted (invalid_api_key): {}."
_WORDS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidIssuerError, "another issuer made it"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.MissingRequiredClaimError, "it lacks `exp`, `iss` or `aud`"),
)
_CANT_TELL = "Tokens can't be verified now: the keys of their issuer can't be had. Please try again later."
_LOOKING = "The key that signed the token is not known yet; the issuer is being asked. Please try again."


class _Good(msgspec.Struct, frozen=True, gc=False):
    """A token that was good, for as long as nothing changes."""

    claims: Claims
    expires_at: float
    version: int  # of the keys


class Verifier:
    """Judges the tokens of one issuer."""

    def __init__(
        self,
        settings: JwtSection,
        keys: IssuerKeys,
        *,
        is_listed: Callable[[str], bool],
        wall: Callable[[], float] = clock.wall,
    ) -> None:
        self.keys = keys
        self._settings = settings
        self._is_listed = is_listed
        self._wall = wall
        self._good: BoundedMap[bytes, _Good] = BoundedMap(TOKENS_MAX)

    def judge(self, token: bytes, digest: bytes) -> Claims | Unauthorized:
        """Returns a token's claims, or a refusal. `digest`: the token's SHA-256."""
        keys = self.keys
        if not keys.usable:
            return Unauthorized(_CANT_TELL, Reason.IDENTITY_UNAVAILABLE)
        good = self._good.get(digest)
        if good is not None and good.version == keys.version and self._wall() < good.expires_at:
            return good.claims
        return self._verified(token, digest)

    def _verified(self, token: bytes, digest: bytes) -> Claims | Unauthorized:
        settings = self._settings
        if len(token) > TOKEN_BYTES_MAX:
            return _refused("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            return _refused("it can't be read")
        algorithm, name = header.get("alg"), header.get("kid")
        if algorithm not in settings.algorithms:
            return _refused("it is signed by an algorithm that does not count here")
        keys = self.keys.fitting(name, algorithm)
        decoded = (self._decoded(token, key, algorithm) for key in keys)
        said = next((found for found in decoded if found is not None), None)
        if said is None:
            if name is not None and keys and keys[0].name == name:
                return _refused("its signature is wrong")
            if self.keys.look_again():
                return Unauthorized(_LOOKING, Reason.IDENTITY_UNAVAILABLE)
            return _refused("its issuer has no such key")
        if isinstance(said, str):
            return _refused(said)
        claims = self._claims(said)
        if isinstance(claims, Claims):
            self._good.set(digest, _Good(claims, float(said["exp"]) + LEEWAY_S, self.keys.version))
        return claims

    def _decoded(self, token: bytes, key: IssuerKey, algorithm: str) -> dict[str, Any] | str | None:
        """Returns its claims; as text, its problem; None if it is not signed by this key."""
        settings = self._settings
        try:
            said: dict[str, Any] = jwt.decode(
                token,
                key=key.key,
                algorithms=[algorithm],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
            return None
        except jwt.PyJWTError as error:
            return next((words for kind, words in _WORDS if isinstance(error, kind)), "it can't be read")
        except (ValueError, TypeError, OverflowError, RecursionError):
            return "it can't be read"
        return said

    def _claims(self, said: Mapping[str, Any]) -> Claims | Unauthorized:
        settings = self._settings
        tenant = self._tenant(claim(said, settings.tenant_claim))
        if not tenant:
            message = f"The token names no tenant: the claim `{settings.tenant_claim}` is missing or empty."
            return Unauthorized(message, Reason.FORBIDDEN)
        user = claim(said, settings.user_claim)
        band = None if settings.band_claim is None else claim(said, settings.band_claim)
        return Claims(tenant, _name(user), _name(band))

    def _tenant(self, value: object) -> str:
        """Returns the tenant of a claim; of a list the first that the settings list, or the first."""
        names = [_name(one) for one in (value[:LIST_MAX] if isinstance(value, list) else [value])]
        named = [name for name in names if name and name not in _RESERVED]
        return next(filter(self._is_listed, named), named[0] if named else "")


def claim(said: Mapping[str, Any], path: str) -> object:
    """Returns a claim by its name, or by its name as a dotted path, or None."""
    if path in said:
        return said[path]
    found: object = said
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _name(value: object) -> str:
    return safe_name(value) if isinstance(value, str) else ""


def _refused(why: str) -> Unauthorized:
    return Unauthorized(_NOT_GOOD.format(why))
