"""Which web pages may use a gateway that anybody on its machine may use, and under which names?

Any page in a browser can reach a loopback address. A page of another site can send requests (recognised by `Origin`),
and a page under a name that resolves to loopback is same-site to the browser (DNS rebinding; recognised by `Host`). If
each request needs a key or token, neither gains anything. So names are checked on loopback without `require_key`, and
elsewhere if the settings list some. Nobody else controls how an address, or a name without a dot, resolves.

*This machine*: requests over loopback or a unix socket, by one of its names, from no page of another site, and not
through a proxy, because its clients may be anywhere. No browser connects to a unix socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from penstock.config.address import UNIX
from penstock.config.model import Settings
from penstock.config.sections.clients import ANY_ORIGIN

PROXY_HEADERS = (  # headers that proxies add
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-forwarded-server",
    b"x-real-ip",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"x-original-forwarded-for",
    b"x-envoy-external-address",
    b"true-client-ip",
    b"cf-connecting-ip",
    b"fly-client-ip",
)
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})
NAMES_MAX = 256  # verdicts on `Host` kept; cleared as a whole when full
_OTHER_SITES = (b"cross-site", b"same-site")
_FOREIGN_HOST = "This gateway is not served under the name `{}`: `identity.allowed_hosts` lists the names it has."
_FOREIGN_PAGE = "Pages of other sites may not use this gateway: `identity.allowed_origins` lists those that may."


class Head(Protocol):
    """The relevant part of a request."""

    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def brought(self) -> bool: ...
    @property
    def client(self) -> str: ...
    @property
    def lookup(self) -> Mapping[bytes, bytes]: ...  # lower-case name to first value


class Origins:
    """Judges requests by `Host`, `Origin` and source address."""

    def __init__(self, *, listens_on: str, for_operators: bool = False) -> None:
        self._is_local = is_loopback(listens_on)
        self._pages_reach = self._is_local and not listens_on.startswith(UNIX)
        self._for_operators = for_operators  # pages that may call the API (`cors`) may still not see these

    def follow(self, settings: Settings) -> None:
        identity = settings.identity
        self._hosts = frozenset(identity.allowed_hosts)
        cors = frozenset(() if self._for_operators else settings.cors.origins)
        self._origins = frozenset(identity.allowed_origins) | cors
        self._any_origin = ANY_ORIGIN in cors
        self._proxies = [ipaddress.ip_network(network) for network in identity.trusted_proxies]
        self.looks = (self._pages_reach and not identity.require_key) or bool(self._hosts or identity.allowed_origins)
        self._known: dict[bytes, bool] = {}

    def foreign_name(self, head: Head) -> str | None:
        """Returns why a request without a key or token is refused for its host name, or None."""
        host = head.lookup.get(b"host")
        if host is None:
            return None
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= NAMES_MAX:
                self._known.clear()
            known = self._known[host] = "*" in self._hosts or self._is_own(host.decode("latin-1"))
        if known:
            return None
        return _FOREIGN_HOST.format("".join(c for c in host.decode("latin-1")[:200] if c.isprintable()))

    def foreign(self, head: Head) -> str | None:
        """Why it is not, by its name or by the page it comes from."""
        foreign = self.foreign_name(head)
        if foreign is not None:
            return foreign
        origin = head.lookup.get(b"origin")
        if origin is None:
            navigates = head.lookup.get(b"sec-fetch-mode") == b"navigate"  # a link that somebody followed
            strange = head.lookup.get(b"sec-fetch-site") in _OTHER_SITES and not navigates
        else:
            strange = not self._may_use(origin.decode("latin-1").lower(), head.lookup.get(b"host"))
        return _FOREIGN_PAGE if strange else None

    def is_this_machine(self, head: Head) -> bool:
        """Whether a request comes from the machine that the gateway runs on, and shall be known to."""
        peer = head.peer[0]
        return (
            self._is_local
            and not head.brought
            and is_loopback(peer)
            and not self.is_proxy(head)
            and head.lookup.keys().isdisjoint(PROXY_HEADERS)
        )

    def is_proxy(self, head: Head) -> bool:
        """Whether a request comes from one of `identity.trusted_proxies`, which names callers and is none itself."""
        return within(head.peer[0], self._proxies)

    def _is_own(self, host: str) -> bool:
        name = _name_of(host)
        if name is None:
            return False
        return name in self._hosts or not is_public_name(name)

    def _may_use(self, origin: str, host: bytes | None) -> bool:
        if self._any_origin or origin in self._origins:
            return True
        own = (host or b"").decode("latin-1").lower()
        return bool(own) and origin.partition("://")[2] == own


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach an address. Empty (every interface) can be reached by others."""
    if not host:
        return False
    if host.startswith(UNIX) or host.lower().rstrip(".") in LOCAL_NAMES:
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_public_name(name: str) -> bool:
    """Whether a name could be owned by others: it has dots, and is not an address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." in name.rstrip(".") and name.rstrip(".") not in LOCAL_NAMES and not name.endswith(".localhost")
    return False


def within(peer: str, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    if not networks:
        return False
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def _name_of(host: str) -> str | None:
    """Returns the name in a `Host` header, in lower case, or None."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 (it raises where it is none)
    except ValueError:
        return None
    return None if parts.username is not None else parts.hostname or ""
