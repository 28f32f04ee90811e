"""Discovery: endpoints that the file does not list.

Each entry of `discovery` is one source. It has the settings of an entry of `endpoints` except the addresses, which come
from the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, SecretStr

from penstock.config import values
from penstock.config.address import PORT_MAX, listen_address
from penstock.config.problems import Refused, show
from penstock.config.sections.endpoint_tls import EndpointTls
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
        "auto", "The models they serve; `auto` asks each. Requests wait for named ones while there is no endpoint."
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


class FileWatch(Section):
    """A file of endpoints that may change: `file: PATH`, or these settings. A bad file changes nothing."""

    path: FilePath = setting(..., "A YAML or JSON file: a list of entries as in `endpoints`, or of URLs.")
    refresh: values.Duration = setting(1.0, "Between two looks for changes.", ge=0.1)
    env: Annotated[tuple[values.VariableName, ...], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        ("ENGINE_KEY",), "Environment variables that the file may use, only as `api_key: ${NAME}`."
    )


class Kubernetes(Template):
    """The pods behind a Service, of an InferencePool, or with certain labels. In a cluster, one of these suffices."""

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
    token: values.OptionalSecret = setting(None, "The credential. Default: from `token_file`.")
    token_file: values.OptionalFile = setting(None, "Read again for every connection, because tokens are rotated.")
    ca_file: values.OptionalFile = setting(None, "CA certificates for the API server.")


class ClusterAccount(Protocol):
    """The address and credential of an API server, in every section that names one."""

    @property
    def namespace(self) -> str | None: ...
    @property
    def server(self) -> str | None: ...
    @property
    def token(self) -> SecretStr | None: ...
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
