"""Share: several gateways on several machines with one queue.

The gateways of a group have equal settings except those in `OWN`; a hash of the rest is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, SecretStr

from penstock.config import values
from penstock.config.address import listen_address, split_listen
from penstock.config.problems import (
    Document,
    Found,
    Location,
    Problem,
    Refused,
    mapping_of,
    one_of,
    problem,
    show,
    unreadable,
)
from penstock.config.sections.batch import BatchSection, StoreSection, store_form
from penstock.config.sections.elect import (
    KubernetesElection,
    PostgresElection,
    ValkeyElection,
    elect_checks,
)
from penstock.config.sections.section import Section, setting

SECRET_CHARACTERS_MIN = 16  # an eavesdropper on the handshake can guess offline
ALONE_AFTER_S_MAX = 600.0
#: Settings that may differ between gateways of one group.
OWN = frozenset({"listen", "root_path", "workers", "tls", "state_dir", "log", "tracing", "share", "epp"})
_EVERYWHERE = ("", "0.0.0.0", "::")


def place(value: object) -> str:
    address = listen_address(value)
    host, port = split_listen(address)
    if host in _EVERYWHERE or port == 0:
        raise Refused(f"{show(value)}: expected `host:port` as the other gateways reach it")
    return address


def shared_secret(value: object) -> SecretStr:
    return values.hard_to_guess(value, SECRET_CHARACTERS_MIN)


OptionalListen = Annotated[
    str | None, BeforeValidator(values.optional(listen_address)), values.ValueKind("`host:port` or `:port`")
]
OptionalPlace = Annotated[str | None, BeforeValidator(values.optional(place)), values.ValueKind("`host:port`")]
OptionalSharedSecret = Annotated[
    SecretStr | None, BeforeValidator(values.optional(shared_secret)), values.ValueKind("secret text")
]


class ShareTls(Section):
    """Mutual TLS between gateways. All three files, or none."""

    cert: values.OptionalFile = setting(None, "This gateway's certificate chain (PEM).")
    key: values.OptionalFile = setting(None, "Its private key (PEM).")
    ca: values.OptionalFile = setting(None, "An authority (PEM) that signed the group's certificates and no others.")

    @property
    def given(self) -> bool:
        return self.cert is not None and self.key is not None and self.ca is not None


class ElectSection(Section):
    """How the group elects its leader. One of these."""

    static: OptionalPlace = setting(
        None, "The `share.advertise` of a fixed leader. While it is away, each gateway schedules alone."
    )
    kubernetes: KubernetesElection | None = setting(None, "")
    valkey: ValkeyElection | None = setting(None, "")
    postgres: PostgresElection | None = setting(None, "")

    @classmethod
    def given(cls, raw: object) -> list[str]:
        """Returns the elections that are given; it should be one."""
        return [key for key in cls.model_fields if isinstance(raw, Mapping) and raw.get(key) is not None]


class ShareSection(Section):
    """Several gateways with one queue: the leader schedules, all carry bytes (docs/scale.md).

    `listen` enables it. The gateways of a group have equal settings, except `listen`, `root_path`, `workers`, `tls`,
    `state_dir`, `log`, `tracing` and this section.
    """

    removed: ClassVar[dict[str, str]] = {
        "budgets": "a group has one budget per tenant: make one group, or divide `tenants[].limits` between groups",
    }

    listen: OptionalListen = setting(None, "The address for the other gateways of the group, such as `:8081`.")
    advertise: OptionalPlace = setting(
        None, "That address as the others dial it. Default: `share.listen`, if it is a single address."
    )
    secret: OptionalSharedSecret = setting(
        None, "The group's secret, which is never sent. Required without `share.tls`. Never logged or shown."
    )
    tls: ShareTls = ShareTls()
    elect: ElectSection = ElectSection()
    alone_after: values.Duration = setting(
        5.0,
        "A gateway without a leader for this long schedules alone, with its part of slots and limits.",
        ge=1,
        le=ALONE_AFTER_S_MAX,
    )
    name: values.Name = setting("", "This gateway's name. Default: `share.advertise`.")

    @property
    def enabled(self) -> bool:
        return self.listen is not None

    @property
    def place(self) -> str:
        return self.advertise or self.listen or ""

    @property
    def called(self) -> str:
        return self.name or self.place


_TlsKey = Literal["cert", "key", "ca"]
_TLS_KEYS: tuple[_TlsKey, ...] = ("cert", "key", "ca")


def share_checks(document: Document) -> Found:
    """Yields contradictions within `share`, and with the rest."""
    raw = document.get("share")
    share = ShareSection.valid(raw)
    if share is None:
        return
    if not share.enabled:
        if share != ShareSection():
            yield _problem(("listen",), "is required: it enables sharing", "write `:8081`")
        return
    yield from _reached(share, document)
    yield from _proved(share, document)
    yield from _elected(raw, document)
    yield from _beside(document)


def _reached(share: ShareSection, document: Document) -> Found:
    host, port = split_listen(share.listen or "")
    if share.advertise is None and (host in _EVERYWHERE or port == 0):
        yield _problem(
            ("advertise",), "is required, because `share.listen` is not a single address that others can dial"
        )
    if "/" in share.name:
        yield _problem(("name",), "contains a slash, which separates a gateway's name from its workers'")
    listen = document.get("listen")
    if port and isinstance(listen, str) and listen.rpartition(":")[2] == str(port):
        yield _problem(("listen",), "has the port of `listen`: clients and gateways need separate ports")


def _proved(share: ShareSection, document: Document) -> Found:
    some = [key for key in _TLS_KEYS if getattr(share.tls, key) is not None]
    if some and not share.tls.given:
        missing = next(key for key in _TLS_KEYS if key not in some)
        yield _problem(("tls", missing), "is missing: mutual TLS needs all three files")
    for key in some:
        yield from unreadable(document, ("share", "tls", key), getattr(share.tls, key))
    if share.secret is None and not some:
        yield _problem(
            ("secret",),
            "is required, or `share.tls`: otherwise anybody on the network could join the group",
            "`openssl rand -hex 32` makes a good one",
        )


def _elected(raw: object, document: Document) -> Found:
    written = mapping_of(raw)
    yield from one_of(ElectSection.given(written.get("elect")), ElectSection.model_fields, ("share", "elect"))
    yield from elect_checks(written.get("elect"), ("share", "elect"), document)


def _beside(document: Document) -> Found:
    store, batch = StoreSection.valid(store_form(document.get("store"))), BatchSection.valid(document.get("batch"))
    if store is None or batch is None or store.url is not None or not store.enabled:
        return
    if store.data is not None or batch.serve or mapping_of(document.get("identity")).get("made_keys") is True:
        message = "is SQLite, which is for one gateway; gateways that share need one store"
        yield problem(("store",), message, "write `store: postgresql://…`, or serve batches elsewhere")


def _problem(location: Location, message: str, suggestion: str | None = None) -> tuple[Location, Problem]:
    return problem(("share", *location), message, suggestion)
