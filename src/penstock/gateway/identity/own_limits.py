"""Limits of keys and of models within a tenant: which requests have them, and under which names?

The names are those of the core's accounts. A request of a limited key or model has a flow of its own within its
tenant's, so that it can be held without holding the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.config.sections.tenancy import ANONYMOUS, OwnLimits, TenantKey, TenantLimits
from penstock.core.queueing.quotas import own_account, whose
from penstock.core.values.settings import Limits
from penstock.gateway.identity.rights import core_limits, read

if TYPE_CHECKING:
    from penstock.batch.values import MadeKey


def all_limits(settings: Settings) -> dict[str, Limits]:
    """Returns the limits of the settings, by account."""
    sections: dict[str, OwnLimits] = {tenant.name: tenant.limits for tenant in settings.tenants}
    sections[ANONYMOUS] = settings.anonymous.limits
    for tenant in settings.tenants:
        for key in tenant.keys:
            sections[own_account(tenant.name, "key", name_of(key))] = key.limits
    for name, limits in list(sections.items()):
        if isinstance(limits, TenantLimits):
            for model, own in limits.models.items():
                sections[own_account(name, "model", model)] = own
    return {name: found for name, its in sections.items() if (found := core_limits(its)) is not None}


def name_of(key: TenantKey) -> str:
    """Returns the name of a key of the settings: its own, or the beginning of its hash."""
    return key.name or key.hash.removeprefix("sha256:")[:12]


def made_limits(keys: Iterable[MadeKey]) -> dict[str, Limits]:
    """Returns the limits of issued keys, by account."""
    found: dict[str, Limits] = {}
    for key in keys:
        rights = read(key.rights)
        if rights is not None and rights.limits is not None:
            found[own_account(key.tenant, "key", key.name)] = rights.limits
    return found


class OwnAccounts:
    """Finds the accounts of requests beside their tenant's."""

    def __init__(self) -> None:
        self._file: frozenset[str] = frozenset()
        self._made: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self.divided: frozenset[str] = frozenset()  #: tenants of which a key or a model has limits

    def follow(self, settings: Settings) -> None:
        self._file = frozenset([name for name in all_limits(settings) if "\n" in name])
        self._look()

    def made(self, keys: Iterable[MadeKey]) -> None:
        self._made = frozenset(made_limits(keys))
        self._look()

    def _look(self) -> None:
        self._known = self._file | self._made
        self.divided = frozenset([name.partition("\n")[0] for name in self._known])

    def also(self, account: str, key: str, model: str) -> tuple[str, ...] | None:
        """Returns the accounts of a request of a tenant (or part) beside that one; None: none of its keys or models
        has limits.
        """
        if account not in self.divided:
            return None
        names = (own_account(account, "key", key), own_account(account, "model", model))
        return tuple([name for name in names if name in self._known])

    def of_key(self, account: str, key: str) -> list[str]:
        """Returns the accounts of a key, and those of its tenant's models."""
        name, prefix = own_account(account, "key", key), own_account(account, "model", "")
        return [one for one in sorted(self._known) if one == name or one.startswith(prefix)]


def own_flow(also: tuple[str, ...]) -> str:
    """Returns the name of a flow whose requests have these accounts beside their tenant's; "": of all others."""
    return " ".join([" ".join(whose(name)[1:]) for name in also])
