"""Kubernetes: which endpoints does a pod, or a slice of a Service, stand for?

Only the fields that we read are declared, so objects of any version of the API are accepted as long as these fields are
as they were. Readiness is Kubernetes' own verdict: a pod that is not ready, or is being deleted, stands for no
endpoint, and the endpoint it stood for is drained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from penstock.config.model import EndpointSection
from penstock.config.sections.discovery import Kubernetes
from penstock.gateway.endpoints.discovery.base import described

PORT_DEFAULT = 8000  # vLLM's, for a pod that declares no port
SERVICE_LABEL = "kubernetes.io/service-name"

T = TypeVar("T")


class ApiPart(msgspec.Struct, rename="camel", frozen=True):
    """A part of an object."""


class Meta(ApiPart, frozen=True):
    """Identity of an object. A `uid` is never used again, a `name` may be."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class _ContainerPort(ApiPart, frozen=True):
    container_port: int
    name: str | None = None
    protocol: str | None = None


class _Container(ApiPart, frozen=True):
    ports: list[_ContainerPort] | None = None


class _PodSpec(ApiPart, frozen=True):
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None


class _Condition(ApiPart, frozen=True):
    type: str
    status: str


class _PodStatus(ApiPart, frozen=True):
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[_Condition] | None = None


class Pod(ApiPart, frozen=True):
    """A pod. It stands for one endpoint, in a pool for one per target port."""

    metadata: Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    def endpoints(self, settings: Kubernetes) -> Iterator[EndpointSection]:
        """Yields the endpoint that the pod stands for; nothing if the pod is not ready."""
        port = self._port(settings.port)
        if port:
            yield from self.at([port], settings)

    def at(self, ports: Sequence[int], settings: Kubernetes) -> Iterator[EndpointSection]:
        """Yields an endpoint per port, named by pod and port if there are several; nothing if the pod is not ready."""
        is_ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
        if self.metadata.deletion_timestamp is not None or not is_ready or not self.status.pod_ip:
            return
        for port in ports:
            name = self.metadata.name if len(ports) == 1 else f"{self.metadata.name}:{port}"
            yield from _endpoint(settings, self.status.pod_ip, port, name, self.metadata)

    def _port(self, wanted: str) -> int | None:
        if wanted.isdecimal():
            return int(wanted)
        containers = [*self.spec.containers, *(self.spec.init_containers or ())]  # sidecars are init containers
        ports = [port for container in containers for port in container.ports or ()]
        if wanted:
            return next((port.container_port for port in ports if port.name == wanted), None)
        return next((port.container_port for port in ports if port.protocol in (None, "TCP")), PORT_DEFAULT)


class _SlicePort(ApiPart, frozen=True):
    port: int | None = None
    name: str | None = None
    protocol: str | None = None


class _SliceConditions(ApiPart, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class _TargetRef(ApiPart, frozen=True):
    kind: str | None = None
    name: str | None = None


class _SliceEndpoint(ApiPart, frozen=True):
    addresses: list[str] = []
    conditions: _SliceConditions = _SliceConditions()
    target_ref: _TargetRef | None = None
    zone: str | None = None


class Slice(ApiPart, frozen=True):
    """An EndpointSlice: some of the endpoints behind a Service. One endpoint may be in two slices for a moment."""

    metadata: Meta
    address_type: str = "IPv4"
    endpoints_: list[_SliceEndpoint] | None = msgspec.field(name="endpoints", default=None)
    ports: list[_SlicePort] | None = None

    def endpoints(self, settings: Kubernetes) -> Iterator[EndpointSection]:
        """Yields the endpoints of the slice that are ready; maybe none."""
        port = self._port(settings.port)
        if self.metadata.deletion_timestamp is not None or port is None:
            return
        for part in self.endpoints_ or ():
            # The API says of `ready`: "A nil value should be interpreted as true".
            if part.conditions.ready is False or part.conditions.terminating or not part.addresses:
                continue
            name = part.target_ref.name if part.target_ref is not None else None
            yield from _endpoint(settings, part.addresses[0], port, name, self.metadata, zone=part.zone)

    def _port(self, wanted: str) -> int | None:
        ports = [port for port in self.ports or () if port.port]
        if wanted.isdecimal():
            return int(wanted)
        if wanted:
            ports = [port for port in ports if port.name == wanted]
        return next((port.port for port in ports if port.protocol in (None, "TCP")), None)


def _endpoint(
    settings: Kubernetes, host: str, port: int, name: str | None, meta: Meta, *, zone: str | None = None
) -> Iterator[EndpointSection]:
    more: dict[str, object] = {}
    own = meta.labels or {}
    copied = {key: own[key] for key in settings.copy_labels if key in own}
    labels = {**settings.labels, **({"zone": zone} if zone else {}), **copied}
    if settings.model_label is not None:
        told = own.get(settings.model_label) or (meta.annotations or {}).get(settings.model_label)
        models = [part.strip() for part in (told or "").split(",") if part.strip()]
        if models:
            more["models"] = models
    endpoint = described(settings, host, port, name=name, labels=labels, **more)
    if endpoint is not None:
        yield endpoint


class _ListMeta(ApiPart, frozen=True):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class ObjectPage(ApiPart, Generic[T], frozen=True):
    """One page of a list of objects."""

    metadata: _ListMeta
    items: list[T] | None = None


class WatchEvent(ApiPart, frozen=True):
    """One line of a watch. `object` is parsed later, by `type`."""

    type: str
    object: msgspec.Raw


class ApiStatus(ApiPart, frozen=True):
    """The content of an ERROR event, and of an answer that is no success."""

    code: int | None = None
    message: str | None = None
    reason: str | None = None


class Bookmark(ApiPart, frozen=True):
    """The content of a BOOKMARK event: its version is the watch's progress."""

    metadata: Meta
