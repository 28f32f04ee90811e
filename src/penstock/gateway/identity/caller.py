"""The client of a request and its rights, as found by `callers.py`. Values."""

from __future__ import annotations

import msgspec

from penstock.core.queueing.fair_tree import PART_PREFIX
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.name_quota import NameQuota
from penstock.gateway.identity.rights import Rights

PART_OF = PART_PREFIX + "{}"  # the label of a shared part: no name from outside begins with a space


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The client of a request and its rights."""

    tenant: str  #: the flow it belongs to
    user: str  #: within the tenant; "" if none is named
    has_key: bool  #: known by one of Penstock's keys, which must not go upstream
    weight: float
    band: int  #: the rank granted, 0 is the highest
    band_lowered: bool  #: it asked for a higher one
    tenant_label: str  #: for metrics: a configured name, or `other`
    deadline_s: float | None  #: to the first token, from arrival on
    priority: int  #: the body's own, lower first, within its flow
    part: str = ""  #: the part that it shares with others, each with its own flow inside; "": it has its own part
    weight_inside: float = 1.0  #: within that part
    rights: Rights | None = None  #: its key's bounds; None: none but its tenant's
    time_per_output_token_s: float | None = None  #: endpoints that are slower now are its second choice
    key: str = ""  #: the name of its key; "": it has none of ours
    band_unknown: str = ""  #: it asked for a band by a name that none has, and for no other

    @property
    def account(self) -> str:
        return self.part or self.tenant

    def flow(
        self, levels: tuple[str, ...], model: str, model_weight: float = 1.0, own: str | None = None
    ) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """The place of its requests in the fairness tree: names and weights, outermost first.

        A client that shares a part is one level deeper, below that part. `own`: its flow within its tenant, if
        the tenant is divided by keys and models with limits: then the tenant is such a part.
        """
        if levels == ("tenant",) and not self.part and own is None:
            return (self.tenant,), (self.weight,)
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


class Claims(msgspec.Struct, frozen=True, gc=False):
    """The claims of an identity provider's token."""

    tenant: str
    user: str  #: "" if it has none
    band: str  #: likewise


class Unauthorized(msgspec.Struct, frozen=True):
    """The client is refused."""

    message: str
    reason: Reason = Reason.UNAUTHORIZED


class TenantProfile(msgspec.Struct, frozen=True):
    """A tenant of the settings, or the default for all others."""

    name: str
    weight: float
    band_max: int
    has_keys: bool
    users: NameQuota
    label: str
    capped: bool = False  #: its highest band is its own setting
    part: str = ""  #: as in `Caller`
    weight_inside: float = 1.0  #: likewise


class Key(msgspec.Struct, frozen=True):
    """A key that is known here."""

    digest: bytes
    owner: TenantProfile
    user: str  #: the default user
    rights: Rights | None = None  #: its bounds
    expires_at: float | None = None  #: Unix time; None: never
    claims: Claims | None = None  #: the claims of a token that was valid when checked
    name: str = ""  #: in lists and in the ledger of use
