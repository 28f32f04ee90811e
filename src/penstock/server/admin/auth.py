"""Who may look at /admin, and who may change things there (DESIGN §6, `admin`).

Two tokens: one for everything, one that only reads. With neither, a gateway that listens on loopback trusts whoever
reaches it, and any other refuses everybody. A browser reaches loopback too, whatever page it shows: so without tokens
a request must not name a host of the wide world (whoever owns that name can let it resolve to loopback) nor come from
another site. Wrong tokens are counted per address (IPv6: per /64); past the limit nothing is compared any more, so
nothing is learned.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from penstock.core.outcome import Reason

FAILURES_MAX = 10  # wrong tokens at once: a person mistypes, a script that is wrong stops being answered
FAILURE_FORGIVEN_S = 6.0  # then one more each so often: 10 a minute find no token in a lifetime
ADDRESSES_MAX = 10_000  # remembered; past that the one that failed longest ago is forgotten
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})


class Head(Protocol):
    """What is looked at of a request."""

    @property
    def peer(self) -> tuple[str, int]: ...
    def header(self, name: bytes, /) -> bytes | None: ...


class Denied(msgspec.Struct, frozen=True):
    """Why somebody may not."""

    reason: Reason
    message: str
    retry_after_s: float | None = None


class AdminAuth:
    """Decides by a request's head; its body is not needed."""

    def __init__(self, token: str | None, read_token: str | None, *, listens_on: str, now: Callable[[], float]) -> None:
        self.reconfigured(token, read_token)
        self._is_local = is_loopback(listens_on)
        self._now = now
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address: how many, as of when

    def reconfigured(self, token: str | None, read_token: str | None) -> None:
        """Other tokens from now on."""
        self._token = _digest(token)
        self._read_token = _digest(read_token)

    def denied(self, head: Head, *, writes: bool, public: bool = False) -> Denied | None:
        """Why the caller may not do this; None when it may. `public`: what shows nothing of the gateway."""
        if self._token is None and self._read_token is None:
            return self._without_tokens(head, public=public)
        if public:
            return None
        peer = _network(head.peer[0])
        wait_s = self._wait_s(peer)
        if wait_s > 0:
            return Denied(Reason.OVERLOAD, "Too many wrong admin tokens from this address.", wait_s)
        given = _digest(_bearer(head))
        if given is None:
            return Denied(Reason.UNAUTHORIZED, "This needs an admin token: `Authorization: Bearer …`.")
        # Both are compared whatever the first says, so that time tells nothing.
        is_full, is_reader = _equal(given, self._token), _equal(given, self._read_token)
        if is_full or (is_reader and not writes):
            return None
        if is_reader:
            return Denied(Reason.FORBIDDEN, "This token may look, but change nothing.")
        self._failed(peer)
        return Denied(Reason.UNAUTHORIZED, "This is not an admin token.")

    def _without_tokens(self, head: Head, *, public: bool) -> Denied | None:
        if not self._is_local:
            return Denied(Reason.FORBIDDEN, "/admin is closed: set `admin.token` or listen on a loopback address.")
        host = (head.header(b"host") or b"").decode("latin-1")
        if _is_public_name(host):
            return Denied(Reason.FORBIDDEN, "Without `admin.token`, /admin is only there under a local name.")
        if public:
            return None  # whoever follows a link to the page may see it
        origin = (head.header(b"origin") or b"").decode("latin-1").lower()
        foreign = origin and origin.partition("://")[2] != host.lower()
        if foreign or head.header(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return Denied(Reason.FORBIDDEN, "Without `admin.token`, /admin takes nothing from other sites' pages.")
        return None

    # --- wrong tokens ---------------------------------------------------------------------------------------------

    def _left(self, peer: str) -> float:
        """Failures of an address that are not forgiven yet."""
        count, since_s = self._failures.get(peer, (0.0, 0.0))
        return max(0.0, count - (self._now() - since_s) / FAILURE_FORGIVEN_S)

    def _wait_s(self, peer: str) -> float:
        """How long until an address may try again; 0: now."""
        return max(0.0, (self._left(peer) - FAILURES_MAX + 1) * FAILURE_FORGIVEN_S) if self._failures else 0.0

    def _failed(self, peer: str) -> None:
        self._failures[peer] = (self._left(peer) + 1, self._now())
        self._failures.move_to_end(peer)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)


def _network(peer: str) -> str:
    """Who fails: an IPv6 caller has a /64 of addresses at least, and would have as many tries."""
    if ":" not in peer:
        return peer
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((address, 64), strict=False))


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach an address. Empty (every interface) can be reached by others."""
    if not host:
        return False
    if host.lower().rstrip(".") in _LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_public_name(host: str) -> bool:
    """Whether a Host header has a name in it that anybody could own: dots, and not an address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        ipaddress.ip_address(name)
    except ValueError:
        return "." in host and host.lower().partition(":")[0] not in _LOCAL_NAMES
    return False


def _bearer(head: Head) -> str | None:
    scheme, _, token = (head.header(b"authorization") or b"").decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _digest(token: str | None) -> bytes | None:
    """Of equal length for all tokens, so that comparing takes the same time for all."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest() if token else None


def _equal(given: bytes, token: bytes | None) -> bool:
    return hmac.compare_digest(given, token or bytes(len(given))) and token is not None
