"""Discovery: endpoints that the file does not list.

Each entry of `discovery` is one source. It has the settings of an entry of `endpoints` except the addresses, which come
from the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Protocol

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.address import PORT_MAX, listen_address
from penstock.config.problems import (
    Document,
    Found,
    Location,
    Refused,
    items_of,
    missing_extra,
    one_of,
    problem,
    show,
    unreadable,
)
from penstock.config.sections.endpoint_tls import EndpointTls, TlsFileError, client_context
from penstock.config.sections.section import Section, setting

SOURCES_MAX = 64
LABELS_MAX = 64
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


def _port_or_name(value: object) -> str:
    """Returns a port's number or name as text; empty if not set."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not _PORT_NAME.fullmatch(value):
        raise Refused(f"{show(value)}: expected a port's number or name")
    if value.isdecimal() and not 0 < int(value) <= PORT_MAX:
        raise Refused(f"{show(value)}: the port has to be a number from 1 to {PORT_MAX}")
    return value


def _path(value: object) -> str:
    result = values.text(value)
    if not result.strip():
        raise Refused("an empty text is not the name of a file")
    return result


def _selector(value: object) -> str:
    result = values.text(value)
    if any(character in result for character in "&#?%"):
        raise Refused(f"{show(value)} is not a label selector", "for example app=vllm,tier=gpu")
    return result.strip()


_host = values.matching(
    re.compile(r"(?=.{1,253}\.?$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?", re.ASCII), "a host name"
)
_object_name = values.matching(
    re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII), "the name of a Kubernetes object"
)
_label_key = values.matching(
    re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII), "a label's key"
)
HostName = Annotated[str, BeforeValidator(_host), values.ValueKind("host name")]
ObjectName = Annotated[str, BeforeValidator(_object_name), values.ValueKind("name")]
OptionalObjectName = Annotated[str | None, BeforeValidator(values.optional(_object_name)), values.ValueKind("name")]
LabelKey = Annotated[str, BeforeValidator(_label_key), values.ValueKind("label key")]
OptionalLabelKey = Annotated[str | None, BeforeValidator(values.optional(_label_key)), values.ValueKind("label key")]
OptionalPort = Annotated[int | None, BeforeValidator(values.optional(values.whole)), values.ValueKind("whole number")]
OptionalAddress = Annotated[
    str | None, BeforeValidator(values.optional(listen_address)), values.ValueKind("`host:port`")
]
FilePath = Annotated[str, BeforeValidator(_path), values.ValueKind("file")]
PortOrName = Annotated[str, BeforeValidator(_port_or_name), values.ValueKind("port's number or name")]
Selector = Annotated[str, BeforeValidator(_selector), values.ValueKind("label selector")]


class Template(Section):
    """Settings of all endpoints of a source."""

    engine: values.EngineName = setting("auto", "As `endpoints[].engine`.")
    models: values.ServedModels = setting(
        "auto", "As `endpoints[].models`; `auto` asks each. Requests wait for named ones while there is no endpoint."
    )
    slots: values.Slots = setting("auto", "Concurrent requests of each; `auto` learns the number.")
    weight: values.Weight = setting(1.0, "As `endpoints[].weight`.")
    api_key: values.OptionalSecret = setting(None, "The credential sent to them instead of the client's.")
    tls: EndpointTls | None = setting(None, "As `endpoints[].tls`.")
    labels: Annotated[dict[str, values.Label], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        {}, "Labels of each."
    )
    scheme: Literal["http", "https"] = setting("http", "HTTP or HTTPS.")
    kv_events: Literal["off", "auto"] = setting("off", "Whether to follow the KV events that each reports.")


class Dns(Template):
    """All addresses of a name: `dns: NAME:PORT`, or these settings. A failed lookup changes nothing."""

    name: HostName = setting(..., "The name to look up.")
    type: Literal["address", "srv"] = setting(
        "address", "`address`: A and AAAA records with `port`. `srv`: SRV records with their own ports (extra `dns`)."
    )
    port: OptionalPort = setting(None, "Required with `type: address`.", ge=1, le=PORT_MAX)
    refresh: values.Duration = setting(10.0, "Between two lookups; sooner if a record's TTL is shorter.", ge=1)
    resolver: OptionalAddress = setting(None, "A name server instead of the system's (extra `dns`).")


TOKEN_REMOVED: Final = {"token": "write it to a file and name that, `token_file: PATH`"}


class FileWatch(Section):
    """A file of endpoints that may change: `file: PATH`, or these settings. A bad file changes nothing."""

    removed: ClassVar[dict[str, str]] = {"refresh": "delete it: the file is checked every second"}

    path: FilePath = setting(..., "A YAML or JSON file: a list of entries as in `endpoints`, or of URLs.")
    env: Annotated[tuple[values.VariableName, ...], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        ("ENGINE_KEY",), "Environment variables that the file may use, only as `api_key: ${NAME}`."
    )


