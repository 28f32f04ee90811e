"""Engines that are only a face: what each kind answers where Penstock looks, served on real sockets.

The shapes are those of the engines' own sources and of what was seen of real ones; requests are answered by a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.gateway.raw_engine import OK, Peer

GOLDEN = Path(__file__).parents[2] / "engines" / "golden"
Route = tuple[int, bytes, str]
Serve = Callable[[Peer, bytes], Awaitable[None]]


def page(name: str) -> Route:
    return 200, (GOLDEN / f"{name}.prom").read_bytes(), "text/plain"


def doc(value: Any, status: int = 200) -> Route:
    return status, json.dumps(value).encode(), "application/json"


def models(owner: str, *names: str, **fields: Any) -> Route:
    data = [{"id": name, "object": "model", "created": 1, "owned_by": owner, **fields} for name in names]
    return doc({"object": "list", "data": data})


def adapter(name: str, parent: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "vllm", "root": "/lora", "parent": parent}


def less_busy(route: Route) -> Route:
    """vLLM's page with room for more: 2 run, 1 waits."""
    status, body, kind = route
    return status, body.replace(b'"tiny-llama"} 8.0\n', b'"tiny-llama"} 2.0\n').replace(b'"} 11.0\n', b'"} 1.0\n'), kind


VLLM: dict[str, Route] = {
    "/health": (200, b"", "text/plain"),
    "/v1/models": models("vllm", "m", root="m", parent=None, max_model_len=8192),
    "/version": doc({"version": "0.32.0"}),
    "/kv_event_sources": doc({}),
    "/load": doc({"server_load": 0}),
    "/metrics": less_busy(page("vllm-0.32.real")),
}
VLLM_DEV = {
    **VLLM,
    "/server_info?config_format=json": doc(
        {"vllm_config": {"scheduler_config": {"max_num_seqs": 24, "policy": "priority"}}}
    ),
}
SGLANG_LOADS = [
    {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.5, "max_running_requests": 20},
    {"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 0, "token_usage": 0.1, "max_running_requests": 20},
]
SGLANG: dict[str, Route] = {
    "/ready": (200, b"", "text/plain"),
    "/v1/models": models("sglang", "m", root="m", max_model_len=32768),
    "/server_info": doc(
        {
            "model_path": "/models/m",
            "tp_size": 1,
            "dp_size": 2,
            "version": "0.5.23",
            "enable_metrics": False,
            "enable_priority_scheduling": True,
            "schedule_low_priority_values_first": False,
            "enable_cache_report": True,
            "kv_events_config": None,
            "context_length": 32768,
            "max_running_requests": None,
            "internal_states": [{"effective_max_running_requests_per_dp": 20}],
        }
    ),
    "/v1/loads?include=core": doc({"timestamp": "2026", "loads": SGLANG_LOADS}),
}
TGI: dict[str, Route] = {
    "/health": (200, b"", "text/plain"),
    "/v1/models": models("org/m", "org/m"),
    "/info": doc(
        {
            "model_id": "org/m",
            "max_concurrent_requests": 128,
            "max_input_tokens": 4095,
            "max_total_tokens": 4096,
            "version": "3.3.7",
        }
    ),
    "/metrics": page("tgi-3.3.7.facts"),
}
TGI_OLD = {path: route for path, route in TGI.items() if path != "/v1/models"}
LLAMACPP: dict[str, Route] = {
    "/health": doc({"status": "ok"}),
    "/v1/models": models("llamacpp", "m", meta={"n_ctx_train": 32768, "n_ctx": 4096, "n_params": 1}),
    "/props": doc(
        {
            "default_generation_settings": {"n_ctx": 4096},
            "total_slots": 4,
            "build_info": "b1-0c1e570",
            "is_sleeping": False,
        }
    ),
    "/slots": doc([{"id": n, "is_processing": n < 1} for n in range(4)]),
    "/metrics": doc({"error": {"code": 501, "message": "Start it with `--metrics`"}}, 501),
}
_WHICH = doc({"error": {"code": 400, "message": "model name is missing from the request"}}, 400)
LLAMACPP_ROUTER: dict[str, Route] = {  # several models, each in a process of its own, started when it is asked for
    "/health": doc({"status": "ok"}),
    "/v1/models": models("llamacpp", "m", "n"),
    "/props": doc(
        {
            "role": "router",
            "max_instances": 4,
            "model_path": "none",
            "default_generation_settings": {"params": {}, "n_ctx": 0},
            "build_info": "b1-0c1e570",
        }
    ),
    "/slots": _WHICH,
    "/metrics": _WHICH,
}
TRTLLM: dict[str, Route] = {
    "/health": (200, b"", "text/plain"),
    "/v1/models": models("tensorrt_llm", "m"),
    "/version": doc({"version": "1.2.0"}),
    "/metrics": doc([]),
    "/prometheus/metrics": page("trtllm-serve.facts"),
}
LMDEPLOY: dict[str, Route] = {
    "/health": (200, b"", "text/plain"),
    "/v1/models": models("lmdeploy", "m", root="m", parent=None),
    "/is_sleeping": doc({"is_sleeping": False}),
    "/metrics": page("lmdeploy-0.18.facts"),
}
OLLAMA: dict[str, Route] = {
    "/v1/models": models("library", "llama3:8b"),
    "/api/version": doc({"version": "0.9.0"}),
    "/api/tags": doc({"models": [{"name": "llama3:8b", "model": "llama3:8b"}]}),
    "/api/ps": doc({"models": []}),
}
OTHER: dict[str, Route] = {"/v1/models": models("somebody", "m")}


class Face:
    """One engine of that kind. Its routes may be changed while it runs."""

    def __init__(self, routes: dict[str, Route], serve: Serve | None = None) -> None:
        self.routes = dict(routes)
        self.asked: list[str] = []  # paths of GET requests
        self.posted: list[bytes] = []  # whole requests of other kinds
        self.silent = ""  # a path that is not answered
        self.unanswered = 0  # how often it is waited for now
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_dead = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a process that is killed: what was accepted in its last moment is not served either."""
        self._is_dead = True
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_dead:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        peer = Peer(reader, writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while True:
                    await self._answer(peer, await peer.request())
            finally:
                self._writers.discard(writer)
                writer.transport.abort()

    async def _answer(self, peer: Peer, request: bytes) -> None:
        method, path, _ = request.split(b" ", 2)
        if method != b"GET":
            self.posted.append(request)
            if self._serve is None:
                await peer.send(OK)
            else:
                await self._serve(peer, request)
            return
        self.asked.append(path.decode())
        if path.decode() == self.silent:
            self.unanswered += 1
            try:
                await peer.request()  # it only hears that nobody waits any more
            finally:
                self.unanswered -= 1
        await peer.send(answer(*self.routes.get(path.decode(), (404, b"{}", "application/json"))))


def answer(status: int, body: bytes, kind: str = "application/json", *more: str) -> bytes:
    head = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def events(*pieces: bytes) -> bytes:
    """A whole chunked stream."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
