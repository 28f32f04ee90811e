"""A Kubernetes API server, as far as an election asks one: Leases with versions, on a thread of its own.

As the real one it takes a change only if it names the version that is there (409 else), makes nothing twice (409),
takes no change without one where it is strict about it, and asks who may do what (401, 403).
"""

from __future__ import annotations

import json
import shutil
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.ports import free_port

LEASES = "/apis/coordination.k8s.io/v1/namespaces/prod/leases"
Object = dict[str, Any]


class LeaseApi:
    """Leases of the namespace `prod`."""

    def __init__(self) -> None:
        self.token = "a-token"
        folder = mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        file = Path(folder) / "token"
        file.write_text(self.token)
        self.token_file = str(file)
        self.verbs = {"get", "create", "update"}
        self.leases: dict[str, Object] = {}
        self.version = 100
        self.asked: list[tuple[str, str]] = []
        self.answers: list[tuple[int, bytes]] = []  # instead of the next
        self._lock = threading.Lock()
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """On the same port each time."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def touch(self, name: str) -> None:
        """Somebody gives it a label."""
        lease = self.leases[name]
        self._put(name, {**lease, "metadata": {**lease["metadata"], "labels": {"touched": str(self.version)}}})

    def answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self.asked.append((method, path))
            if self.answers:
                return self.answers.pop(0)
            status, told = self._answer(method, path, token, body)
            return status, json.dumps(told).encode()

    def _answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, Object]:
        verb = {"GET": "get", "POST": "create", "PUT": "update"}[method]
        if token != f"Bearer {self.token}":
            return 401, _status("Unauthorized")
        if verb not in self.verbs:
            who = 'User "system:serviceaccount:prod:gate"'
            return 403, _status(f'leases.coordination.k8s.io is forbidden: {who} cannot {verb} resource "leases"')
        if verb == "create":
            given = json.loads(body)
            name = given["metadata"]["name"]
            if path != LEASES or name in self.leases:
                return 409, _status(f'leases.coordination.k8s.io "{name}" already exists')
            return 201, self._put(name, given)
        name = path.removeprefix(f"{LEASES}/")
        if name not in self.leases:
            return 404, _status(f'leases.coordination.k8s.io "{name}" not found')
        if verb == "get":
            return 200, self.leases[name]
        given = json.loads(body)
        if given["metadata"].get("resourceVersion") != self.leases[name]["metadata"]["resourceVersion"]:
            return 409, _status(f"Operation cannot be fulfilled on {name}: the object has been modified")
        return 200, self._put(name, given)

    def _put(self, name: str, given: Object) -> Object:
        self.version += 1
        self.leases[name] = {**given, "metadata": {**given["metadata"], "resourceVersion": str(self.version)}}
        return self.leases[name]


def _status(message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "message": message}


def _handler(api: LeaseApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            if api._server is None:
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, told = api.answer(self.command, self.path, self.headers.get("authorization") or "", body)
            self.send_response(status)
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler
