"""A Kubernetes API server with several kinds of objects, by the path of each; kinds that are not installed get 404."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.gateway.endpoints.kube_api import PODS, KubeApi, Object
from tests.ports import free_port

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
IMPORTS = "/apis/inference.networking.x-k8s.io/v1alpha1/namespaces/default/inferencepoolimports"
OBJECTIVES, OLD_OBJECTIVES = (
    f"/apis/{group}/v1alpha2/namespaces/default/inferenceobjectives"
    for group in ("llm-d.ai", "inference.networking.x-k8s.io")
)
REWRITES, OLD_REWRITES = (
    f"/apis/{group}/v1alpha2/namespaces/default/inferencemodelrewrites"
    for group in ("llm-d.ai", "inference.networking.x-k8s.io")
)


class Kind(KubeApi):
    """The objects of one kind, selected by labels or by name. One that is selected no longer is deleted for a watch."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[asyncio.StreamWriter, dict[str, str]] = {}
        self._shown: dict[asyncio.StreamWriter, set[str]] = {}

    def answer(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        self.queries.append(query)
        if "watch" not in query:
            self.lists += 1
            items = [found for _, found in sorted(self.objects.items()) if _selects(query, found)]
            self._json(writer, 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items})
            return
        self.watches += 1
        since = int(query["resourceVersion"])
        if since < self.remembers_from:
            self._json(writer, 410, {"kind": "Status", "code": 410, "message": "Gone"})
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        self._open[writer], self._asked[writer] = since, query
        before = {found["metadata"]["uid"]: found for version, _, found in self._log if version <= since}
        self._shown[writer] = {uid for uid, found in before.items() if _selects(query, found)}
        self._send_events(writer)

    def _send_events(self, writer: asyncio.StreamWriter) -> None:
        since, self._open[writer] = self._open[writer], self.version
        shown = self._shown[writer]
        for version, kind, found in self._log:
            uid = found["metadata"]["uid"]
            if version <= since:
                continue
            if kind != "DELETED" and _selects(self._asked[writer], found):
                said = "MODIFIED" if uid in shown else "ADDED"
                shown.add(uid)
            elif uid in shown:
                said = "DELETED"
                shown.discard(uid)
            else:
                continue
            self._chunk(writer, json.dumps({"type": said, "object": found}).encode() + b"\n")

    def left(self, writer: asyncio.StreamWriter) -> None:
        for known in (self._open, self._asked, self._shown):
            known.pop(writer, None)


def _selects(query: dict[str, str], found: Object) -> bool:
    meta = found["metadata"]
    labels = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
    if not labels.items() <= meta.get("labels", {}).items():
        return False
    return query.get("fieldSelector") in (None, f"metadata.name={meta['name']}")


class KubeCluster:
    """All kinds behind one address, which stays the same over a restart."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = {path: Kind() for path in (PODS, POOLS, *kinds)}
        self.refused: dict[str, int] = {}  # paths, and the status that is answered there
        self.single: dict[str, Object] = {}  # objects that are asked for one by one
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def stop(self) -> None:
        """The server dies, with all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._tasks.values():
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    @property
    def pods(self) -> Kind:
        return self.kinds[PODS]

    def pool(self, name: str = "qwen", *, ports: Any = (8000,), labels: Any = None, **spec: Any) -> None:
        selector = {"matchLabels": {"app": "vllm"} if labels is None else labels}
        self.kinds[POOLS].put(name, spec={"selector": selector, "targetPorts": [{"number": n} for n in ports], **spec})

    def pod(self, name: str, address: str, *, app: str = "vllm", ready: bool = True) -> None:
        self.pods.pod(name, address, ready=ready, labels={"app": app})

    def objective(self, name: str, priority: Any, *, pool: str = "qwen", path: str = OBJECTIVES) -> None:
        self.kinds[path].put(name, spec={"poolRef": {"name": pool}, "priority": priority})

    def rewrite(self, name: str, *rules: Any, pool: str = "qwen", created: str = "2026-01-01T00:00:00Z") -> None:
        spec = {"poolRef": {"name": pool}, "rules": list(rules)}
        self.kinds[REWRITES].put(name, spec=spec, metadata={"creationTimestamp": created})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                parts = urlsplit(head.split(" ", 2)[1])
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                status = self.refused.get(parts.path, 404)
                if parts.path in self.kinds and parts.path not in self.refused:
                    self.kinds[parts.path].answer(query, writer)
                elif parts.path in self.single:
                    KubeApi._json(writer, 200, self.single[parts.path])
                else:
                    KubeApi._json(writer, status, {"kind": "Status", "code": status, "message": "no such thing"})
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for kind in self.kinds.values():
                kind.left(writer)
            del self._tasks[task]
            writer.close()
