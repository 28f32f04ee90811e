"""Telling callers without a tenant apart, so that one client's flood does not hold up all others.

A caller that brings no key of ours and names no tenant still has an address, and maybe an API key meant for the engine,
and a user. These make its name (`identity.distinguish`): the address comes first, because it is the only part that a
client cannot invent. An address has the share of one caller, divided equally among the names recently seen there, so a
client that sends a new key or user with each request divides its own share only. Keys appear as the beginning of their
hash. All names are flows of the same level, so each of them may use slots reserved for flows under their share.

Each process counts for itself: over W workers an address that spreads invented names over connections has at most W
shares.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable
from typing import Final

from penstock.config.model import Settings
from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.util.bounded_map import BoundedMap
from penstock.gateway.identity.name_quota import NameQuota

PREFIX: Final = "client:"  # a name in a header that begins so counts as none: nobody joins another client's flow
NAMES_MAX: Final = 64  # of one address; the rest share a name. More divide a share into crumbs
ADDRESSES_MAX: Final = 2048  # remembered; each costs up to 13 KB, with all its names
LATELY_S: Final = 60.0  # names that divide an address's share now: longer than most waits
_NETWORK_BITS: Final = 64  # of IPv6: one subscriber has them all
_HASH_CHARACTERS: Final = 12


class UnnamedCallers:
    """Names callers without a tenant, by the settings."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed  # called when an address's share is divided by another number
        self.seen = NameQuota(1)  #: the names of all; they take no room from those that callers give
        self._names: BoundedMap[str, NameQuota] = BoundedMap(ADDRESSES_MAX)  # by place
        self._places: BoundedMap[str, str] = BoundedMap(ADDRESSES_MAX)  # by address

    def follow(self, settings: Settings) -> None:
        by = settings.identity.distinguish
        self.seen.limit = settings.identity.max_dynamic
        self._by_address, self._by_key = "address" in by, "key" in by
        self._by_user = "user" in by and "user" not in settings.fairness.levels  # there it is a level of its own

    def name(self, address: str, key: bytes, user: str, now: float) -> tuple[str, float]:
        """Returns a caller's name, and its weight among callers without a tenant.

        `key`: the credential that it presents, b"" for none. `user`: "" for none. Without a distinction it is
        `anonymous`, and so are those that come when there are too many.
        """
        place = self._place(address) if self._by_address else ""
        more = f"+key:{hashlib.sha256(key).hexdigest()[:_HASH_CHARACTERS]}" if self._by_key and key else ""
        if self._by_user and user:
            more += f"+user:{user}"
        if not place and not more:
            return ANONYMOUS, 1.0
        names = self._names.renewed_or(place, _quota)
        if not names.admit(more, now):
            more = "+other"
        name = f"{PREFIX}{place}{more}"
        if not self.seen.admit(name, now):
            return ANONYMOUS, 1.0
        before, lately = names.counted, names.lately(now, LATELY_S)
        if before not in (0, lately):
            self._changed()
        return name, 1.0 / max(1, lately)

    def _place(self, address: str) -> str:
        """The network that one client has to itself."""
        place = self._places.renewed(address)
        if place is None:
            place = _place(address)
            self._places.set(address, place)
        return place


def told_apart(settings: Settings) -> str:
    """Returns the properties that distinguish callers, for the log."""
    identity = settings.identity
    has_keys = identity.jwt is not None or identity.made_keys or any(tenant.keys for tenant in settings.tenants)
    named = ["its key"] if has_keys or identity.require_key else []
    if not identity.require_key:
        named.append(f"the header {identity.tenant_header}")
        named.append(" + ".join(identity.distinguish) or "nothing else")
    users = " and user" if "user" in settings.fairness.levels else ""
    return f"callers take turns by tenant{users}; a caller's tenant is found by {', otherwise '.join(named)}"


def _quota() -> NameQuota:
    return NameQuota(NAMES_MAX)


def _place(address: str) -> str:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is not None:
            return str(known.ipv4_mapped)
        if not known.is_loopback:
            return str(ipaddress.ip_network((known, _NETWORK_BITS), strict=False))
    return str(known)
