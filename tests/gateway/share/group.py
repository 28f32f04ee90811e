"""Gateways of one group as processes on this machine, each with ports of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.gateway.conftest import Answer, Client, World, chat, request
from tests.gateway.test_shutdown import Process, penstock
from tests.gateway.workers.pids import workers_of
from tests.patience import WAIT_S, looks
from tests.ports import free_port

SECRET = "a-secret-of-this-group"


class GatewayProcess:
    """One gateway of the group."""

    def __init__(self, name: str, path: Path, world: World, share: str) -> None:
        self.name = name
        self.share = share
        self.path = path
        self.port = 0
        self.process: Process | None = None
        self.earlier = ""  # the logs of its lives before this one
        self._world = world
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self.process is not None:
            self.earlier += self.log
        self.process = await penstock("serve", "-c", str(self.path), XDG_STATE_HOME=str(self.path.parent / self.name))
        self.port = int((await self.process.line(b"listening on")).rpartition(b":")[2])
        self._reading = asyncio.create_task(self._read(self.process))

    async def _read(self, process: Process) -> None:
        assert process.process.stderr is not None
        while line := await process.process.stderr.readline():
            process.log += line

    @property
    def log(self) -> str:
        assert self.process is not None
        return self.process.log.decode()

    async def said(self, words: str) -> None:
        """Wait until its log has these words."""
        async for _ in looks(WAIT_S):
            if words in self.log:
                return

    @property
    def pids(self) -> list[int]:
        """Its processes, the first one first."""
        assert self.process is not None
        first = self.process.process.pid
        return [first, *workers_of(first)]

    def kill(self) -> None:
        """Its first process; the workers go with it."""
        assert self.process is not None
        self.process.signal(signal.SIGKILL)

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.process.returncode is None:
            self.process.signal()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self.process.process.wait()
            except TimeoutError:
                os.killpg(self.process.process.pid, signal.SIGKILL)
                await self.process.process.wait()
                raise
        if self._reading is not None:
            await self._reading

    # --- asking it --------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Answer:
        client = await self.client(request(method, path, body, headers))
        answer = await client.answer()
        client.hang_up()
        return answer

    async def client(self, data: bytes) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))
        self._world.clients.append(client)
        client.send(data)
        return client

    async def chat(self, content: str = "hello", headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
        return await self.ask("POST", "/v1/chat/completions", chat(content, **more), headers)

    async def streaming(self, content: str = "hello", headers: Mapping[str, str] | None = None, **more: Any) -> Client:
        return await self.client(request(body=chat(content, stream=True, **more), headers=headers))

    async def state(self) -> dict[str, Any]:
        told: dict[str, Any] = (await self.ask("GET", "/admin/state")).json()
        return told

    async def step_down(self, token: str) -> None:
        """Tell whoever decides to let another one: as soon as there is one, for a link may have to be made again."""
        async for _ in looks(WAIT_S, 0.05):
            told = await self.ask("POST", "/admin/decider/step-down", b"{}", {"authorization": f"Bearer {token}"})
            if told.status == 200:
                return
            assert told.error()["message"] == "No other gateway is there to decide.", told

    async def metric(self, name: str) -> float:
        """The sum of a series' samples."""
        page = (await self.ask("GET", "/metrics")).body.decode()
        lines = [line for line in page.splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def until(self, claim: Callable[[dict[str, Any]], object], *, within_s: float = WAIT_S) -> dict[str, Any]:
        """Wait for a state."""
        state: dict[str, Any] = {}
        try:
            async for _ in looks(within_s, 0.05):
                with suppress(OSError, EOFError):  # whoever was asked may just have died
                    state = await self.state()
                    if "error" not in state and claim(state):
                        break
        except AssertionError as late:
            told = json.dumps(state.get("share"))
            raise AssertionError(f"{self.name} did not come to it: {late}; {told}\n{self.log}") from None
        return state


class Group:
    """Gateways that share, in front of a world's engines; the first one decides."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self.gateways: list[GatewayProcess] = []
        self.decider = f"127.0.0.1:{free_port()}"

    def made(self, name: str, *, share: Mapping[str, Any] | None = None, **settings: Any) -> GatewayProcess:
        """One more, which is not started yet."""
        place = self.decider if not self.gateways else f"127.0.0.1:{free_port()}"
        path = self._folder / f"{name}.yaml"
        document = {
            "listen": "127.0.0.1:0",
            "endpoints": [{"url": engine.url, "slots": 4} for engine in self._world.engines],
            "observe": {"interval": "100ms", "fast_interval": "50ms"},
            "share": {
                "listen": place,
                "secret": SECRET,
                "elect": {"static": self.decider},
                "alone_after": "1s",
                "name": name,
                **(share or {}),
            },
            **settings,
        }
        path.write_text(json.dumps(document))
        made = GatewayProcess(name, path, self._world, place)
        self.gateways.append(made)
        return made

    async def start(self, *names: str, **settings: Any) -> list[GatewayProcess]:
        """Start these, and wait until all are linked to the first."""
        made = [self.made(name, **settings) for name in names]
        await asyncio.gather(*(one.start() for one in made))
        edges = len(made) * settings.get("workers", 1) + len(made) - 1
        for one in made:
            await one.until(lambda state: len(state["edges"]) == edges)
        return made


def certificate(folder: Path, name: str) -> dict[str, str]:
    """A certificate that is its own authority, as `share.tls` names it."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return {"cert": str(cert), "key": str(key), "ca": str(cert)}


@asynccontextmanager
async def group(world: World, folder: Path) -> AsyncIterator[Group]:
    """Whatever was started in it ends with it."""
    made = Group(world, folder)
    async with AsyncExitStack() as ending:
        try:
            yield made
        finally:
            for client in world.clients:
                client.hang_up()
            for one in made.gateways:
                if one.process is not None:
                    ending.push_async_callback(one.stop)
