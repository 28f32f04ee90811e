"""Kubernetes: which pods are behind a Service, or have certain labels, now? `kubernetes_pool.py` follows a pool."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.model import EndpointSection
from penstock.config.sections.discovery import Kubernetes
from penstock.gateway.endpoints.discovery.base import Found
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from penstock.gateway.endpoints.discovery.kubernetes_follower import ObjectFollower, connect
from penstock.gateway.endpoints.discovery.kubernetes_objects import SERVICE_LABEL, Pod, Slice

ENDPOINTS_MAX = 4_096


class KubernetesSource:
    """The endpoints behind one Service, or of one selection of pods."""

    def __init__(self, settings: Kubernetes, access: Access) -> None:
        what = f"service {settings.service}" if settings.service else f"pods {settings.selector}"
        self.name = f"kubernetes {access.namespace} {what}"
        self._settings = settings
        self._access = access

    async def watch(self, found: Found) -> None:
        settings, namespace = self._settings, self._access.namespace
        upstream = connect(self._access)
        try:
            if settings.service:
                path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
                select = {"labelSelector": f"{SERVICE_LABEL}={settings.service}"}
                slices = ObjectFollower(upstream, self._access, path, select=select, kind=Slice)
                await slices.follow(lambda objects: found(_endpoints(objects, settings)))
            else:
                path = pods_path(namespace)
                pods = ObjectFollower(
                    upstream, self._access, path, select={"labelSelector": settings.selector}, kind=Pod
                )
                await pods.follow(lambda objects: found(_endpoints(objects, settings)))
        finally:
            upstream.close()


def pods_path(namespace: str) -> str:
    """Returns the path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def _endpoints(objects: Iterable[Pod | Slice], settings: Kubernetes) -> list[EndpointSection]:
    return unique(endpoint for each in objects for endpoint in each.endpoints(settings))


def unique(endpoints: Iterable[EndpointSection]) -> list[EndpointSection]:
    """Returns each endpoint once, by name: a pod may be in two slices, or have addresses of two families."""
    by_name: dict[str, EndpointSection] = {}
    for endpoint in endpoints:
        known = by_name.get(endpoint.name)
        if known is None or endpoint.url < known.url:
            by_name[endpoint.name] = endpoint
    return [by_name[name] for name in sorted(by_name)][:ENDPOINTS_MAX]
