"""Share: how do several gateways, each on a machine of its own, become one queue?

Every gateway of a group has the same settings but for what is its own: where it listens, its name, its certificates,
how many workers it has, how it logs (`OWN`). What the others have to share is told apart by a hash of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, SecretStr, ValidationError

from penstock.config import values
from penstock.config.address import listen_address, split_listen
from penstock.config.problems import Location, Problem, Refused, listing, show, unreadable, write_path
from penstock.config.sections.elect import (
    BudgetsInValkey,
    KubernetesElection,
    PostgresElection,
    ValkeyElection,
    elect_checks,
)
from penstock.config.sections.section import Section, setting

SECRET_CHARACTERS_MIN = 16  # who hears a challenge and its answer may guess as fast as a machine can
ALONE_AFTER_S_MAX = 600.0
#: What may differ between gateways of one group.
OWN = frozenset({"listen", "root_path", "workers", "tls", "state_dir", "log", "tracing", "share"})
_EVERYWHERE = ("", "0.0.0.0", "::")


def place(value: object) -> str:
    """An address that others can dial: a host, and a port that is not 0."""
    address = listen_address(value)
    host, port = split_listen(address)
    if host in _EVERYWHERE or port == 0:
        raise Refused(f"{show(value)}: expected `host:port` as the other gateways reach it")
    return address


def shared_secret(value: object) -> SecretStr:
    """The secret that gateways of one group have in common. A short one could be guessed from what passes."""
    result = values.secret(value)
    written = result.get_secret_value()
    if len(written) < SECRET_CHARACTERS_MIN or len(set(written)) < values.TOKEN_DIFFERENT_MIN:
        raise Refused(
            f"is too easily guessed: expected at least {SECRET_CHARACTERS_MIN} characters, "
            f"{values.TOKEN_DIFFERENT_MIN} of them different",
            "`openssl rand -hex 32` makes a good one",
        )
    return result


OptionalListen = Annotated[
    str | None, BeforeValidator(values.optional(listen_address)), values.ValueKind("`host:port` or `:port`")
]
OptionalPlace = Annotated[str | None, BeforeValidator(values.optional(place)), values.ValueKind("`host:port`")]
OptionalSharedSecret = Annotated[
    SecretStr | None, BeforeValidator(values.optional(shared_secret)), values.ValueKind("secret text")
]


class ShareTls(Section):
    """Certificates with which gateways prove to each other who they are, and hide what they say. All three, or none."""

    cert: values.OptionalFile = setting(None, "This gateway's certificate chain, as a PEM file.")
    key: values.OptionalFile = setting(None, "Its private key, as a PEM file.")
    ca: values.OptionalFile = setting(
        None, "The authority that signed the certificates of the group, and nothing else, as a PEM file."
    )

    @property
    def given(self) -> bool:
        return self.cert is not None and self.key is not None and self.ca is not None


class ElectSection(Section):
    """Who says which gateway of the group decides. One of these."""

    static: OptionalPlace = setting(
        None, "The one whose `share.advertise` this is. While it is away, each of the others decides alone."
    )
    kubernetes: KubernetesElection | None = setting(None, "")
    valkey: ValkeyElection | None = setting(None, "")
    postgres: PostgresElection | None = setting(None, "")

    @classmethod
    def given(cls, raw: object) -> list[str]:
        """Returns the ways of electing that are written; it should be one."""
        return [key for key in cls.model_fields if isinstance(raw, Mapping) and raw.get(key) is not None]


class BudgetsSection(Section):
    """Where tenants' `tokens_per_minute` and `tokens_per_day` are kept for several groups, as in several clusters.

    Each group tells once a second what was used there; no request waits for it.
    """

    valkey: BudgetsInValkey | None = setting(None, "")


class ShareSection(Section):
    """Several gateways, on several machines, with one queue: one of them decides, all carry bytes (docs/scale.md).

    `listen` switches it on. The gateways of a group have equal settings, but for `listen`, `root_path`, `workers`,
    `tls`, `state_dir`, `log`, `tracing` and what stands here.
    """

    listen: OptionalListen = setting(None, "Where the other gateways of the group reach this one. `:8081`.")
    advertise: OptionalPlace = setting(
        None, "The same, as the others have to write it. Default: `share.listen`, where that names one address."
    )
    secret: OptionalSharedSecret = setting(
        None,
        "What gateways of the group prove to each other that they know; it does not pass between them. Needed without "
        "`share.tls`. Never logged or shown.",
    )
    tls: ShareTls = ShareTls()
    elect: ElectSection = ElectSection()
    alone_after: values.Duration = setting(
        5.0,
        "A gateway that has reached no one who decides for so long decides alone, with its part of slots and limits.",
        ge=1,
        le=ALONE_AFTER_S_MAX,
    )
    budgets: BudgetsSection = BudgetsSection()
    name: values.Name = setting("", "What people call this gateway. Default: `share.advertise`.")

    @property
    def enabled(self) -> bool:
        return self.listen is not None

    @property
    def place(self) -> str:
        """Where the others reach this one."""
        return self.advertise or self.listen or ""

    @property
    def called(self) -> str:
        """The gateway's name."""
        return self.name or self.place


