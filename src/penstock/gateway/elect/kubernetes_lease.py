"""The record as a Kubernetes Lease: nothing to install, and `kubectl get lease` shows the leader.

`leaseTransitions` is the epoch, and the holder's identity is its address and its life, as client-go's is a host and a
life. The server takes a change only if it names the version that it changes. `renewTime` is for people: only its
changes count, as in client-go, because two machines' clocks are not synchronised.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock import clock
from penstock.gateway.endpoints.discovery.base import SourceError
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from penstock.gateway.endpoints.discovery.kubernetes_objects import ApiStatus
from penstock.http.client.pool import Response, Upstream, UpstreamException, UpstreamTimeouts
from penstock.share.election import TTL_S, Claim, ElectionError, Record

REQUEST_S: Final = 1.0
BYTES_MAX: Final = 256 << 10  # of a Lease: annotations are all that can make it large
EPOCH_MAX: Final = 2**31 - 1  # as `leaseTransitions` is stored


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    renew_time: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class KubernetesLease:
    """One Lease of one namespace."""

    def __init__(self, access: Access, lease: str, *, wall: Callable[[], float] = clock.wall) -> None:
        self.where = f"the Lease {lease} in {access.namespace}"
        self._access = access
        self._name = lease
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{access.namespace}/leases"
        self._wall = wall
        self._upstream: Upstream | None = None
        self._object: dict[str, Any] = {}  # as last read: others' fields stay

    async def read(self) -> Record:
        """Returns the holder of the Lease; raises ElectionError."""
        answer = await self._ask("GET", f"{self._leases}/{self._name}")
        if answer.status == 404:
            self._object = {}
            return Record()
        return self._taken_in(self._checked(answer))

    async def write(self, over: Record, claim: Claim) -> Record | None:
        """Change, or make, the Lease; None: it was changed meanwhile. Raises ElectionError."""
        if claim.epoch > EPOCH_MAX:
            raise ElectionError(f"epoch {claim.epoch} is more than a Lease holds")
        found = self._object
        before = _spec(found)
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        goes_on = before.lease_transitions == claim.epoch and over.id == claim.id
        spec = {
            **found.get("spec", {}),
            "holderIdentity": f"{claim.address}_{claim.id}" if claim.id else "",
            "leaseDurationSeconds": int(TTL_S),
            "acquireTime": before.acquire_time if goes_on else now,
            "renewTime": now,
            "leaseTransitions": claim.epoch,
        }
        if over.version:
            answer = await self._ask("PUT", f"{self._leases}/{self._name}", {**found, "spec": spec})
        else:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            answer = await self._ask("POST", self._leases, {**kind, "metadata": {"name": self._name}, "spec": spec})
        if answer.status == 409 or (answer.status == 404 and over.version):
            return None
        return self._taken_in(self._checked(answer))

    async def close(self) -> None:
        """Close the connections to the API server."""
        if self._upstream is not None:
            self._upstream.close()

    async def _ask(self, method: str, path: str, body: object = None) -> Response:
        try:
            if self._upstream is None:
                timeouts = UpstreamTimeouts(connect_s=REQUEST_S, first_byte_s=REQUEST_S, between_bytes_s=REQUEST_S)
                self._upstream = Upstream(self._access.server, timeouts=timeouts, ssl_context=self._access.tls())
            headers = await self._access.headers()
            if body is not None:
                headers = [*headers, (b"content-type", b"application/json")]
            return await self._upstream.fetch(
                method,
                path,
                headers=headers,
                body=b"" if body is None else msgspec.json.encode(body),
                timeout_s=REQUEST_S,
                bytes_max=BYTES_MAX,
            )
        except SourceError as error:
            raise ElectionError(str(error)) from None
        except UpstreamException as failure:
            raise ElectionError(f"{self._access.server} does not answer: {failure.error.detail}") from None

    def _checked(self, answer: Response) -> dict[str, Any]:
        try:
            if answer.status in (200, 201):
                return msgspec.json.decode(answer.body, type=dict[str, Any])
            told = msgspec.json.decode(answer.body, type=ApiStatus).message or ""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            told = "what came is no JSON"
        hint = "; the account needs the verbs get, create and update on leases of coordination.k8s.io"
        said = f"the API server answers {answer.status}{f' ({told[:300]})' if told else ''}"
        raise ElectionError(said + (hint if answer.status == 403 else ""))

    def _taken_in(self, found: dict[str, Any]) -> Record:
        try:
            spec = _spec(found)
        except msgspec.ValidationError as error:
            raise ElectionError(f"it can't be read: {error}") from None
        self._object = found
        holder, epoch = spec.holder_identity or "", spec.lease_transitions or 0
        address, _, life = holder.rpartition("_")
        # Not `resourceVersion`: a label that somebody gave it is no sign of life.
        version = f"{holder} {epoch} {spec.renew_time}"
        return Record(version, life, address, epoch)


def _spec(found: dict[str, Any]) -> _LeaseSpec:
    return msgspec.convert(found.get("spec") or {}, _LeaseSpec)
