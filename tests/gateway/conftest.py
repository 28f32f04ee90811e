"""A world for the gateway's tests: simulated engines, a gateway on a free port, raw clients; all on real sockets.

Whatever a test does, when it is over no lease is held, nothing waits, no connection is open on either side, nothing
was told to the loop's exception handler and nothing was logged as an error. The world looks after that by itself.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

import pytest
import uvloop

from penstock import clock, logs
from penstock.config.load import Settings, from_mapping
from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.cluster import supervisor, worker
from penstock.gateway.serve import Gateway
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.log import Fault, LogEntry
from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.raw_engine import Peer, RawEngine
from tests.gateway.workers.beside import WorkerBeside
from tests.patience import WAIT_S, looks
from tests.ports import free_port
from tests.virtual_loop import VirtualLoop

CHAT = "/v1/chat/completions"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
WORKERS = int(os.environ.get("PENSTOCK_TEST_WORKERS", "0"))  # the same tests, with requests carried by so many

S = TypeVar("S")
Body = bytes | Mapping[str, Any]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `penstock serve` runs on; for what is marked `virtual_time`, one that does not wait."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualLoop}
    return {"uvloop": uvloop.new_event_loop}


def run(steps: Generator[None, None, S]) -> S:
    """All steps of some work at once, and what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: S = done.value
            return result


class Answer:
    """One response, as it came."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.body[:200]!r})"

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The error in OpenAI's shape, with all of its four keys."""
        error: dict[str, Any] = self.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert self.header("x-penstock-reason") == error["code"]
        return error

    def events(self) -> list[Any]:
        return [json.loads(line[6:]) for line in self.body.splitlines() if line.startswith(b"data: {")]


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._chunked = False
        self._left = 0
        self.seen = b""  # of the body under way

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Answer:
        """The head of the next response."""
        async with asyncio.timeout(WAIT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines[1:])]
        answer = Answer(int(lines[0].split(" ")[1]), headers)
        self._chunked = answer.header("transfer-encoding") == "chunked"
        self._left = int(answer.header("content-length") or "0")
        self.seen = b""
        return answer

    async def piece(self) -> bytes:
        """The next piece of the body, empty at its end. A body that is cut off is an IncompleteReadError."""
        async with asyncio.timeout(WAIT_S):
            if not self._chunked:
                data = await self.reader.readexactly(self._left)
                self._left = 0
            else:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                data = (await self.reader.readexactly(size + 2))[:-2]
        self.seen += data
        return data

    async def whole(self) -> bytes:
        """The body up to its end."""
        while await self.piece():
            pass
        return self.seen

    async def answer(self) -> Answer:
        """The next response, whole."""
        answer = await self.head()
        answer.body = await self.whole()
        return answer

    async def begun(self) -> Answer:
        """The head, and the body up to its first token."""
        answer = await self.head()
        await self.piece()
        return answer

    async def rest(self) -> bytes:
        """All until the gateway closes; a reset counts as a close."""
        data = b""
        try:
            async with asyncio.timeout(WAIT_S):
                while piece := await self.reader.read(1 << 16):
                    data += piece
        except ConnectionError:
            pass
        return data

    def hang_up(self) -> None:
        self.writer.close()


