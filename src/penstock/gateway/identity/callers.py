"""From a request's head and a few fields of its body to a `Caller`.

Who. (1) The tenant of its API key, or the one that its token names (`tokens/`). (2) Without a key, the tenant it names
in a header, if that one is listed and has no keys; from a trusted proxy any tenant, listed or not. (3) All others share
the part `anonymous` under any name: a name costs nothing, so it must bring nothing. Names are flows of their own inside
that part; a caller without one is named by its address, key and user (`unnamed.py`). The user divides a tenant's part
further, so any client may name one; by default each key is a user.

What. A client may ask for a band by several headers or a service tier, up to the highest allowed by its key or
`identity.max_band`. Nothing here waits or keeps more than a bounded number of names.

Keys are random, 256 bits, and kept only as SHA-256, so the timing of a dict lookup by digest does not help an attacker,
who would have to invert the hash first.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from penstock import clock
from penstock.config import values
from penstock.config.model import Settings
from penstock.config.sections import tenancy
from penstock.config.sections.tenancy import ANONYMOUS, NAMES_WITHOUT_KEYS, OTHER, Tenant
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.caller import Caller, Claims, FormerKey, Key, Sender, TenantProfile, Unauthorized
from penstock.gateway.identity.name_quota import NameQuota, NameQuotas, safe_name
from penstock.gateway.identity.objectives import Objectives
from penstock.gateway.identity.origins import within
from penstock.gateway.identity.own_limits import OwnAccounts, name_of
from penstock.gateway.identity.rights import Rights, read, rights_of
from penstock.gateway.identity.tokens.accepted import AcceptedTokens
from penstock.gateway.identity.unnamed import PREFIX as CLIENT_PREFIX
from penstock.gateway.identity.unnamed import UnnamedCallers

if TYPE_CHECKING:
    from penstock.batch.values import MadeKey
    from penstock.gateway.identity.former_keys import FormerKeys

KEY_PREFIX: Final = "pk-"
KEY_BYTES: Final = 32
KEY_CHARACTERS_MAX: Final = 512  # foreign keys that an operator lists may be longer than ours
HASH_PREFIX: Final = "sha256:"

KEY_HEADERS: Final = tuple(name.encode() for name in tenancy.KEY_HEADERS)
FAIRNESS_HEADERS: Final = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
OBJECTIVE_HEADERS: Final = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
DEADLINE_HEADERS: Final = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
PACE_HEADERS: Final = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")
OPENWEBUI_USER_HEADER: Final = b"x-openwebui-user-id"

_KEY_PREFIX: Final = KEY_PREFIX.encode()
_PRIORITY_MAX: Final = 2**31 - 1  # a 32-bit integer at either end, as engines keep it
# In the words by which clients recognise a wrong key.
_UNKNOWN_KEY: Final = "Incorrect API key provided (invalid_api_key): the gateway does not know it."
_UNREAD: Final = "The gateway has not read yet which keys there are. Please try again later."
_EXPIRED: Final = "This API key has expired (invalid_api_key): it was good until {}."
_TWICE: Final = "The header `{}` is given more than once."
_KEY_REQUIRED: Final = "You didn't provide an API key. The gateway needs one: `Authorization: Bearer KEY`."
_MILLISECONDS: Final = re.compile(rb"\d{1,12}(\.\d{1,9})?")
_PEERS_MAX: Final = 4096  # remembered verdicts; cleared as a whole when full
KNOWN_S: Final = (
    10.0  # how long a sender is known: a name's last time may be that much older, of the minute that counts it
)

Header = Callable[[bytes], bytes | None]  # the first value of a header, by its name in lower case


class Callers:
    """Identifies clients by the settings. `wall` returns Unix time, by which keys expire."""

    def __init__(self, wall: Callable[[], float] = clock.wall, tokens: AcceptedTokens | None = None) -> None:
        self._wall = wall
        self.tokens = tokens or AcceptedTokens()
        self.era = 0  #: advances with all that may change what was found out about a sender
        self.objectives = Objectives(self._advance)
        self._tenants: dict[str, TenantProfile] = {}
        self._dynamic = NameQuotas(1)
        self._dynamic_users = NameQuotas(1)  # of all tenants that are not listed, together
        self._unnamed = UnnamedCallers(self._advance)
        self._makes_keys = False
        self._made: Sequence[MadeKey] | None = None  # None: not read yet
        self._keys: dict[bytes, Key] = {}  # by their digests
        self._former: FormerKeys | None = None  # None: no key ended so far
        self.own_accounts = OwnAccounts()  #: of keys and models with limits

    def follow(self, settings: Settings) -> None:
        """Go by these settings from now on. Names that count as themselves go on doing so."""
        self._advance()
        identity = settings.identity
        self._dynamic.limit = self._dynamic_users.limit = identity.max_dynamic
        self._unnamed.follow(settings)
        self.objectives.follow(settings)
        self._ranks = {band.name: rank for rank, band in enumerate(settings.bands)}
        self._deadlines_s = [band.deadline for band in settings.bands]
        self._default_band = self._ranks[settings.default_band]
        self._band_max = self._ranks[identity.max_band]
        self._require_key = identity.require_key
        self._makes_keys = identity.made_keys
        self._tenant_headers = (identity.tenant_header.encode(), *FAIRNESS_HEADERS)
        self._names_once = (*self._tenant_headers, identity.user_header.encode())
        self._user_headers = (identity.user_header.encode(), OPENWEBUI_USER_HEADER)
        self._band_header = identity.band_header.encode()
        self._networks = [ipaddress.ip_network(network) for network in identity.trusted_proxies]
        self._trusted_peers: dict[str, bool] = {}
        anonymous = settings.anonymous
        is_limited = bool(anonymous.limits.model_dump(exclude_defaults=True))
        # If there is nobody else, all share that part.
        self._part = ANONYMOUS if settings.tenants or self._networks or is_limited else ""
        self._part_weight = anonymous.weight if self._part else 1.0
        self._tenants = {tenant.name: self._known(tenant, identity.max_dynamic) for tenant in settings.tenants}
        known = [
            _key(key.hash, self._tenants[tenant.name], name_of(key), rights_of(key), key.expires)
            for tenant in settings.tenants
            for key in tenant.keys
        ]
        self._listed = {key.digest: key for key in known}
        self.own_accounts.follow(settings)
        self._look_keys_up()
        self._takes_tokens = identity.jwt is not None
        self.tokens.follow(identity.jwt, lambda name: name in self._tenants)

    def made(self, keys: Sequence[MadeKey]) -> None:
        """Set the keys issued at runtime and not revoked. Those of tenants that are gone wait."""
        self._made = keys
        self.own_accounts.made(keys)
        self._look_keys_up()

    def _look_keys_up(self) -> None:
        """Know all keys there are. One that the settings have, too, is the one of the settings."""
        made = [
            _key(row.hash, owner, row.name, read(row.rights), row.expires_at)
            for row in self._made or ()
            if (owner := self._tenants.get(row.tenant)) is not None
        ]
        before, self._keys = self._keys, {**{key.digest: key for key in made}, **self._listed}
        if self._former is None and before.keys() - self._keys.keys():
            from penstock.gateway.identity.former_keys import FormerKeys  # noqa: PLC0415 - few keys end

            self._former = FormerKeys()
        if self._former is not None:
            self._former.look(before, self._keys, self._wall())
        self._advance()

    def _advance(self) -> None:
        self.era += 1

    def key(self, header: Header, repeats: Callable[[bytes], bool] | None) -> Key | Unauthorized | None:
        """Returns the known key in a head, if any, or a refusal.

        A credential that is given twice is refused: which one counts would be anybody's guess, and the other one might
        be a key of ours that goes upstream. So is a name: a proxy may have added its own to its client's. `repeats`:
        None if no header is given twice.
        """
        for name in self._names_once if repeats is not None else ():
            if repeats is not None and repeats(name):
                return Unauthorized(_TWICE.format(name.decode()), Reason.BAD_REQUEST)
        if not (self._keys or self._require_key or self._makes_keys or self._takes_tokens):
            return None
        for name in KEY_HEADERS if repeats is not None else ():
            if repeats is not None and repeats(name):
                return Unauthorized(_TWICE.format(name.decode()))
        foreign, former = False, None
        for name in KEY_HEADERS:
            presented = _presented(header(name))
            if not presented:
                continue
            if len(presented) <= KEY_CHARACTERS_MAX:
                its = hashlib.sha256(presented).digest()
                known = self._good(its)
                if known is not None:
                    return known
                former = former or self._ended(its)
            if self._takes_tokens and (claims := self.tokens.judge(presented)) is not None:
                return claims if isinstance(claims, Unauthorized) else self._of_token(claims)
            foreign = foreign or self._require_key or presented.startswith(_KEY_PREFIX)
        if foreign:
            return self._unknown(former)
        if self._require_key:
            return Unauthorized(_KEY_REQUIRED)
        return None  # a foreign key is passed on upstream

    def knows(self, sender: Sender, header: Header, now: float) -> bool:
        """Whether `sender` is known still. A token is looked up each time: its verifier knows how long it is good."""
        key = sender.key
        if not self._knows(sender, key, now):
            return False
        if key is None or key.claims is None:
            return True
        again = self.key(header, None)
        return isinstance(again, Key) and again.claims is key.claims

    def _knows(self, sender: Sender, key: Key | None, now: float) -> bool:
        """Whether nothing has changed since, nor its key expired."""
        if sender.era != self.era or now >= sender.until_s:
            return False
        return key is None or key.expires_at is None or self._wall() < key.expires_at

    def caller(
        self,
        sender: Sender,
        header: Header,
        peer: str,
        *,
        user: object,
        service_tier: object,
        priority: object,
        model_band: int | None,
        client: str,
        now: float,
    ) -> Caller | Unauthorized:
        """Returns what `identify` does; while `sender` is known, the caller of its last request with these fields."""
        if (
            sender.caller is not None
            and self._knows(sender, sender.key, now)
            and sender.user == user
            and sender.service_tier == service_tier
            and sender.priority is priority  # `True` is none, 1 is one
            and sender.model_band == model_band
        ):
            return sender.caller
        caller = self.identify(
            sender.key,
            header,
            peer,
            user=user,
            service_tier=service_tier,
            priority=priority,
            model_band=model_band,
            client=client,
            now=now,
        )
        sender.caller = None if isinstance(caller, Unauthorized) else caller
        sender.user, sender.service_tier, sender.priority = user, service_tier, priority
        sender.model_band = model_band
        return caller

    def identify(
        self,
        key: Key | Unauthorized | None,
        header: Header,
        peer: str,
        *,
        user: object = None,
        service_tier: object = None,
        priority: object = None,
        model_band: int | None = None,
        client: str = "",
        now: float,
    ) -> Caller | Unauthorized:
        """Returns the caller from a head, its sender's IP address, and three unchecked fields of the body.

        `model_band` is the model's own default band, if any. `client` is the client's address behind proxies, if
        another one. `key` is the result of that method for the head; the settings may have changed since.
        """
        if isinstance(key, Unauthorized):
            return key
        claims = None if key is None else key.claims
        if claims is not None:
            if not self._takes_tokens:
                return Unauthorized(_UNKNOWN_KEY)
        elif key is not None:
            good = self._good(key.digest)
            if good is None:
                return self._unknown(self._ended(key.digest))
            if isinstance(good, Unauthorized):
                return good
            key = good
        elif self._require_key:
            return Unauthorized(_KEY_REQUIRED)
        if claims is not None:
            tenant = self._tenants.get(claims.tenant) or self._unlisted(claims.tenant, now, trusted=True)
        else:
            tenant = key.owner if key is not None else self._claimed(header, peer, client or peer, user, now)
        band_max = max(tenant.band_max, self._band_max) if key is None else tenant.band_max  # the lower of both
        asked, unknown = self._asked_band(header, service_tier)
        claimed = None if claims is None else self._ranks.get(claims.band)
        if claimed is not None:
            granted = band_max = max(claimed, band_max)
            asked = claimed if asked is None else asked
        else:
            granted = self._granted(tenant, band_max, model_band)
            unknown = unknown or ("" if claims is None else claims.band)
        band = granted if asked is None else max(asked, min(band_max, granted))
        return Caller(
            tenant=tenant.name,
            user=self._user(header, user, tenant, key, now),
            has_key=key is not None,
            weight=tenant.weight,
            band=band,
            band_lowered=asked is not None and asked < band,
            tenant_label=tenant.label,
            deadline_s=_shortest_s(header, DEADLINE_HEADERS, self._deadlines_s[band]),
            time_per_output_token_s=_shortest_s(header, PACE_HEADERS, None),
            priority=0 if priority is None else _priority(priority),
            part=tenant.part,
            weight_inside=tenant.weight_inside,
            rights=None if key is None else key.rights,
            key="" if key is None else key.name,
            band_unknown=unknown,
        )

    def owner(self, header: Header, peer: str, caller: Caller) -> str:
        """Returns the owner of this caller's data: its own name, even if its flow is `other`.

        Names that share a flow for an hour must not share files for ever.
        """
        if caller.tenant.startswith(CLIENT_PREFIX) and caller.tenant not in self._tenants:
            return ANONYMOUS  # an address may change
        if caller.tenant != OTHER:
            return caller.tenant
        if caller.has_key:  # no key of ours belongs to that one, so it is a token's
            key = self.key(header, lambda _: False)
            return key.owner.name if isinstance(key, Key) else ANONYMOUS
        name = _first_name(header, self._tenant_headers) or ANONYMOUS
        known = self._tenants.get(name)
        return name if known is None or not known.has_keys or self._trusted(peer) else ANONYMOUS

    def inside(
        self, tenant: str, user: str, now: float, rights: Rights | None = None, *, is_batch: bool = True
    ) -> Caller:
        """Returns an absent caller of a tenant. That of a batch has the lowest band, and the `rights` it had; otherwise
        it has the tenant's default band.
        """
        known = self._tenants.get(tenant) or self._unlisted(tenant, now, trusted=False)
        band = len(self._ranks) - 1 if is_batch else self._granted(known, known.band_max, None)
        return Caller(
            tenant=known.name,
            user=user,
            has_key=True,  # nothing of its head goes upstream
            weight=known.weight,
            band=band,
            band_lowered=False,
            tenant_label=known.label,
            deadline_s=None if is_batch else self._deadlines_s[band],
            priority=0,
            part=known.part,
            rights=rights,
        )

    def profiles(self) -> Iterable[TenantProfile]:
        return self._tenants.values()

    def profile(self, name: str) -> TenantProfile | None:
        return self._tenants.get(name)

    def account_of(self, name: str) -> str | None:
        """Returns the name for the limits of a tenant or a recently seen name; None if unknown."""
        known = self._tenants.get(name)
        if known is not None:
            return known.part or name
        if name in self._dynamic.trusted:
            return name
        known_here = name == ANONYMOUS or name in self._dynamic.untrusted or name in self._unnamed.seen
        return (self._part or name) if known_here else None

    # --- identity -------------------------------------------------------------------------------------------

    def _unknown(self, former: FormerKey | None) -> Unauthorized:
        """Returns the refusal of an unknown key, or of one that cannot be checked yet."""
        if self._makes_keys and self._made is None:
            return Unauthorized(_UNREAD, Reason.OVERLOAD)
        return Unauthorized(_UNKNOWN_KEY, former=former)

    def _ended(self, its: bytes) -> FormerKey | None:
        return None if self._former is None else self._former.get(its)

    def _good(self, its: bytes) -> Key | Unauthorized | None:
        """Returns the key with this digest, the refusal of an expired one, or None."""
        key = self._keys.get(its)
        if key is not None and key.expires_at is not None and self._wall() >= key.expires_at:
            moment = values.write_moment(key.expires_at)
            return Unauthorized(_EXPIRED.format(moment), former=FormerKey(key, f"expired {moment}"))
        return key

    def _of_token(self, claims: Claims) -> Key:
        listed, users = self._tenants.get(claims.tenant), self._dynamic_users.trusted
        owner = listed or TenantProfile(claims.tenant, 1.0, self._band_max, has_keys=False, users=users, label=OTHER)
        return Key(b"", owner, claims.user, claims=claims)

    def _claimed(self, header: Header, peer: str, client: str, user: object, now: float) -> TenantProfile:
        """Identify a client without a key by its name, otherwise by its address, key and user."""
        name = _first_name(header, self._tenant_headers)
        known, trusted = self._tenants.get(name), self._trusted(peer)
        may_claim = name and not name.startswith(CLIENT_PREFIX) if known is None else trusted or not known.has_keys
        if may_claim:
            return known or self._unlisted(name, now, trusted=trusted)
        credential = _credential(header)
        its, weight = self._unnamed.name(client, credential, self._named_user(header, user), now)
        return self._shared(its, weight)

    def _trusted(self, peer: str) -> bool:
        if not self._networks:
            return False
        verdict = self._trusted_peers.get(peer)
        if verdict is None:
            if len(self._trusted_peers) >= _PEERS_MAX:
                self._trusted_peers.clear()
            verdict = self._trusted_peers[peer] = within(peer, self._networks)
        return verdict

    def _user(self, header: Header, field: object, tenant: TenantProfile, key: Key | None, now: float) -> str:
        signed = key is not None and key.claims is not None and bool(key.user)  # such names cannot be forged
        name = key.user if key is not None and signed else self._named_user(header, field)
        if not name:
            return "" if key is None else key.user
        return name if tenant.users.admit((tenant.name, name), now) else OTHER

    def _named_user(self, header: Header, field: object) -> str:
        return _first_name(header, self._user_headers) or (safe_name(field) if isinstance(field, str) else "")

    def _known(self, tenant: Tenant, users_max: int) -> TenantProfile:
        before = self._tenants.get(tenant.name)
        users = NameQuota(users_max) if before is None else before.users
        users.limit = users_max
        return TenantProfile(
            name=tenant.name,
            weight=tenant.weight,
            band_max=self._ranks[tenant.max_band] if tenant.max_band else self._band_max,
            has_keys=bool(tenant.keys) or (self._makes_keys and tenant.name not in NAMES_WITHOUT_KEYS),
            users=users,
            label=tenant.name,
            capped=bool(tenant.max_band),
            part=self._part if tenant.name == ANONYMOUS else "",
        )

    def _unlisted(self, name: str, now: float, *, trusted: bool) -> TenantProfile:
        """Identify an unlisted name: a new tenant behind a trusted proxy, otherwise within `anonymous`."""
        names = self._dynamic.trusted if trusted else self._dynamic.untrusted
        if name not in (ANONYMOUS, OTHER) and not names.admit(name, now):
            name = OTHER
        if trusted and name not in (ANONYMOUS, OTHER):
            users = self._dynamic_users.trusted
            return TenantProfile(name, 1.0, self._band_max, has_keys=False, users=users, label=OTHER)
        return self._shared(name, 1.0)

    def _shared(self, name: str, weight: float) -> TenantProfile:
        """A caller within `anonymous`, with its `weight` there."""
        listed = self._tenants.get(name)
        if listed is not None:
            return listed
        shared = self._tenants.get(ANONYMOUS)
        return TenantProfile(
            name,
            self._part_weight if self._part else weight,
            self._band_max if shared is None else shared.band_max,
            has_keys=False,
            users=self._dynamic_users.untrusted,
            label=ANONYMOUS if shared is not None and name.startswith(CLIENT_PREFIX) else OTHER,
            capped=shared is not None and shared.capped,
            part=self._part,
            weight_inside=weight,
        )

    # --- rights ---------------------------------------------------------------------------------------------

    def _granted(self, tenant: TenantProfile, band_max: int, model_band: int | None) -> int:
        """Returns a client's default band.

        A model's band is not asked for, so a client's highest band does not lower it, except for tenants with their own
        highest band, and for clients with a highest band below the default one.
        """
        if model_band is None:
            return max(self._default_band, band_max)
        kept_low = tenant.capped or band_max > self._default_band
        return max(model_band, band_max) if kept_low else model_band

    def _asked_band(self, header: Header, service_tier: object) -> tuple[int | None, str]:
        """Returns the first requested band that exists, or the first other name."""
        unknown = b""
        for name in (self._band_header, *OBJECTIVE_HEADERS):
            value = header(name)
            if value is None:
                continue
            asked = value.strip().decode("latin-1")
            rank = self._ranks.get(asked)
            if name is not self._band_header:
                rank = self.objectives.ranks.get(asked, rank)
            if rank is not None:
                return rank, ""
            unknown = unknown or value
        tier = 0 if service_tier in ("priority", "fast") else len(self._ranks) - 1 if service_tier == "flex" else None
        return tier, safe_name(unknown) if unknown else ""


def _shortest_s(header: Header, names: tuple[bytes, ...], shortest_s: float | None) -> float | None:
    """The shortest of those given, and of `shortest_s`. Other values than a positive number of milliseconds are
    ignored.
    """
    for name in names:
        value = header(name)
        if value is not None and _MILLISECONDS.fullmatch(value.strip()) and (asked_s := float(value) / 1000) > 0:
            shortest_s = asked_s if shortest_s is None else min(shortest_s, asked_s)
    return shortest_s


def new_key() -> str:
    """A fresh key: 256 random bits, with a prefix by which a leaked one is found."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_hash(key: str) -> str:
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def digest(its_hash: str) -> bytes:
    """The digest that a hash of the settings writes."""
    return bytes.fromhex(its_hash.removeprefix(HASH_PREFIX))


def _key(its_hash: str, owner: TenantProfile, name: str, rights: Rights | None, expires_at: float | None) -> Key:
    """Returns a known key. Its default user is the key itself."""
    return Key(digest(its_hash), owner, f"key:{name}", rights=rights, expires_at=expires_at, name=name)


def _presented(value: bytes | None) -> bytes:
    """The key in a header, with or without `Bearer` before it; people forget it."""
    if value is None:
        return b""
    if value.startswith(b"Bearer "):
        return value[7:].strip()
    scheme, _, rest = value.strip().partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else value.strip()


def _credential(header: Header) -> bytes:
    """The first credential in a head, or nothing."""
    for name in KEY_HEADERS:
        presented = _presented(header(name))
        if presented:
            return presented
    return b""


def _first_name(header: Header, names: tuple[bytes, ...]) -> str:
    for name in names:
        value = header(name)
        if value and (found := safe_name(value)):
            return found
    return ""


def _priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, -_PRIORITY_MAX - 1), _PRIORITY_MAX)
