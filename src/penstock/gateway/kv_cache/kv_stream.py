"""One publisher of KV events: how is its stream followed without a gap, or known to have one?

Messages are `[topic, sequence number, payload]`. One session is one connection: it never reconnects, so nothing of an
engine's former life can come after something of its next one. A session first asks the replay socket for everything it
has, then follows the stream, asks again for missing numbers, and ends in any doubt: a falling number, a broken
connection. Then all blocks are forgotten, and the next session starts from nothing.

ZMQ queues at most `QUEUED_MESSAGES_MAX` for us; dropped messages show as a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from penstock.engines.kv_events import Event, decode

logger = logging.getLogger(__name__)

QUEUED_MESSAGES_MAX = 10_000
MESSAGE_BYTES_MAX = 4 << 20  # one step of an engine: some 100 KB at the very most
REPLAYED_MESSAGES_MAX = 100_000  # engines keep 10,000
CONNECT_TIMEOUT_S = 5.0
REPLAY_TIMEOUT_S = 2.0  # without a message of a replay: vLLM serves them between steps, 0.1 s apart when idle
HEARTBEAT_S = 5.0
YIELD_EVERY = 32  # messages taken in before others have their turn
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_EVENTS = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
)


class PublisherAddress(msgspec.Struct, frozen=True):
    """The publisher and replay addresses of one data-parallel rank."""

    rank: int
    events: str
    replay: str | None = None


class Lost(Exception):  # noqa: N818 - it says what it is
    """The session is over: its knowledge may be wrong from now on."""


class KvStream:
    """Follows one publisher. `take(rank, events)` gets all events, `forget(rank)` voids earlier ones."""

    def __init__(
        self,
        address: PublisherAddress,
        context: zmq.asyncio.Context,
        *,
        take: Callable[[int, Sequence[Event]], None],
        forget: Callable[[int], None],
    ) -> None:
        self._address = address
        self._context = context
        self._take = take
        self._forget = forget
        self._next: int | None = None  # the number to come; None: any will do
        self._newest = -1  # of those that came live
        self._taken = 0
        self._replays = address.replay is not None
        self.connected = asyncio.Event()

    async def follow(self) -> None:
        """Follow the stream for one session. Ends by raising `Lost`, if it isn't cancelled before."""
        socket = self._socket(zmq.SUB)
        monitor = socket.get_monitor_socket(_EVENTS)
        try:
            socket.subscribe(b"")
            socket.connect(self._address.events)
            await self._handshake(monitor)
            watching = asyncio.ensure_future(self._disconnected(monitor))
            following = asyncio.ensure_future(self._read(socket))
            try:
                done, _ = await asyncio.wait({watching, following}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                following.cancel()
                await asyncio.gather(watching, following, return_exceptions=True)
            for task in done:
                task.result()
        except zmq.ZMQError as error:
            raise Lost(str(error)) from error
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)
            self._forget(self._address.rank)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.RCVHWM, QUEUED_MESSAGES_MAX)
        socket.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.set(zmq.RECONNECT_IVL, -1)
        socket.set(zmq.CONNECT_TIMEOUT, int(CONNECT_TIMEOUT_S * 1000))
        socket.set(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
        socket.set(zmq.HEARTBEAT_TIMEOUT, int(3 * HEARTBEAT_S * 1000))
        return socket

    async def _handshake(self, monitor: zmq.asyncio.Socket) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                event = await recv_monitor_message(monitor)
        except TimeoutError:
            raise Lost("there is no publisher") from None
        if event["event"] != zmq.Event.HANDSHAKE_SUCCEEDED:
            raise Lost("there is no publisher")
        self.connected.set()

    async def _disconnected(self, monitor: zmq.asyncio.Socket) -> None:
        while (await recv_monitor_message(monitor))["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
            pass
        raise Lost("the connection broke")

    # --- the live stream --------------------------------------------------------------------------------------

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        await self._catch_up(0)
        while True:
            frames = await socket.recv_multipart()
            if len(frames) < 2 or len(frames[-2]) != 8:
                raise Lost("a malformed message")
            await self._live(int.from_bytes(frames[-2], "big"), frames[-1])

    async def _live(self, number: int, payload: bytes) -> None:
        if number <= self._newest:
            raise Lost("its numbers fell: it was restarted")
        self._newest = number
        if self._next is not None and number > self._next:
            logger.debug("%s: messages %d to %d lost", self._address.events, self._next, number - 1)
            await self._catch_up(self._next)
            if number > self._next:
                self._forget(self._address.rank)
        if self._next is None or number >= self._next:
            await self._accept(number, payload)

    async def _accept(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        batch = decode(payload)
        if batch is None:  # it may have contained removals
            logger.debug("%s: message %d is malformed", self._address.events, number)
            self._forget(self._address.rank)
            return
        self._take(self._address.rank, batch.events)
        self._taken += 1
        if self._taken % YIELD_EVERY == 0:
            await asyncio.sleep(0)

    # --- replays ----------------------------------------------------------------------------------------------

    async def _catch_up(self, start: int) -> None:
        """Apply replays from a number on; forget all blocks if that number is unavailable."""
        if not self._replays:
            return
        replayed = 0
        try:
            async with contextlib.aclosing(self._replayed(start)) as messages:
                async for number, payload in messages:
                    if not replayed and number > start:
                        self._forget(self._address.rank)
                    elif number != (self._next if replayed else start):
                        raise Lost("a replay has a gap")
                    replayed += 1
                    await self._accept(number, payload)
        except TimeoutError:
            if replayed:
                raise Lost("a replay broke off") from None
            logger.info("%s replays nothing; missed events stay unknown", self._address.replay)
            self._replays = False

    async def _replayed(self, start: int) -> AsyncGenerator[tuple[int, bytes]]:
        assert self._address.replay is not None
        socket = self._socket(zmq.DEALER)
        try:
            socket.connect(self._address.replay)
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
            for _ in range(REPLAYED_MESSAGES_MAX):
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    frames = await socket.recv_multipart()
                if len(frames) < 3 or len(frames[-2]) != 8:
                    raise Lost("a malformed replay")
                if frames[-2] == _END_OF_REPLAY:
                    return
                yield int.from_bytes(frames[-2], "big"), frames[-1]
            raise Lost("a replay has no end")
        finally:
            socket.close(linger=0)
