"""The client of a request and its rights, as found by `callers.py`. Values."""

from __future__ import annotations

from typing import Final

from penstock.core.queueing.fair_tree import PART_PREFIX
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.name_quota import NameQuota
from penstock.gateway.identity.rights import Rights
from penstock.gateway.openai.routes import Route

PART_OF = PART_PREFIX + "{}"  # the label of a shared part: no name from outside begins with a space


class Caller:
    """The client of a request and its rights."""

    __slots__ = (
        "account", "band", "band_lowered", "band_unknown", "deadline_s", "has_key", "key", "part", "priority", "rights",
        "tenant", "tenant_label", "time_per_output_token_s", "user", "weight", "weight_inside", "whole_flow",
        "whole_weights",
    )  # fmt: skip

    def __init__(
        self,
        *,
        tenant: str,
        user: str,
        has_key: bool,
        weight: float,
        band: int,
        band_lowered: bool,
        tenant_label: str,
        deadline_s: float | None,
        priority: int,
        part: str = "",
        weight_inside: float = 1.0,
        rights: Rights | None = None,
        time_per_output_token_s: float | None = None,
        key: str = "",
        band_unknown: str = "",
    ) -> None:
        self.tenant: Final = tenant  #: the flow it belongs to
        self.user: Final = user  #: within the tenant; "" if none is named
        self.has_key: Final = has_key  #: known by one of Penstock's keys, which must not go upstream
        self.weight: Final = weight
        self.band: Final = band  #: the rank granted, 0 is the highest
        self.band_lowered: Final = band_lowered  #: it asked for a higher one
        self.tenant_label: Final = tenant_label  #: for metrics: a configured name, or `other`
        self.deadline_s: Final = deadline_s  #: to the first token, from arrival on
        self.priority: Final = priority  #: the body's own, lower first, within its flow
        self.part: Final = part  #: that it shares with others, each with its own flow inside; "": its own part
        self.weight_inside: Final = weight_inside  #: within that part
        self.rights: Final = rights  #: its key's bounds; None: none but its tenant's
        self.time_per_output_token_s: Final = time_per_output_token_s  #: slower endpoints are second choice
        self.key: Final = key  #: the name of its key; "": it has none of ours
        self.band_unknown: Final = band_unknown  #: it asked for a band by a name that none has, and for no other
        self.account: Final = part or tenant  #: its name for limits
        #: Its flow and weights if tenants are the only level, and the tenant is neither a part nor divided.
        self.whole_flow: Final[tuple[str, ...]] = (tenant,)
        self.whole_weights: Final[tuple[float, ...]] = (weight,)

    def flow(
        self, levels: tuple[str, ...], model: str, model_weight: float = 1.0, own: str | None = None
    ) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """The place of its requests in the fairness tree: names and weights, outermost first.

        A client that shares a part is one level deeper, below that part. `own`: its flow within its tenant, if
        the tenant is divided by keys and models with limits: then the tenant is such a part.
        """
        if levels == ("tenant",) and not self.part and own is None:
            return self.whole_flow, self.whole_weights
        # Users of different tenants may have the same name; without a level for tenants they still differ.
        user = self.user if "tenant" in levels else f"{self.tenant}/{self.user}"
        part, tenant, inside = self.part, self.tenant, self.weight_inside
        if own is not None and not part and "tenant" in levels:
            part, tenant, inside, own = tenant, f"{tenant} {own}".rstrip(), 1.0, None
        names = {"tenant": tenant, "user": user, "model": model}
        each = {"tenant": inside if part else self.weight, "user": 1.0, "model": model_weight}
        flow: list[str] = []
        weights: list[float] = []
        for level in levels:
            if part and level != "model":
                flow.append(PART_OF.format(part))
                weights.append(self.weight)
                part = ""
            flow.append(names[level])
            weights.append(each[level])
        if own:
            flow[-1] += f"\n{own}"
        return tuple(flow), tuple(weights)


class Claims:
    """The claims of an identity provider's token."""

    __slots__ = ("band", "tenant", "user")

    def __init__(
        self,
        tenant: str,
        user: str,
        band: str,
    ) -> None:
        self.tenant: Final = tenant
        self.user: Final = user  #: "" if it has none
        self.band: Final = band  #: likewise


class FormerKey:
    """A key that was good once."""

    __slots__ = ("ended", "key")

    def __init__(self, key: Key, ended: str) -> None:
        self.key: Final = key
        self.ended: Final = ended  #: how and when, in words


class Unauthorized:
    """The client is refused."""

    __slots__ = ("former", "message", "reason")

    def __init__(
        self,
        message: str,
        reason: Reason = Reason.UNAUTHORIZED,
        former: FormerKey | None = None,
    ) -> None:
        self.message: Final = message
        self.reason: Final = reason
        self.former: Final = former  #: the key that it presented, for operators; None: none that is known


class TenantProfile:
    """A tenant of the settings, or the default for all others."""

    __slots__ = ("band_max", "capped", "has_keys", "label", "name", "part", "users", "weight", "weight_inside")

    def __init__(
        self,
        name: str,
        weight: float,
        band_max: int,
        *,
        has_keys: bool,
        users: NameQuota,
        label: str,
        capped: bool = False,
        part: str = "",
        weight_inside: float = 1.0,
    ) -> None:
        self.name: Final = name
        self.weight: Final = weight
        self.band_max: Final = band_max
        self.has_keys: Final = has_keys
        self.users: Final = users
        self.label: Final = label
        self.capped: Final = capped  #: its highest band is its own setting
        self.part: Final = part  #: as in `Caller`
        self.weight_inside: Final = weight_inside  #: likewise


class Key:
    """A key that is known here."""

    __slots__ = ("claims", "digest", "expires_at", "name", "owner", "rights", "user")

    def __init__(
        self,
        digest: bytes,
        owner: TenantProfile,
        user: str,
        *,
        rights: Rights | None = None,
        expires_at: float | None = None,
        claims: Claims | None = None,
        name: str = "",
    ) -> None:
        self.digest: Final = digest
        self.owner: Final = owner
        self.user: Final = user  #: the default user
        self.rights: Final = rights  #: its bounds
        self.expires_at: Final = expires_at  #: Unix time; None: never
        self.claims: Final = claims  #: the claims of a token that was valid when checked
        self.name: Final = name  #: in lists and in the ledger of use


_NO_HEADERS: Final[list[tuple[bytes, bytes]]] = []  # never written


class Sender:
    """The sender of all requests with one head over one connection, as far as it is known."""

    __slots__ = (
        "caller", "client", "dropped", "era", "key", "model_band", "passing", "path", "priority", "route",
        "service_tier", "until_s", "user",
    )  # fmt: skip

    def __init__(
        self, key: Key | None, route: Route, *, path: str = "", client: str = "", era: int = -1, until_s: float = 0.0
    ) -> None:
        self.key: Final = key  #: None: it has none of ours
        self.route: Final = route
        self.path: Final = path  #: of its requests, below the gateway's own
        self.client: Final = client  #: its address
        self.era: Final = era  #: of `Callers`, in which this is known
        self.until_s: Final = until_s  #: on the clock of requests
        self.caller: Caller | None = None  #: of the last request, by the following fields
        self.user: object = None
        self.service_tier: object = None
        self.priority: object = None
        self.model_band: int | None = None
        #: The headers that went to an engine last, its own excluded.
        self.passing: list[tuple[bytes, bytes]] = _NO_HEADERS
        self.dropped: frozenset[bytes] | None = None  #: the names that were left out then
