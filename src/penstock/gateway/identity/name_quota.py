"""Names from outside: their form and number.

A client may send any bytes as its tenant or user. They become short and printable, for logs, labels and pages;
different names stay different, because a changed one carries a hash of the original. Only a limited number of names
have their own flow; the rest share one, so inventing a name per request gains nothing and costs nothing.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

NAME_CHARACTERS_MAX: Final = 128  # as in the settings
_READ_CHARACTERS_MAX: Final = 65_536  # a field of the body may be as long as the body; its hash shall not take long
_KEPT_CHARACTERS: Final = 64
_NOT_UTF8: Final = "\ufffd"
_HASH_CHARACTERS: Final = 16  # 64 bits: collisions cannot be found
RECOUNT_S: Final = 1.0  # the count of a minute's names changes little in it
IDLE_S: Final = 600.0  # longer than any request's wait, so a name keeps its flow while it has requests under way


def safe_name(value: bytes | str | None) -> str:
    """A header's or a field's value as a name; empty for none. `str.isprintable` rejects direction marks too."""
    if not value:
        return ""
    if isinstance(value, str):
        value = value[:_READ_CHARACTERS_MAX].strip().encode("utf-8", "surrogatepass")
    raw = value.strip()
    name = raw.decode("utf-8", "replace")
    if len(name) <= NAME_CHARACTERS_MAX and name.isprintable() and _NOT_UTF8 not in name:
        return name
    shown = [c for c in name[: 4 * _KEPT_CHARACTERS] if c.isprintable() and c != _NOT_UTF8]
    kept = "".join(shown[:_KEPT_CHARACTERS]).strip()
    return f"{kept}~{hashlib.sha256(raw).hexdigest()[:_HASH_CHARACTERS]}"


class NameQuotas:
    """Names that are not listed: those that trusted proxies give, and all others. Neither takes the other's room."""

    def __init__(self, limit: int) -> None:
        self.trusted = NameQuota(limit)
        self.untrusted = NameQuota(limit)

    def __len__(self) -> int:
        return len(self.trusted) + len(self.untrusted)

    @property
    def limit(self) -> int:
        return self.untrusted.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self.trusted.limit = self.untrusted.limit = limit


class NameQuota:
    """Up to `limit` names, first come first served; one not seen for `IDLE_S` makes room."""

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self.limit = limit  #: may change; present names stay until idle
        self._recount_s = 0.0  # when `lately` counts again,
        self._counted_of = -1  # of so many names
        self.counted = 0  #: what `lately` returned last
        self._seen_s: OrderedDict[Hashable, float] = OrderedDict()  # the one not seen for longest comes first

    def __len__(self) -> int:
        return len(self._seen_s)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._seen_s

    def lately(self, now: float, within_s: float) -> int:
        """Returns how many names were seen within the last seconds; up to a second ago, unless there are others."""
        if now >= self._recount_s or len(self._seen_s) != self._counted_of:
            self._recount_s, self._counted_of, self.counted = now + RECOUNT_S, len(self._seen_s), 0
            for seen_s in reversed(self._seen_s.values()):
                if now - seen_s > within_s:
                    break
                self.counted += 1
        return self.counted

    def admit(self, name: Hashable, now: float) -> bool:
        """Does the name count as itself?"""
        seen = self._seen_s
        if name not in seen and len(seen) >= self.limit:
            idlest = next(iter(seen))
            if now - seen[idlest] < IDLE_S:
                return False
            del seen[idlest]
        seen[name] = now
        seen.move_to_end(name)
        return True
