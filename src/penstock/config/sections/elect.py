"""`share.elect`: the store by which gateways elect their leader."""

from __future__ import annotations

from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, SecretStr

from penstock.config import values
from penstock.config.problems import (
    Document,
    Found,
    Location,
    Refused,
    listing,
    mapping_of,
    missing_extra,
    problem,
    show,
    unreadable,
)
from penstock.config.sections.discovery import TOKEN_REMOVED, ObjectName, OptionalObjectName, account_checks
from penstock.config.sections.section import Section, setting

VALKEY_SCHEMES = ("valkey", "valkeys", "redis", "rediss", "unix")
POSTGRES_SCHEMES = ("postgresql", "postgres")
NAME_CHARACTERS_MAX = 200


def _name(value: object) -> str:
    result = values.text(value)
    if not 0 < len(result) <= NAME_CHARACTERS_MAX or not result.isprintable() or " " in result:
        raise Refused(f"{show(value)} is not a name: expected 1 to {NAME_CHARACTERS_MAX} characters without spaces")
    return result


RecordName = Annotated[str, BeforeValidator(_name), values.ValueKind("name")]
SecretUrl = Annotated[SecretStr, BeforeValidator(values.secret), values.ValueKind("secret URL")]


class KubernetesElection(Section):
    """A Lease of `coordination.k8s.io`. In a cluster `{}` suffices."""

    removed: ClassVar[dict[str, str]] = TOKEN_REMOVED

    lease: ObjectName = setting("penstock", "The Lease; gateways with the same one form a group.")
    namespace: OptionalObjectName = setting(None, "Default: the pod's own, or `default`.")
    server: values.OptionalUrl = setting(None, "The API server. Default: the gateway's own cluster.")
    token_file: values.OptionalFile = setting(
        None, "The credential, read again for every request, because tokens are rotated."
    )
    ca_file: values.OptionalFile = setting(None, "CA certificates for the API server.")


class ValkeyElection(Section):
    """A key in Valkey or Redis (extra `valkey`)."""

    url: SecretUrl = setting(..., "`valkey://user:password@host:6379/0`; `valkeys` for TLS. Never shown.")
    key: RecordName = setting("penstock", "The prefix of its keys; gateways with the same one form a group.")
    ca_file: values.OptionalFile = setting(None, "With `valkeys`: CA certificates for the server.")


class PostgresElection(Section):
    """A row in PostgreSQL (extra `postgres`)."""

    url: SecretUrl = setting(..., "`postgresql://user:password@host/database`. Never shown.")
    name: RecordName = setting("penstock", "The row; gateways with the same one form a group.")


def elect_checks(elect: object, at: Location, document: Document) -> Found:
    """Yields the problems of an election, written at `at`, that its types do not show."""
    raw = mapping_of(elect)
    if raw.get("kubernetes") is not None and (cluster := KubernetesElection.valid(raw["kubernetes"])) is not None:
        yield from account_checks(cluster, document, (*at, "kubernetes"))
    if raw.get("valkey") is not None and (valkey := ValkeyElection.valid(raw["valkey"])) is not None:
        here: Location = (*at, "valkey")
        yield from _url((*here, "url"), valkey.url, VALKEY_SCHEMES)
        yield from missing_extra(here, "needs redis, which is not installed", "valkey", "redis")
        yield from unreadable(document, (*here, "ca_file"), valkey.ca_file)
    if raw.get("postgres") is not None and (postgres := PostgresElection.valid(raw["postgres"])) is not None:
        here = (*at, "postgres")
        yield from _url((*here, "url"), postgres.url, POSTGRES_SCHEMES)
        yield from missing_extra(here, "needs psycopg, which is not installed", "postgres", "psycopg")


def _url(at: Location, url: SecretStr, schemes: tuple[str, ...]) -> Found:
    try:
        scheme = urlsplit(url.get_secret_value()).scheme
    except ValueError:
        scheme = ""
    if scheme not in schemes:
        expected = listing([f"{each}://" for each in schemes])
        yield problem(at, f"expected a URL that begins with {expected}")
