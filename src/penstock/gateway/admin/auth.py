"""Access to /admin: which callers may look, and which may change things (docs/decisions/0050).

Two tokens: one for everything, one that only reads; operators may have tokens of their own, for everything, which name
them (docs/decisions/0096). With none of these, the gateway makes its own, which is in a file
(`gateway/admin/own_token.py`). Of each token for everything another one can be made that only reads, for a screen on a
wall (`for_wall`). Without a token nobody changes anything; if none is set and the gateway listens on loopback, this
machine may look (`identity/origins.py`).

The right token always works, however many wrong ones came before and from any address: otherwise anybody behind the
same proxy could lock an operator out. So a guesser is slowed down instead: past some wrong tokens from an address
(IPv6: a /64), each further one is answered late, and one connection can try no faster. Guessers with many connections
are kept out by the token's length.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable

import msgspec

from penstock.config.model import Settings
from penstock.core.util.bounded_map import BoundedMap
from penstock.core.values.catalogue import Reason
from penstock.gateway.admin.own_token import for_wall
from penstock.gateway.identity.origins import Head, Origins, is_loopback

FAILURES_MAX = 10  # wrong tokens at once: a person mistypes, a script that is wrong is slowed down
FAILURE_FORGIVEN_S = 6.0  # then one more each so often is answered at once
FAILURE_DELAY_S = 1.0  # a second is nothing to a person who mistyped eleven times
ADDRESSES_MAX = 10_000  # remembered; past that the one that failed longest ago is forgotten
_CLOSED = "/admin is closed: set `admin.token`, or listen on a loopback address to let this machine look."
_CHANGES = (
    "Changing something needs the admin token: `Authorization: Bearer …`. None is set, so the gateway generated "
    "one: its log names the file, and what the commands on its machine need if they don't find it."
)
_CHANGES_NOTHING = "Without `admin.token`, /admin changes nothing."
_NOT_HERE = (
    "Without a token /admin shows itself to this machine only, and this request came from elsewhere or a proxy{}. "
    "Give the admin token (`--token`, `Authorization: Bearer …`): the log names the file of the generated one."
)


class Denied(msgspec.Struct, frozen=True):
    """Why somebody may not."""

    reason: Reason
    message: str
    retry_after_s: float | None = None
    delay_s: float = 0.0  #: how late the refusal goes out


class AdminAuth:
    """Decides by a request's head; its body is not needed."""

    def __init__(
        self,
        *,
        listens_on: str,
        now: Callable[[], float],
        origins: Origins,
        own: str | None = None,
    ) -> None:
        self._own = _digest(own)
        self._own_wall = _digest(for_wall(own)) if own else None
        self._is_local = is_loopback(listens_on)
        self._origins = origins
        self._now = now
        self._failures: BoundedMap[str, tuple[float, float]] = BoundedMap(ADDRESSES_MAX)  # how many, as of when

    def follow(self, settings: Settings) -> None:
        admin = settings.admin
        self.is_set = admin.has_token
        self._token = _digest(None if admin.token is None else admin.token.get_secret_value())
        full = [one.token.get_secret_value() for one in admin.operators]
        self._operators = [(_digest(token), one.name) for token, one in zip(full, admin.operators, strict=True)]
        if admin.token is not None:
            full.append(admin.token.get_secret_value())
        self._read_token = _digest(None if admin.read_token is None else admin.read_token.get_secret_value())
        self._walls = [None if self.is_set else self._own_wall, *[_digest(for_wall(token)) for token in full]]

    def denied(self, head: Head, *, writes: bool, public: bool = False) -> Denied | None:
        """Why the caller may not do this; None if it may. `public`: it shows nothing of the gateway."""
        given = _digest(_bearer(head))
        # All are always compared, so that timing leaks nothing.
        is_full = self._is_full(given)
        is_reader = sum([_equal(given, token) for token in (self._read_token, *self._walls)]) > 0
        if is_full or (is_reader and not writes):
            return None
        if is_reader:
            return Denied(Reason.FORBIDDEN, "This token may look, but neither search requests nor change anything.")
        if not self.is_set:
            refused = self._without_token(head, writes=writes, public=public)
            if refused is None or given is None:
                return refused
        elif public:
            return None
        if given is None:
            return Denied(Reason.UNAUTHORIZED, "This needs an admin token: `Authorization: Bearer …`.")
        return self._failed(_network(head.client))

    def may_change(self, head: Head) -> bool:
        """Whether the head has the token for everything. Notes nobody's failure."""
        return self._is_full(_digest(_bearer(head)))

    def operator(self, head: Head) -> str:
        """Return the name of the operator whose token the head has; empty if it is no operator's own."""
        return self._named(_digest(_bearer(head)))

    def _is_full(self, given: bytes | None) -> bool:
        named = self._named(given)
        return _equal(given, self._token if self.is_set else self._own) or bool(named)

    def _named(self, given: bytes | None) -> str:
        return "".join([name for token, name in self._operators if _equal(given, token)])

    def _without_token(self, head: Head, *, writes: bool, public: bool) -> Denied | None:
        if not self._is_local:
            return Denied(Reason.FORBIDDEN, _CLOSED)
        foreign = self._origins.foreign_name(head) if public else self._origins.foreign(head)
        if foreign is not None:
            return Denied(Reason.FORBIDDEN, foreign)
        if public:
            return None  # whoever follows a link to the page may see it
        if not self._origins.is_this_machine(head):
            proxy = f": {head.peer[0]} is in `identity.trusted_proxies`" if self._origins.is_proxy(head) else ""
            return Denied(Reason.FORBIDDEN, _NOT_HERE.format(proxy))
        if writes:
            return Denied(Reason.UNAUTHORIZED, _CHANGES) if self._own else Denied(Reason.FORBIDDEN, _CHANGES_NOTHING)
        return None

    # --- wrong tokens ---------------------------------------------------------------------------------------------

    def _failed(self, peer: str) -> Denied:
        """Note a wrong token from an address, and return how it is answered."""
        now = self._now()
        count, since_s = self._failures.get(peer) or (0.0, 0.0)
        left = max(0.0, count - (now - since_s) / FAILURE_FORGIVEN_S)  # that are not forgiven yet
        self._failures.set(peer, (min(left + 1, FAILURES_MAX), now))
        if left + 1 <= FAILURES_MAX:
            return Denied(Reason.UNAUTHORIZED, "This is not an admin token.")
        wait_s = (left + 1 - FAILURES_MAX) * FAILURE_FORGIVEN_S
        return Denied(Reason.OVERLOAD, "Too many wrong admin tokens from this address.", wait_s, FAILURE_DELAY_S)


def _network(peer: str) -> str:
    """The addresses that failed: an IPv6 caller has a /64 of addresses at least, and would have as many tries."""
    if ":" not in peer:
        return peer
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((address, 64), strict=False))


def _bearer(head: Head) -> str | None:
    scheme, _, token = (head.lookup.get(b"authorization") or b"").decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _digest(token: str | None) -> bytes | None:
    """Of equal length for all tokens, so that comparing takes the same time for all."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest() if token else None


def _equal(given: bytes | None, token: bytes | None) -> bool:
    return given is not None and hmac.compare_digest(given, token or bytes(len(given))) and token is not None
