"""A Kubernetes API server, as far as discovery asks one: objects with versions, lists in pages, watches, a memory that
ends; and everything that may go wrong with it, on demand.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


class KubeApi:
    """One namespace, one kind of objects at a time."""

    def __init__(self, *, token: str | None = None, tls: ssl.SSLContext | None = None, seed: int = 0) -> None:
        self.objects: dict[str, Object] = {}  # by name
        self.version = 100
        self.remembers_from = 0  # watches from before get 410
        self.token = token
        self.lists = self.watches = 0
        self.queries: list[dict[str, str]] = []
        self.page_objects = 500
        self.doubles = self.shuffles = False  # of events, among those that are sent together
        self.refuses = 0  # so many of the next requests get 500
        self.held = False  # events are kept back until `release`
        self._log: list[tuple[int, str, Object]] = []
        self._sent: list[bytes] = []  # every event line ever sent
        self._random = random.Random(seed)
        self._tls = tls
        self._open: dict[asyncio.StreamWriter, int] = {}  # watches, and how far each has come
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    # --- the cluster ----------------------------------------------------------------------------------------------

    def put(self, name: str, **parts: Any) -> Object:
        """Add an object, or change it."""
        known = self.objects.get(name)
        self.version += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        meta = {"name": name, "uid": uid, **parts.pop("metadata", {}), "resourceVersion": str(self.version)}
        self.objects[name] = {"metadata": meta, **parts}
        self._happened("MODIFIED" if known else "ADDED", self.objects[name])
        return self.objects[name]

    def delete(self, name: str) -> None:
        gone = self.objects.pop(name)
        self.version += 1
        meta = {**gone["metadata"], "resourceVersion": str(self.version)}
        self._happened("DELETED", {**gone, "metadata": meta})

    def pod(self, name: str, address: str, *, ready: bool = True, **metadata: Any) -> None:
        status = {"podIP": address, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        containers = [{"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]
        self.put(name, spec={"containers": containers}, status=status, metadata=metadata)

    def _happened(self, kind: str, found: Object) -> None:
        self._log.append((self.version, kind, found))
        if not self.held:
            self.release()

    def release(self) -> None:
        """Send all watches what they have not seen."""
        self.held = False
        for writer in list(self._open):
            self._send_events(writer)

    # --- trouble --------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """What was before now is not remembered any more."""
        self.remembers_from = self.version

    def drop(self) -> None:
        """All watches break off, in the middle of whatever they say."""
        for writer in self._hang_up():
            writer.write(b"1f4\r\n" + b'{"type":"MODIFIED","obj')
            writer.transport.abort()

    def end(self) -> None:
        """All watches end, as they do when their time is over."""
        for writer in self._hang_up():
            writer.write(b"0\r\n\r\n")

    def complain(self, code: int = 410) -> None:
        """All watches are told that they can't go on."""
        status = {"kind": "Status", "code": code, "reason": "Expired", "message": "too old resource version"}
        for writer in self._hang_up():
            self._chunk(writer, json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            writer.write(b"0\r\n\r\n")

    def bookmark(self) -> None:
        found = {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}}
        for writer in self._open:
            self._chunk(writer, json.dumps({"type": "BOOKMARK", "object": found}).encode() + b"\n")

    def say(self, line: bytes) -> None:
        """Something else in all watches."""
        for writer in self._open:
            self._chunk(writer, line)

    @property
    def watched(self) -> bool:
        """Whether a watch is open and has been sent everything."""
        return any(seen >= self.version for seen in self._open.values())

    def _hang_up(self) -> list[asyncio.StreamWriter]:
        writers, self._open = list(self._open), {}
        return writers

    # --- HTTP -----------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if not writer.is_closing():
                    self._answer(head, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self._open.pop(writer, None)
        finally:
            writer.close()

    def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(head.split(" ", 2)[1])
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.queries.append({"path": parts.path, **query})
        if self.token is not None and f"authorization: Bearer {self.token}\r\n" not in head:
            return self._json(writer, 401, {"kind": "Status", "message": "Unauthorized"})
        if self.refuses:
            self.refuses -= 1
            return self._json(writer, 500, {"kind": "Status", "message": "etcd has no leader"})
        if "watch" not in query:
            return self._list(writer, query)
        self.watches += 1
        since = int(query["resourceVersion"])
        if since < self.remembers_from:
            return self._json(writer, 410, {"kind": "Status", "code": 410, "message": "Gone"})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        self._open[writer] = since
        if not self.held:
            self._send_events(writer)
        return None

    def _list(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        self.lists += 1
        names = sorted(self.objects)
        begin = int(query.get("continue", "0"))
        end = begin + min(self.page_objects, int(query["limit"]))
        meta = {"resourceVersion": str(self.version), **({"continue": str(end)} if end < len(names) else {})}
        self._json(writer, 200, {"metadata": meta, "items": [self.objects[name] for name in names[begin:end]]})

    def _send_events(self, writer: asyncio.StreamWriter) -> None:
        events = [event for event in self._log if event[0] > self._open[writer]]
        self._open[writer] = self.version
        lines = [json.dumps({"type": kind, "object": found}).encode() + b"\n" for _, kind, found in events]
        self._sent += lines
        if self.doubles and self._sent:
            lines += self._random.choices(self._sent, k=len(lines) + 3)
        if self.shuffles:
            self._random.shuffle(lines)
        data = b"".join(lines)
        while data:
            cut = self._random.randint(1, len(data))
            self._chunk(writer, data[:cut])
            data = data[cut:]

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    @staticmethod
    def _json(writer: asyncio.StreamWriter, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
