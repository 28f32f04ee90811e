"""The client's address behind proxies.

A load balancer sends it once per connection (`http/server/proxy_header.py`); an HTTP proxy appends the address it sees
to a header of each request. The beginning of that header may be the client's own invention. So it is read from the end,
as far as proxies that are believed have written it: the client is the last address that is none of theirs. An
unreadable address ends the search at the nearest certain one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Protocol

from penstock.config.model import Settings
from penstock.gateway.identity.origins import within
from penstock.http.server.exchange import Header

HOPS_MAX = 32  # from the end: more proxies are implausible, and each costs a microsecond
PEERS_MAX = 4096  # remembered verdicts; cleared as a whole when full
_FOR = re.compile(r"(?:^|;)\s*for\s*=\s*(\"[^\"\\]*\"|[^\s;\"]+)\s*(?:;|$)", re.IGNORECASE)
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d{1,5})?|([0-9.]+)(?::\d{1,5})?")


class Came(Protocol):
    """The relevant part of a request."""

    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def headers(self) -> list[Header]: ...


class Networks:
    """Some networks, and whether an address is in one of them."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._known: dict[str, bool] = {}

    def hold(self, address: str) -> bool:
        if not self._networks:
            return False
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= PEERS_MAX:
                self._known.clear()
            known = self._known[address] = within(address, self._networks)
        return known


class Clients:
    """Finds clients' addresses by the settings."""

    def follow(self, settings: Settings) -> None:
        its = settings.client_address
        self._proxies = Networks(its.proxies)
        self.looks = bool(its.proxies)  #: whether anybody's header is believed
        self._header = its.header.encode()

    def address(self, exchange: Came) -> str:
        """The client's, as far as it is certain."""
        nearest = exchange.peer[0]
        if not self._proxies.hold(nearest):
            return nearest
        given = b",".join([value for name, value in exchange.headers if name.lower() == self._header])
        for element in reversed(given.rsplit(b",", HOPS_MAX)[-HOPS_MAX:]):
            text = element.decode("latin-1").strip()
            if self._header == b"forwarded":
                found = _FOR.search(text)
                text = "" if found is None else found[1].strip('"')
            address = _address(text)
            if address is None:
                break
            nearest = address
            if not self._proxies.hold(nearest):
                break
        return nearest


def _address(text: str) -> str | None:
    """Returns an IP address as written by proxies, maybe with a port, or None."""
    bare = _WITH_PORT.fullmatch(text)
    try:
        address = ipaddress.ip_address(text if bare is None else bare[1] or bare[2])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else str(address.ipv4_mapped or address)
    return str(address)
