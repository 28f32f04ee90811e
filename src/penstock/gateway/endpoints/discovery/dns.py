"""DNS: which addresses does a name have now?

The name is looked up regularly: as soon as the answer's TTL is over, if the name server reports one. A look-up that
fails, or finds nothing, changes nothing: a service without a ready pod has no name, and its engines are about to come
back. An address counts as gone when two answers in a row lack it, because servers leave some addresses out of a long
answer.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from penstock.config.address import split_listen
from penstock.config.model import EndpointSection
from penstock.config.sections.discovery import Dns
from penstock.gateway.endpoints.discovery.base import Found, SourceError, described

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

TIMEOUT_S = 5.0
REFRESH_S_MIN = 1.0  # between two look-ups, for any TTL
MISSES_MAX = 2  # an address that this many answers in a row lack is gone
ADDRESSES_MAX = 4_096

Places = dict[tuple[str, int], None]


class DnsSource:
    """The endpoints behind one DNS name."""

    def __init__(self, settings: Dns) -> None:
        self.name = f"dns {settings.name}" + (f":{settings.port}" if settings.port else "")
        self._settings = settings
        self._missing: dict[tuple[str, int], int] = {}  # each address known, and how many of the last answers lacked it
        self._resolver = _resolver(settings.resolver) if settings.resolver or settings.type == "srv" else None

    async def watch(self, found: Found) -> None:
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    places, keep_s = await self._look_up()
            except TimeoutError:
                raise SourceError(f"no answer within {TIMEOUT_S:g} s") from None
            found(self._take_in(places))
            await asyncio.sleep(max(REFRESH_S_MIN, min(self._settings.refresh, keep_s)))

    def _take_in(self, places: Places) -> list[EndpointSection]:
        missing = {place: count + 1 for place, count in self._missing.items() if place not in places}
        kept = {place: count for place, count in missing.items() if count < MISSES_MAX}
        self._missing = dict.fromkeys(places, 0) | kept
        endpoints = (described(self._settings, host, port) for host, port in sorted(self._missing)[:ADDRESSES_MAX])
        return [endpoint for endpoint in endpoints if endpoint is not None]

    async def _look_up(self) -> tuple[Places, float]:
        """Returns the addresses of the name now, and for how many seconds they may be kept. Raises SourceError."""
        if self._resolver is None:
            return await self._ask_system(), self._settings.refresh
        if self._settings.type == "srv":
            return await _services(self._resolver, self._settings.name)
        assert self._settings.port is not None
        hosts, keep_s = await _addresses(self._resolver, self._settings.name)
        return {(host, self._settings.port): None for host in hosts}, keep_s

    async def _ask_system(self) -> Places:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(self._settings.name, self._settings.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SourceError(f"cannot be looked up: {getattr(error, 'strerror', None) or error}") from None
        return {(str(address[0]), int(address[1])): None for *_, address in answers if "%" not in str(address[0])}


def _resolver(address: str | None) -> Resolver:
    import dns.asyncresolver  # noqa: PLC0415 - an extra; the settings are checked for it

    if address is None:
        return dns.asyncresolver.Resolver()
    host, port = split_listen(address)
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [host]
    resolver.port = port
    return resolver


async def _addresses(resolver: Resolver, name: str) -> tuple[dict[str, None], float]:
    """Look up A and AAAA records; one of the kinds may be missing. Returns hosts and seconds to keep them."""
    hosts: dict[str, None] = {}
    keep_s = float("inf")
    for kind in ("A", "AAAA"):
        for record, ttl_s in await _records(resolver, name, kind):
            hosts[str(record)] = None
            keep_s = min(keep_s, ttl_s)
    if not hosts:
        raise SourceError("has no address")
    return hosts, keep_s


async def _services(resolver: Resolver, name: str) -> tuple[Places, float]:
    """Look up SRV records. Only those of the best priority count: the others stand in for them when all are gone."""
    records = await _records(resolver, name, "SRV")
    if not records:
        raise SourceError("has no SRV record")
    best = min(record.priority for record, _ in records)
    places = {(str(r.target).rstrip("."), int(r.port)): None for r, _ in records if r.priority == best}
    return places, min(ttl_s for _, ttl_s in records)


async def _records(resolver: Resolver, name: str, kind: str) -> list[tuple[Any, float]]:
    import dns.exception  # noqa: PLC0415
    import dns.resolver  # noqa: PLC0415

    try:
        answer = await resolver.resolve(name, kind, lifetime=TIMEOUT_S, search=True)
    except (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN):
        return []
    except (dns.exception.DNSException, OSError) as error:
        raise SourceError(f"cannot be looked up: {error}") from None
    return [(record, float(answer.ttl)) for record in answer]
