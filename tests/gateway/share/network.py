"""The network between machines, for gateways on one: TCP relays that can be cut, as by a cable or a switch that is off.

What is cut is silent: nothing passes, nobody is told, connections stay as they are. When it is mended, what was begun
before is lost for good, as where a router has forgotten it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.gateway.share.group import GatewayProcess

Ends = tuple[str, str]  # who dialled, and whom: names of machines; "" where that is not known


class Way:
    """To one machine: bytes pass, until it is cut. `to` is `host:port`, or the path of a unix socket."""

    def __init__(self, name: str = "", dialled_by: Callable[[int], str] = lambda _: "") -> None:
        """`dialled_by` tells by its port which machine a connection comes from."""
        self.name = name
        self.to = ""
        self._dialled_by = dialled_by
        self._is_cut: Callable[[Ends], bool] = lambda _: False
        self._passing: dict[asyncio.Task[None], Ends] = {}

    async def __aenter__(self) -> Way:
        self._server = await asyncio.start_server(self._came, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._end(lambda _: True)

    def cut(self, is_cut: Callable[[Ends], bool] = lambda _: True) -> None:
        self._is_cut = is_cut

    def mend(self) -> None:
        was_cut, self._is_cut = self._is_cut, lambda _: False
        for task, ends in self._passing.items():
            if was_cut(ends):
                task.cancel()

    async def _end(self, which: Callable[[Ends], bool]) -> None:
        tasks = [task for task, ends in self._passing.items() if which(ends)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # On a thread: a look at all open files takes long on a busy machine, and a decider renews its place meanwhile.
        ends = await asyncio.to_thread(self._dialled_by, writer.get_extra_info("peername")[1]), self.name
        if self._is_cut(ends):
            while self._is_cut(ends):
                await asyncio.sleep(0.01)
            writer.close()
            return
        try:
            there, back = await self._dialled()
        except OSError:
            writer.transport.abort()
            return
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass(source, target, ends))
            self._passing[task] = ends
            task.add_done_callback(lambda task: self._passing.pop(task))

    async def _dialled(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.to.startswith("/"):
            return await asyncio.open_unix_connection(self.to)
        host, _, port = self.to.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, ends: Ends) -> None:
        try:
            while data := await source.read(1 << 16):
                while self._is_cut(ends):
                    await asyncio.sleep(0.01)
                if target.is_closing():
                    break
                target.write(data)
            while self._is_cut(ends):  # nor is anybody told that the other end has hung up
                await asyncio.sleep(0.01)
        except OSError:
            pass
        finally:
            target.close()


class Network:
    """Machines by name, and a store: who reaches whom?"""

    def __init__(self) -> None:
        self.gateways: dict[str, GatewayProcess] = {}
        self.ways: dict[str, Way] = {}
        self.stores: dict[str, Way] = {}  # the store, as each machine reaches it

    def cut_off(self, *names: str) -> None:
        """These reach nobody, and nobody reaches them; `store` may be one. Callers and engines are no part of it."""
        self.cut(lambda ends: not set(names).isdisjoint(ends))

    def cut(self, is_cut: Callable[[Ends], bool]) -> None:
        for way in (*self.ways.values(), *self.stores.values()):
            way.cut(is_cut)

    def mend(self) -> None:
        for way in (*self.ways.values(), *self.stores.values()):
            way.mend()

    def machine_at(self, port: int) -> str:
        """Whose connection has this port at its end? What the kernel says of sockets and files."""
        wanted = f"{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {row[9] for row in rows if row[1].rpartition(":")[2] == wanted}
        for name, gateway in list(self.gateways.items()):  # on a thread: more may be added meanwhile
            for pid in gateway.pids if gateway.process is not None else ():
                if _has_socket(pid, inodes):
                    return name
        return ""


def _has_socket(pid: int, inodes: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    return True
    return False


@asynccontextmanager
async def network(names: Sequence[str], store: str) -> AsyncIterator[Network]:
    """Ways to machines of these names, which are given their gateways later, and of each to the store at `store`."""
    made = Network()
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            made.ways[name] = await stack.enter_async_context(Way(name, made.machine_at))
            made.stores[name] = way = await stack.enter_async_context(Way("store", _always(name)))
            way.to = store
        yield made


def _always(name: str) -> Callable[[int], str]:
    return lambda _: name
