"""Which tokens are accepted now, by the settings? Without `identity.jwt` none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config.sections.tokens import JwtSection
from penstock.gateway.identity.caller import Claims, Unauthorized

if TYPE_CHECKING:
    from penstock.gateway.identity.tokens.verifier import Verifier  # needs an extra

_BEGINS = b"eyJ"  # `{"` in base64: no other key begins like this and has two dots


class AcceptedTokens:
    """The verifier of the issuer that the settings name, if they name one."""

    def __init__(self) -> None:
        self._verifier: Verifier | None = None
        self._started = False

    def follow(self, settings: JwtSection | None, is_listed: Callable[[str], bool]) -> None:
        """Accept tokens by these settings from now on. The keys of the same issuer stay known.

        `is_listed`: whether a tenant is one of the settings'.
        """
        before, self._verifier = self._verifier, None
        if settings is not None:
            # Only here: the library is an extra.
            from penstock.gateway.identity.tokens.issuer_keys import IssuerKeys  # noqa: PLC0415
            from penstock.gateway.identity.tokens.verifier import Verifier  # noqa: PLC0415

            kept = before is not None and before.keys.are_of(settings)
            keys = before.keys if before is not None and kept else IssuerKeys(settings)
            keys.settings = settings
            self._verifier = Verifier(settings, keys, is_listed=is_listed)
            if self._started:
                keys.start()
        if before is not None and (self._verifier is None or self._verifier.keys is not before.keys):
            before.keys.close()

    async def start(self) -> None:
        """Fetch the issuer's keys from now on, and wait a moment for the first ones."""
        self._started = True
        if self._verifier is not None:
            self._verifier.keys.start()
            await self._verifier.keys.first()

    def close(self) -> None:
        self._started = False
        if self._verifier is not None:
            self._verifier.keys.close()

    def judge(self, presented: bytes) -> Claims | Unauthorized | None:
        """Returns a token's claims, or a refusal; None if it is not a token, or tokens are off."""
        if self._verifier is None or not presented.startswith(_BEGINS) or presented.count(b".") != 2:
            return None
        return self._verifier.judge(presented, hashlib.sha256(presented).digest())