class Kubernetes(Template):
    """The pods behind a Service, of an InferencePool, or with certain labels. In a cluster, one of these suffices."""

    removed: ClassVar[dict[str, str]] = TOKEN_REMOVED

    namespace: OptionalObjectName = setting(None, "Default: the pod's own, or `default`.")
    service: OptionalObjectName = setting(None, "The Service to watch.")
    pool: OptionalObjectName = setting(
        None,
        "Instead of `service`: the InferencePool whose pods, InferenceObjectives and InferenceModelRewrites to follow.",
    )
    selector: Selector = setting("", "Instead of `service`: labels of the pods, such as `app=vllm`.")
    port: PortOrName = setting("", "Default: the first port of the Service, or of the pod's first container.")
    model_label: OptionalLabelKey = setting(
        None, "The label or annotation that names the model (several: with commas). Default: ask the engine."
    )
    copy_labels: Annotated[tuple[LabelKey, ...], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        (), "Labels of the pod (or the Service) to copy."
    )
    server: values.OptionalUrl = setting(None, "The API server. Default: the gateway's own cluster.")
    token_file: values.OptionalFile = setting(
        None, "The credential, read again for every connection, because tokens are rotated."
    )
    ca_file: values.OptionalFile = setting(None, "CA certificates for the API server.")


class ClusterAccount(Protocol):
    """The address and credential of an API server, in every section that names one."""

    @property
    def namespace(self) -> str | None: ...
    @property
    def server(self) -> str | None: ...
    @property
    def token_file(self) -> str | None: ...
    @property
    def ca_file(self) -> str | None: ...


def _short(key: str) -> BeforeValidator:
    """`file: PATH` for `file: {path: PATH}`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _short_dns(value: object) -> object:
    if not isinstance(value, str):
        return value
    name, colon, port = value.rpartition(":")
    return {"name": name, "port": port} if colon else {"name": value}


class SourceSection(Section):
    """Sources of endpoints. Each entry has one of these."""

    dns: Annotated[Dns | None, BeforeValidator(_short_dns)] = setting(None, "")
    file: Annotated[FileWatch | None, _short("path")] = setting(None, "")
    kubernetes: Kubernetes | None = setting(None, "")

    @classmethod
    def given(cls, raw: object) -> list[str]:
        """Returns the kinds of source that an entry, as written, has; it should be one."""
        return [key for key in cls.model_fields if isinstance(raw, Mapping) and raw.get(key) is not None]


def discovery_checks(document: Document) -> Found:
    for index, item in enumerate(items_of(document.get("discovery"))):
        if not isinstance(item, Mapping):
            continue
        at: Location = ("discovery", index)
        kinds = SourceSection.given(item)
        if len(kinds) != 1:
            yield from one_of(kinds, SourceSection.model_fields, at)
            continue
        source = SourceSection.valid({kinds[0]: item[kinds[0]]})
        if source is None:
            continue
        if source.dns is not None:
            yield from _dns(source.dns, (*at, "dns"))
            yield from tls_checks(source.dns.tls, (*at, "dns"), is_https=source.dns.scheme == "https")
        if source.kubernetes is not None:
            yield from _kubernetes(source.kubernetes, document, (*at, "kubernetes"))
            tls, scheme = source.kubernetes.tls, source.kubernetes.scheme
            yield from tls_checks(tls, (*at, "kubernetes"), is_https=scheme == "https")


def _dns(dns: Dns, at: Location) -> Found:
    if dns.type == "address" and dns.port is None:
        yield problem((*at, "port"), "is required with `type: address`", f"write `dns: {dns.name}:8000`")
    if dns.type == "srv" and dns.port is not None:
        yield problem((*at, "port"), "is not used with `type: srv`: the records have ports of their own")
    if dns.type == "srv" or dns.resolver:
        key = "type" if dns.type == "srv" else "resolver"
        yield from missing_extra((*at, key), "needs a package that is not installed", "dns", "dns")


def _kubernetes(kubernetes: Kubernetes, document: Document, at: Location) -> Found:
    if sum((kubernetes.service is not None, kubernetes.pool is not None, bool(kubernetes.selector))) != 1:
        yield problem(at, "expected one of `service`, `selector` and `pool`")
    if kubernetes.pool is not None and kubernetes.port:
        yield problem((*at, "port"), "is not used with `pool`, which has target ports of its own")
    yield from account_checks(kubernetes, document, at)


def account_checks(kubernetes: ClusterAccount, document: Document, at: Location) -> Found:
    """Yields the problems of an API server's settings."""
    if kubernetes.server is None:
        for key in ("token_file", "ca_file"):
            if getattr(kubernetes, key) is not None:
                yield problem((*at, key), "is given, but `server` is not", "in a cluster none of them is needed")
    for key in ("token_file", "ca_file"):
        yield from unreadable(document, (*at, key), getattr(kubernetes, key))


def tls_checks(tls: EndpointTls | None, at: Location, *, is_https: bool) -> Found:
    if tls is None:
        return
    at = (*at, "tls")
    if not is_https:
        yield problem(at, "is given, but the endpoint uses `http`", "write `https`")
    if (tls.cert is None) != (tls.key is None):
        missing, given = ("key", "cert") if tls.key is None else ("cert", "key")
        yield problem((*at, missing), f"is missing, but `{given}` is given", "a client certificate needs both")
        return
    if not tls.verify and tls.ca is not None:
        yield problem((*at, "verify"), "is false, so `ca` is not used", "leave one of them out")
    try:
        client_context(tls)
    except TlsFileError as error:
        yield problem((*at, error.key), error.why)
