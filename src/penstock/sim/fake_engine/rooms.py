"""Rooms: handing a prompt's KV from one engine to another.

As in SGLang, both engines get the same request with `bootstrap_host`, `bootstrap_port` and `bootstrap_room`; the one
with that port computes the prompt, the other connects there, names the room and waits. The handover is a line of JSON
with the prompt's hashes. The waiting request fails if the room is closed, unreachable or late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

ROOMS_MAX = 10_000  # computed or awaited; beyond that the oldest are dropped
WAIT_S = 300.0  # SGLang's for the other side
LINE_BYTES_MAX = 16 << 20  # a million hashes


class ComputedKv(msgspec.Struct, frozen=True):
    """The computed blocks of a prompt."""

    hashes: list[int]
    prompt_tokens: int


class Rooms:
    """The bootstrap server of an engine that computes prompts for others."""

    def __init__(self) -> None:
        self._rooms: dict[int, asyncio.Future[ComputedKv]] = {}
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError if the address is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for room in tuple(self._rooms):
            self.gave_up(room)

    def computed(self, room: int, hashes: Sequence[int], prompt_tokens: int) -> None:
        """A room's prompt is computed."""
        future = self._room(room)
        if not future.done():
            future.set_result(ComputedKv(list(hashes), prompt_tokens))

    def gave_up(self, room: int) -> None:
        """A room's prompt will not be computed, or is no longer wanted."""
        if (future := self._rooms.pop(room, None)) is not None:
            future.cancel()

    def _room(self, room: int) -> asyncio.Future[ComputedKv]:
        if room not in self._rooms:
            if len(self._rooms) >= ROOMS_MAX:
                self.gave_up(next(iter(self._rooms)))
            self._rooms[room] = asyncio.get_running_loop().create_future()
        return self._rooms[room]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                room = int(await reader.readline())
                future = self._room(room)
                await asyncio.wait([future])
                if not future.cancelled():
                    writer.write(msgspec.json.encode(future.result()) + b"\n")
                    await writer.drain()
                    self._rooms.pop(room, None)
        except (TimeoutError, ValueError, OSError):
            pass  # the other engine finds the connection closed
        finally:
            writer.close()


async def fetch(host: str, port: int, room: int) -> ComputedKv | None:
    """Returns a room's KV once it is computed; None if it is unavailable."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), port, limit=LINE_BYTES_MAX)
            writer.write(b"%d\n" % room)
            return msgspec.json.decode(await reader.readline(), type=ComputedKv)
    except (TimeoutError, ValueError, OSError):
        return None
    finally:
        if writer is not None:
            writer.close()
