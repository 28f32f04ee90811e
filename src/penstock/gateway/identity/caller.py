"""Who sent a request, and what it may have: what `callers.py` finds out. Values."""

from __future__ import annotations

import msgspec

from penstock.core.queueing.fair_tree import PART_PREFIX
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.name_quota import NameQuota
from penstock.gateway.identity.rights import Rights

PART_OF = PART_PREFIX + "{}"  # a part that many share, by whose it is: no name from outside begins with a space


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who sent a request, and what it may have."""

    tenant: str  #: the flow it belongs to
    user: str  #: within the tenant; "" where nobody is named
    has_key: bool  #: known by one of Penstock's keys, which must not go upstream
    weight: float
    band: int  #: the rank granted, 0 is the highest
    band_lowered: bool  #: it asked for a higher one
    tenant_label: str  #: for metrics: a configured name, or `other`
    deadline_s: float | None  #: to the first token, from arrival on
    priority: int  #: the body's own, lower first, within its flow
    part: str = ""  #: whose part it shares with others, each in a flow of its own inside it; "": it has its own
    rights: Rights | None = None  #: its key's bounds; None: none but its tenant's
    band_unknown: str = ""  #: it asked for a band by a name that none has, and for no other

    @property
    def account(self) -> str:
        """Whose limits hold."""
        return self.part or self.tenant

    def flow(
        self, levels: tuple[str, ...], model: str, model_weight: float = 1.0
    ) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Where its requests stand in the fairness tree: names and weights, from the outside in.

        Who shares a part stands one step deeper, below that part: where the first level is that says who it is.
        """
        if levels == ("tenant",) and not self.part:
            return (self.tenant,), (self.weight,)
        # Users of different tenants may have the same name; without a level for tenants they still differ.
        user = self.user if "tenant" in levels else f"{self.tenant}/{self.user}"
        names = {"tenant": self.tenant, "user": user, "model": model}
        each = {"tenant": 1.0 if self.part else self.weight, "user": 1.0, "model": model_weight}
        flow: list[str] = []
        weights: list[float] = []
        part = self.part
        for level in levels:
            if part and level != "model":
                flow.append(PART_OF.format(part))
                weights.append(self.weight)
                part = ""
            flow.append(names[level])
            weights.append(each[level])
        return tuple(flow), tuple(weights)


class Claims(msgspec.Struct, frozen=True, gc=False):
    """What a token of the identity provider says of its caller."""

    tenant: str
    user: str  #: "" where it says none
    band: str  #: likewise


class Unauthorized(msgspec.Struct, frozen=True):
    """The caller is not served."""

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
    part: str = ""  #: as of a `Caller`


class Key(msgspec.Struct, frozen=True):
    """A key that is known here."""

    digest: bytes
    owner: TenantProfile
    user: str  #: who uses it, where nobody is named
    rights: Rights | None = None  #: its bounds
    expires_at: float | None = None  #: Unix time; None: never
    claims: Claims | None = None  #: it is a token, good when it was looked at, that says this