def request(
    method: str = "POST", path: str = CHAT, body: Body = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *(f"{n}: {v}" for n, v in (headers or {}).items())]
    if data or method == "POST":
        lines.append(f"content-length: {len(data)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


def chat(content: str = "hello", tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": tokens, **more}


class World:
    """What a test needs of engines, gateway and clients; its owner closes it."""

    def __init__(self) -> None:
        self.engines: list[EngineServer] = []
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.port = 0  # of the gateway
        self.socket = ""  # its path, if it listens on a unix socket
        self.document: dict[str, Any] = {}  # the settings, as a reload would read them
        self._gateway: Gateway | None = None
        self._stack = AsyncExitStack()

    # --- making it -------------------------------------------------------------------------------------------

    async def engine(self, *, port: int = 0, model: str = "sim", **config: Any) -> EngineServer:
        engine = EngineServer(EngineConfig(**{"step_s": 0.002, **config}), model=model)
        await engine.start(port=port or free_port())  # also where it dies, nobody else comes to its address
        self.engines.append(engine)
        return engine

    async def restart(self, dead: EngineServer, **config: Any) -> EngineServer:
        """A new engine process where one died."""
        self.engines.remove(dead)
        await dead.close()
        return await self.engine(port=int(dead.url.rpartition(":")[2]), model=dead.model, **config)

    async def scripted(
        self, *pieces: bytes, thinks_s: float = 0.0, then: bytes | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """An engine that answers every POST with the same bytes: its settings, and the requests it saw.

        It may think for a while after the first piece, and answer all but the first POST otherwise (`then`).
        """
        requests: list[bytes] = []

        async def script(peer: Peer) -> None:
            while True:
                data = await peer.request()
                if data.startswith(b"GET "):
                    await peer.send(NOT_FOUND)
                else:
                    requests.append(data)
                    if then is not None and len(requests) > 1:
                        await peer.send(then)
                        continue
                    await peer.send(*pieces[:1])
                    await asyncio.sleep(thinks_s)
                    await peer.send(*pieces[1:])

        raw = await self._stack.enter_async_context(RawEngine(script))
        return {"url": raw.url, "engine": "openai", "models": ["sim"]}, requests

    async def beside(self, service: AbstractAsyncContextManager[S]) -> S:
        """Something else that lives until the gateway is gone."""
        return await self._stack.enter_async_context(service)

    def settings(self) -> Settings:
        return from_mapping(copy.deepcopy(self.document))

    async def gateway(self, *, slots: int | str = 4, endpoints: list[Any] | None = None, **settings: Any) -> Gateway:
        """A gateway in front of all engines, which has asked them what they serve."""
        if endpoints is None:
            endpoints = [{"url": engine.url, "slots": slots} for engine in self.engines]
        self.document = {
            "listen": "127.0.0.1:0",
            "endpoints": endpoints,
            "observe": {"interval": 0.05, "fast_interval": 0.02},
            "health": {"probe_interval": 0.1},
            **settings,
        }
        if WORKERS and self.document.setdefault("workers", WORKERS) != 1:
            vars(supervisor)["WorkerProcess"] = WorkerBeside
            worker.TICK_S, worker.TICKS_PER_STANDING = 0.02, 1
        self._gateway = gate = Gateway(self.settings(), self.settings)
        await gate.start()
        self.port = gate.port
        self.socket = self.document["listen"].partition("unix:")[2]
        if self.engines:
            await self.until(lambda: all(endpoint.models is not None for endpoint in self.picture().endpoints))
        return gate

    # --- looking at it ---------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gateway:
        assert self._gateway is not None
        return self._gateway

    @property
    def url(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"http://127.0.0.1:{self.port}"

    def picture(self) -> Snapshot:
        driver = self.gate.driver
        return driver.scheduler.snapshot(now=driver.now())

    def seen(self) -> list[LogEntry]:
        """Every inference request that an engine saw."""
        return [entry for engine in self.engines for entry in engine.log.entries]

    async def until(self, claim: Callable[[], object], *, within_s: float = WAIT_S) -> None:
        """Wait for an event that nothing announces; a look each millisecond, not a guess at a duration."""
        async for _ in looks(within_s, 0.001):
            if claim():
                return

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' samples that have these labels."""
        if WORKERS:
            await asyncio.sleep(4 * worker.TICK_S)  # they say what they counted once a second, here more often
        page = (await self.ask("GET", "/metrics")).body.decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in page.splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))

    async def until_metric(self, value: float, name: str, **labels: str) -> None:
        """Wait until the samples that have these labels sum up to this."""
        async for _ in looks(WAIT_S):
            if await self.metric(name, **labels) == value:
                return

    # --- talking to it ---------------------------------------------------------------------------------------

    async def client(self, data: bytes = b"") -> Client:
        if self.socket:
            client = Client(*await asyncio.open_unix_connection(self.socket, limit=1 << 20))
        else:
            client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))
        self.clients.append(client)
        client.send(data)
        return client

    async def ask(
        self, method: str = "POST", path: str = CHAT, body: Body = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request and its answer. What changes something under /admin shows the gateway's own token."""
        if path.startswith("/admin/") and method not in ("GET", "HEAD") and headers is None:
            headers = {"authorization": f"Bearer {self.gate.own_token.token}"}
        client = await self.client(request(method, path, body, headers))
        answer = await client.answer()
        client.hang_up()
        return answer

    async def chat(self, content: str = "hello", **more: Any) -> Answer:
        return await self.ask(body=chat(content, **more))

    async def chat_with(self, headers: Mapping[str, str], **more: Any) -> Answer:
        return await self.ask(body=chat(**more), headers=headers)

    async def client_for(self, body: Body, headers: Mapping[str, str] | None = None) -> Client:
        """A request, sent; its answer is left to the caller."""
        return await self.client(request(body=body, headers=headers))

    async def streaming(self, content: str = "hello", **more: Any) -> Client:
        """A streamed request, sent."""
        return await self.client(request(body=chat(content, stream=True, **more)))

    def soon(self, work: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """Let it run beside the test."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    # --- leaving it ------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Wait until every request that was sent has come to its end."""
        await self.until(lambda: self.picture().running == 0 and self.picture().waiting == 0)
        assert [endpoint.leases for endpoint in self.picture().endpoints] == [0] * len(self.picture().endpoints)
        assert self.picture().waiting_bytes == 0

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.clients:
            client.hang_up()
        if self._gateway is not None:
            await self._close_gateway(self._gateway)
        for engine in self.engines:
            await engine.close()
        await self._stack.aclose()

    async def end_gateway(self) -> None:
        """For another one after it, before the same engines."""
        await self._close_gateway(self.gate)
        self._gateway = None

    async def _close_gateway(self, gate: Gateway) -> None:
        try:
            await self.idle()
            await asyncio.wait_for(gate.driver.idle(), WAIT_S)
            await self.until(lambda: gate.server.connections == 0)
        finally:
            await gate.close()
        assert gate.server.connections == 0
        for target in gate.endpoints.targets.values():
            statistics = target.upstream.statistics()
            assert (statistics.active, statistics.connecting, statistics.idle) == (0, 0, 0)


def _is_grpcs(context: dict[str, Any]) -> bool:
    """Whether grpc's poller found nothing to read, which it reports as an error of its callback and survives."""
    return "PollerCompletionQueue" in context["message"] and isinstance(context.get("exception"), BlockingIOError)


@pytest.fixture(params=[1, 2], ids=["alone", "with workers"])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of workers, which run beside the gateway on the test's loop."""
    monkeypatch.setattr(supervisor, "WorkerProcess", WorkerBeside)
    monkeypatch.setattr(worker, "TICKS_PER_STANDING", 1)
    monkeypatch.setattr(worker, "TICK_S", 0.02)
    return int(request.param)


@pytest.fixture
async def world(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """An empty world: start `engine`s in it, then the `gateway`."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: None if _is_grpcs(context) else told.append(context))
    if isinstance(loop, VirtualLoop):
        monkeypatch.setattr(clock, "now", loop.time)
    made = World()
    try:
        yield made
    finally:
        await made.close()
    assert [(context.get("exception"), context["message"]) for context in told] == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info] == []


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What standard error would show."""
    stream, root = io.StringIO(), logging.getLogger()
    before, level = list(root.handlers), root.level
    logs.configure("debug", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def follower(gate: Gateway, kind: type[S]) -> S:
    """The part of a gateway of one kind, among those that follow its settings."""
    return next(part for part in gate.reload.followers if isinstance(part, kind))


def fault(engine: EngineServer, kind: str, **more: Any) -> None:
    """Let an engine misbehave from now on."""
    engine.set_fault(Fault(kind, **more))


def hurry(engine: EngineServer, times: float = 20.0) -> None:
    """Let what runs come to its end soon. So a test's answers may be longer than even a busy machine needs for it."""
    fault(engine, "slow", factor=1.0 / times)
