"""Limits of keys and of models within a tenant: which requests have them, and under which names?

The names are those of the core's accounts. A request of a limited key or model has a flow of its own within its
tenant's, so that it can be held without holding the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.model import Settings
from penstock.config.sections.tenancy import ANONYMOUS, OwnLimits, TenantLimits
from penstock.core.queueing.quotas import own_account, whose
from penstock.core.values.settings import Limits
from penstock.gateway.identity.callers import named

NONE = Limits()


def core_limits(limits: OwnLimits) -> Limits | None:
    """Returns the limits as the scheduler knows them; None for none at all."""
    found = Limits(**limits.model_dump(exclude={"models"}))
    return None if found == NONE else found


def all_limits(settings: Settings) -> dict[str, Limits]:
    """Returns the limits of the settings, by account."""
    sections: dict[str, OwnLimits] = {tenant.name: tenant.limits for tenant in settings.tenants}
    sections[ANONYMOUS] = settings.anonymous.limits
    for tenant in settings.tenants:
        for key in tenant.keys:
            sections[own_account(tenant.name, "key", named(key))] = key.limits
    for name, limits in list(sections.items()):
        if isinstance(limits, TenantLimits):
            for model, own in limits.models.items():
                sections[own_account(name, "model", model)] = own
    return {name: found for name, its in sections.items() if (found := core_limits(its)) is not None}


class OwnAccounts:
    """Finds the accounts of requests beside their tenant's."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._divided: frozenset[str] = frozenset()  # tenants of which a key or a model has limits

    def follow(self, settings: Settings) -> None:
        """Go by the limits of these settings."""
        self._known = frozenset([name for name in all_limits(settings) if "\n" in name])
        self._divided = frozenset([name.partition("\n")[0] for name in self._known])

    def also(self, account: str, key: str, model: str) -> tuple[str, ...] | None:
        """Returns the accounts of a request of a tenant (or part) beside that one; None: none of its keys or models
        has limits.
        """
        if account not in self._divided:
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


def divided(settings: Settings) -> Mapping[str, float]:
    """Returns the weights of the tenants whose keys or models have limits."""
    names = {name.partition("\n")[0] for name in all_limits(settings) if "\n" in name}
    return {tenant.name: tenant.weight for tenant in settings.tenants if tenant.name in names}