Found = Iterator[tuple[Location, Problem]]
_TlsKey = Literal["cert", "key", "ca"]
_TLS_KEYS: tuple[_TlsKey, ...] = ("cert", "key", "ca")


def share_checks(document: Mapping[str, object]) -> Found:
    """What is fine one by one and does not fit together, or beside the rest."""
    raw = document.get("share")
    try:
        share = ShareSection.model_validate(raw)
    except ValidationError:
        return
    if not share.enabled:
        if share != ShareSection():
            yield _problem(("listen",), "is needed: without it nothing is shared", "write `:8081`")
        return
    yield from _reached(share, document)
    yield from _proved(share, document)
    yield from _elected(raw, document)
    yield from _beside(document)


def _reached(share: ShareSection, document: Mapping[str, object]) -> Found:
    host, port = split_listen(share.listen or "")
    if share.advertise is None and (host in _EVERYWHERE or port == 0):
        yield _problem(("advertise",), "is needed, for `share.listen` names no single address that others can dial")
    if "/" in share.name:
        yield _problem(("name",), "has a slash, which stands between a gateway's name and its workers'")
    listen = document.get("listen")
    if port and isinstance(listen, str) and listen.rpartition(":")[2] == str(port):
        yield _problem(("listen",), "has the port of `listen`: callers and gateways each need one of their own")


def _proved(share: ShareSection, document: Mapping[str, object]) -> Found:
    some = [key for key in _TLS_KEYS if getattr(share.tls, key) is not None]
    if some and not share.tls.given:
        missing = next(key for key in _TLS_KEYS if key not in some)
        yield _problem(("tls", missing), "is missing: both ends show a certificate, and check the other's")
    for key in some:
        if (problem := unreadable(document, ("share", "tls", key), getattr(share.tls, key))) is not None:
            yield ("share", "tls", key), problem
    if share.secret is None and not some:
        yield _problem(
            ("secret",),
            "is needed, or `share.tls`: whoever reached the port would have a say in the queue",
            "`openssl rand -hex 32` makes a good one",
        )


def _elected(raw: object, document: Mapping[str, object]) -> Found:
    written = raw.get("elect") if isinstance(raw, Mapping) else None
    kinds = ElectSection.given(written)
    if len(kinds) != 1:
        found = f"has {listing(kinds).replace(' or ', ' and ')}" if kinds else "is empty"
        yield _problem(("elect",), f"{found}: expected one of {listing(list(ElectSection.model_fields))}")
    yield from elect_checks(written, ("share", "elect"), document)
    yield from elect_checks(raw.get("budgets") if isinstance(raw, Mapping) else None, ("share", "budgets"), document)


def _beside(document: Mapping[str, object]) -> Found:
    batch = document.get("batch")
    if isinstance(batch, Mapping) and batch.get("data") and batch.get("store", "sqlite") == "sqlite":
        location: Location = ("batch", "store")
        message = "is `sqlite`, which one gateway alone can have; gateways that share need one store for all"
        yield location, Problem(write_path(location), message, "write `store: postgres`, or leave batches to a gateway")


def _problem(location: Location, message: str, suggestion: str | None = None) -> tuple[Location, Problem]:
    at: Location = ("share", *location)
    return at, Problem(write_path(at), message, suggestion)
