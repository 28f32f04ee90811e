"""Keys that are known no more: whose were they? So a refusal can say "a key of tenant X, revoked 2 h ago".

A refused key is looked for here after it was found nowhere else, so good keys pay nothing. Only hashes are kept, and
callers get the same answer as with any unknown key. Bounded, and each process knows what ended since it began; keys
that expired are not here, because they stay known until they are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.config import values
from penstock.core.util.bounded_map import BoundedMap
from penstock.gateway.identity.caller import FormerKey, Key

FORMER_MAX: Final = 4_096  # half of them at least: those that ended last


class FormerKeys:
    """Those that ended last."""

    def __init__(self) -> None:
        self._keys: BoundedMap[bytes, FormerKey] = BoundedMap(FORMER_MAX)

    def look(self, before: Mapping[bytes, Key], keys: Mapping[bytes, Key], wall_s: float) -> None:
        """Note the keys that were known `before` and are not among `keys`. `wall_s`: now, as Unix time."""
        for digest in keys.keys() - before.keys():
            self._keys.pop(digest)
        for digest in before.keys() - keys.keys():
            self._keys.set(digest, FormerKey(before[digest], f"revoked {values.write_moment(wall_s)}"))

    def get(self, digest: bytes) -> FormerKey | None:
        """Returns the former key with this digest; None: there was none, or so many since."""
        return self._keys.get(digest)
