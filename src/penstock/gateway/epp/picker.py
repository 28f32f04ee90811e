"""The parts that all streams share: the way in, endpoints' addresses, bounds of bodies."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.config.model import Settings
from penstock.gateway import settings_map
from penstock.gateway.builtin.operators_app import is_operators
from penstock.gateway.epp.filters import Filters
from penstock.gateway.epp.peers import ProxyViews
from penstock.gateway.epp.pick import Pick, Picks
from penstock.gateway.openai.wrong_paths import is_batch
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.target import Target
from penstock.http.client.pool import Upstream

RESOLVE_S = 30.0  # an address is looked up again so often
LOOK_S = 1.0  # for endpoints whose host name is new
NOWHERE = ("",)  # the endpoints of a request that may go to none


class Picker:
    """The parts of the gateway that streams use."""

    def __init__(
        self,
        app: App,
        driver: Driver[Decides],
        targets: Mapping[str, Target],
        hold: Callable[[int], bool],
        *,
        gives_keys: bool,
    ) -> None:
        self.app = app
        self.driver = driver
        self.places = Addresses(targets)
        self.filters = Filters()
        self.gives_keys = gives_keys  #: engines' API keys are given to whoever connects
        self._targets = targets
        self._hold = hold
        self._unseen = 0  # answers whose bodies do not come
        self._words = ProxyViews()
        self._peers: dict[str, tuple[str, int]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether endpoints are known. Without a leader for a while requests queue here, so a picker stays ready."""
        return bool(self._targets) and not self.driver.leaving

    def follow(self, settings: Settings) -> None:
        """Take new requests by these bounds."""
        self.body_bytes_max = settings.limits.max_body
        self.timeouts = settings.timeouts
        self.fallbacks_max = settings.epp.fallbacks
        self._sample_every = settings.epp.sample_every
        self._words.follow(settings_map.health_settings(settings))

    def pick(self, peer: str, out: Picks, headers: Sequence[Any]) -> Pick:
        """Returns the exchange of a request with these headers."""
        pick = Pick(self.address(peer), out, self._hold, self._words.of(peer))
        if not self.gives_keys and any(target.api_key is not None for target in self._targets.values()):
            pick.keyless = True
            pick.only = tuple(name for name, target in self._targets.items() if target.api_key is None) or NOWHERE
        lookup = pick.lookup
        given = pick.headers
        for header in headers:
            key, value = header.key, header.raw_value or header.value.encode()
            if key[:1] == ":":
                if key == ":method":
                    pick.method = value.decode("latin-1")
                elif key == ":path":
                    path, _, pick.query = value.decode("latin-1").partition("?")
                    pick.target_path = path
            else:
                name = key.encode("latin-1", "replace")
                given.append((name, value))
                lookup.setdefault(name, value)
        return pick

    def samples(self) -> bool:
        """True for the first answer whose body is asked for, and then for each one in so many by the settings."""
        if not self._sample_every:
            return False
        self._unseen += 1
        return self._unseen % self._sample_every == 1 % self._sample_every

    def address(self, peer: str) -> tuple[str, int]:
        """Returns host and port of a proxy, which gRPC writes as `ipv4:1.2.3.4:5`."""
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= 1_000:
                self._peers.clear()
            host, _, port = peer.partition(":")[2].replace("%5B", "").replace("%5D", "").rpartition(":")
            known = self._peers[peer] = (host.strip("[]"), int(port) if port.isdigit() else 0)
        return known

    def narrow(self, pick: Pick, places: Iterable[str]) -> bool:
        """Keep a request to the endpoints at these `ip:port`. Returns False if there are none."""
        pick.only = tuple(name for name in self.places.named(places) if pick.may_go(name))
        return bool(pick.only)


def is_closed(path: str) -> bool:
    """True for paths of the gateway's own port that a proxy's requests do not reach: operators', files and batches."""
    return is_operators(path) or is_batch(path)


class Addresses:
    """Endpoints' addresses: proxies want them as `ip:port`."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self._found: dict[str, tuple[str, float]] = {}  # by host name: its address, and when it was looked up

    def address(self, upstream: Upstream) -> str | None:
        """Returns an endpoint's `ip:port`; None: its host name has no address, or it is at a unix socket."""
        host, port = upstream.place
        found = self._found.get(host)
        if found is None:
            if (literal := _literal(host)) is None:
                return None
            found = self._found[host] = (literal, float("inf"))
        return f"{found[0]}:{port}"

    def at(self, place: str) -> str | None:
        """Returns the endpoint at this `ip:port`."""
        return next(iter(self.named([place])), None)

    def named(self, places: Iterable[str]) -> tuple[str, ...]:
        """Returns the endpoints at these `ip:port`."""
        wanted = set(places)
        return tuple(name for name, target in self._targets.items() if self.address(target.upstream) in wanted)

    async def run(self) -> None:
        """Look names up, new ones within a second. Never returns."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look up the names that are new or old, and forget those that no endpoint has."""
        loop = asyncio.get_running_loop()
        places = {target.upstream.place for target in self._targets.values()}
        hosts = {host for host, port in places if port}  # without: a unix socket
        for host in [host for host in self._found if host not in hosts]:
            del self._found[host]
        for host in hosts:
            found = self._found.get(host)
            if _literal(host) is not None or (found is not None and loop.time() - found[1] < RESOLVE_S):
                continue
            try:
                lines = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError:
                continue  # the last address stays
            address = min(lines, key=lambda line: line[0] != socket.AF_INET)[4][0]  # IPv4 first
            self._found[host] = (_literal(str(address)) or str(address), loop.time())


def _literal(host: str) -> str | None:
    """Returns a host as it stands before `:port`, if it is an IP address."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    return f"[{address}]" if address.version == 6 else str(address)
