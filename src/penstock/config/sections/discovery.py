"""Discovery: where do endpoints come from that the file does not list?

Each entry of `discovery` names one source. The endpoints that it finds are described like an entry of `endpoints`, but
their addresses come from the source; so engine, models, slots, credential and labels are the same settings here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, SecretStr

from penstock.config import values
from penstock.config.address import PORT_MAX, endpoint_url, listen_address
from penstock.config.problems import Refused, show
from penstock.config.sections.endpoint_tls import EndpointTls
from penstock.config.sections.section import Section, setting

SOURCES_MAX = 64
LABELS_MAX = 64
_HOST = re.compile(r"(?=.{1,253}\.?$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?", re.ASCII)
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        result = values.text(value)
        if not pattern.fullmatch(result):
            raise Refused(f"{show(value)} is not {what}")
        return result

    return read


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


_object_name = _matching(_OBJECT, "the name of a Kubernetes object")
_label_key = _matching(_LABEL_KEY, "a label's key")
HostName = Annotated[str, BeforeValidator(_matching(_HOST, "a host name")), values.ValueKind("host name")]
ObjectName = Annotated[str, BeforeValidator(_object_name), values.ValueKind("name")]
OptionalObjectName = Annotated[str | None, BeforeValidator(values.optional(_object_name)), values.ValueKind("name")]
LabelKey = Annotated[str, BeforeValidator(_label_key), values.ValueKind("label key")]
OptionalLabelKey = Annotated[str | None, BeforeValidator(values.optional(_label_key)), values.ValueKind("label key")]
OptionalPort = Annotated[int | None, BeforeValidator(values.optional(values.whole)), values.ValueKind("whole number")]
OptionalAddress = Annotated[
    str | None, BeforeValidator(values.optional(listen_address)), values.ValueKind("`host:port`")
]
OptionalUrl = Annotated[str | None, BeforeValidator(values.optional(endpoint_url)), values.ValueKind("URL")]
FilePath = Annotated[str, BeforeValidator(_path), values.ValueKind("file")]
PortOrName = Annotated[str, BeforeValidator(_port_or_name), values.ValueKind("port's number or name")]
Selector = Annotated[str, BeforeValidator(_selector), values.ValueKind("label selector")]


class Template(Section):
    """What all endpoints of a source have in common."""

    engine: values.EngineName = setting("auto", "What they speak, as in `endpoints[].engine`.")
    models: values.ServedModels = setting("auto", "The models they serve. `auto` asks each.")
    slots: values.Slots = setting("auto", "How many requests each is sent at a time. `auto` learns it.")
    weight: values.Weight = setting(1.0, "The share of the requests that each gets, as in `endpoints[].weight`.")
    api_key: values.OptionalSecret = setting(None, "The credential sent to them instead of the caller's.")
    tls: EndpointTls | None = setting(None, "How `https` is spoken with them, as in `endpoints[].tls`.")
    labels: Annotated[dict[str, values.Label], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        {}, "Labels that each gets."
    )
    scheme: Literal["http", "https"] = setting("http", "How they are spoken to.")
    kv_events: Literal["off", "auto"] = setting("off", "Whether their KV events are followed, where each tells.")


class Dns(Template):
    """Every address that a name has: `dns: NAME:PORT`, or these settings. An answer that fails changes nothing."""

    name: HostName = setting(..., "The name that is looked up.")
    type: Literal["address", "srv"] = setting(
        "address",
        "`address`: its A and AAAA records, each with `port`. `srv`: its SRV records, which have ports of their own "
        "(needs the extra `dns`).",
    )
    port: OptionalPort = setting(None, "The port of every address. Required with `type: address`.", ge=1, le=PORT_MAX)
    refresh: values.Duration = setting(10.0, "How often it is looked up; sooner when an answer may be kept less.", ge=1)
    resolver: OptionalAddress = setting(None, "The name server to ask instead of the system's (needs the extra `dns`).")


class FileWatch(Section):
    """A file that lists endpoints and may change: `file: PATH`, or these settings. A bad file changes nothing."""

    path: FilePath = setting(..., "A YAML or JSON file: a list of entries as in `endpoints`, or of URLs.")
    refresh: values.Duration = setting(1.0, "How often it is looked whether it changed.", ge=0.1)
    env: Annotated[tuple[values.VariableName, ...], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        ("ENGINE_KEY",),
        "The environment variables that the file may name, as `api_key: ${NAME}`. No other, and nowhere else.",
    )


class Kubernetes(Template):
    """The pods behind a Service, or those with certain labels. In a cluster nothing more has to be said."""

    namespace: OptionalObjectName = setting(None, "Default: the pod's own, else `default`.")
    service: OptionalObjectName = setting(None, "The Service whose EndpointSlices are watched.")
    selector: Selector = setting(
        "", "Instead of `service`: the labels of the pods that are watched, such as `app=vllm`."
    )
    port: PortOrName = setting(
        "", "The port. Default: the first one that the Service, or the pod's first container, has."
    )
    model_label: OptionalLabelKey = setting(
        None, "The label or annotation that names the model (several: with commas). Default: the engine is asked."
    )
    copy_labels: Annotated[tuple[LabelKey, ...], BeforeValidator(values.items(0, LABELS_MAX))] = setting(
        (), "Labels of the pod (or of the Service) that the endpoint gets too."
    )
    server: OptionalUrl = setting(None, "The API server. Default: that of the cluster the gateway runs in.")
    token: values.OptionalSecret = setting(None, "The credential. Default: what `token_file` holds.")
    token_file: values.OptionalFile = setting(None, "Read again for every connection, because such tokens are renewed.")
    ca_file: values.OptionalFile = setting(None, "The certificates that the API server's is checked against.")


class ClusterAccount(Protocol):
    """How an API server is reached, and as whom: what sections that name one have in common."""

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
    """Where endpoints are found that are not listed. Each entry has one of these."""

    dns: Annotated[Dns | None, BeforeValidator(_short_dns)] = setting(None, "")
    file: Annotated[FileWatch | None, _short("path")] = setting(None, "")
    kubernetes: Kubernetes | None = setting(None, "")

    @classmethod
    def given(cls, raw: object) -> list[str]:
        """Returns the kinds of source that an entry, as written, has; it should be one."""
        return [key for key in cls.model_fields if isinstance(raw, Mapping) and raw.get(key) is not None]
