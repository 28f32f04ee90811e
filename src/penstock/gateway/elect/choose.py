"""Which election do the settings name?"""

# A store's library is imported with it: a gateway without a group loads none.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.config.problems import ConfigError, Problem
from penstock.config.sections.share import ElectSection, ShareSection
from penstock.gateway.elect.elector import Elector
from penstock.gateway.elect.static import StaticElection
from penstock.gateway.endpoints.discovery.base import SourceError
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from penstock.share.election import Election, RecordStore


def election_of(share: ShareSection) -> Election:
    """Returns the election that the settings name. Raises `ConfigError` if it is unusable here."""
    if share.elect.static is not None:
        return StaticElection(share.elect.static, ours=share.place)
    return elector(share.elect, address=share.place, env=os.environ)


def elector(elect: ElectSection, *, address: str, env: Mapping[str, str]) -> Elector:
    """Returns the election by a store, for a gateway that is reached at `address`. Raises `ConfigError`."""
    return Elector(_store(elect, env), address=address)


def _store(elect: ElectSection, env: Mapping[str, str]) -> RecordStore:
    if elect.kubernetes is not None:
        from penstock.gateway.elect.kubernetes_lease import KubernetesLease

        try:
            return KubernetesLease(Access(elect.kubernetes, env), elect.kubernetes.lease)
        except SourceError as error:
            raise ConfigError([Problem("share.elect.kubernetes", str(error))]) from None
    if elect.valkey is not None:
        from penstock.gateway.elect.valkey_hash import ValkeyHash

        try:
            return ValkeyHash(elect.valkey.url.get_secret_value(), elect.valkey.key, ca_file=elect.valkey.ca_file)
        except (ValueError, OSError) as error:
            raise ConfigError([Problem("share.elect.valkey.url", str(error))]) from None
    assert elect.postgres is not None, "the settings are checked for exactly one"
    from penstock.gateway.elect.postgres_row import PostgresRow

    return PostgresRow(elect.postgres.url.get_secret_value(), elect.postgres.name)
