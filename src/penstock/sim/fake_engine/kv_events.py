"""KV events over ZMQ in vLLM's format.

Three frames a message: topic, sequence number in 8 bytes big-endian, msgpack of `[ts, [event, ...], dp_rank]`; events
are maps with a `type`. One message for each step that changed something. Unlike vLLM, the socket always binds. A
subscriber that is too slow loses messages (the socket's own bound) and sees it by the sequence number. It may ask the
replay socket for those from a number on: `["", number]` brings `["", topic, number, payload]` for each of the last
10,000, and at last the number -1.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import asyncio

    import zmq

    from penstock.sim.engine.values import BlocksStored

QUEUED_MESSAGES_MAX = 100_000  # vLLM's default high-water mark
REPLAYED_MESSAGES_MAX = 10_000  # vLLM's default too
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KvEventsError(RuntimeError):
    """The publisher can't be opened; the message is for the command line."""


class KvPublisher:
    """Publishes the changes of one engine. `prompts` must know each request that is in the engine."""

    def __init__(self, endpoint: str, *, topic: str, block_size: int, replay: str | None = None) -> None:
        try:
            import zmq  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise KvEventsError("--kv-events needs pyzmq: pip install 'penstock-gateway[kv]'") from error
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._replay: zmq.Socket[bytes] | None = None
        self._again = zmq.Again
        self._socket.set_hwm(QUEUED_MESSAGES_MAX)
        self._socket.set(zmq.LINGER, 0)
        option, address = "--kv-events", endpoint
        try:
            self._socket.bind(endpoint)
            if replay is not None:
                option, address = "--kv-replay", replay
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.set_hwm(QUEUED_MESSAGES_MAX)
                self._replay.set(zmq.LINGER, 0)
                self._replay.bind(replay)
        except zmq.ZMQError as error:
            self.close()
            raise KvEventsError(f"cannot bind {option} {address}: {error}") from error
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = None if self._replay is None else self._replay.get_string(zmq.LAST_ENDPOINT)
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=REPLAYED_MESSAGES_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topic = topic.encode()
        self._block_size = block_size
        self._sequence = 0
        self._losing = 0
        self._prompts: dict[str, tuple[list[int], str]] = {}  # tokens and salt
        self._left: deque[str] = deque()

    def joined(self, request_id: str, tokens: list[int], salt: str) -> None:
        self._prompts[request_id] = tokens, salt

    def left(self, request_id: str) -> None:
        """A request has left the engine; its tokens may still be needed for this step's message."""
        self._left.append(request_id)

    def publish(self, stored: list[BlocksStored], removed: list[int], *, unix_s: float) -> None:
        events: list[dict[str, Any]] = []
        if removed:
            events.append({"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU", "group_idx": 0})
        events.extend(self._stored(blocks) for blocks in stored)
        while self._left:
            self._prompts.pop(self._left.popleft(), None)
        if events:
            self._send(events, unix_s)

    def cleared(self, *, unix_s: float) -> None:
        self._send([{"type": "AllBlocksCleared"}], unix_s)

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """Returns vLLM's answer at `/kv_event_sources`."""
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": REPLAYED_MESSAGES_MAX,
            "hwm": QUEUED_MESSAGES_MAX,
            "max_queue_size": QUEUED_MESSAGES_MAX,
            "topic": self._topic.decode(),
        }
        return {"0": source}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve replays from now on."""
        if self._replay is not None:
            self._loop = loop
            loop.add_reader(self._replay.fileno(), self._serve_replays)

    def lose(self) -> None:
        """Number the next message and keep it for replays, but do not send it: for tests."""
        self._losing += 1

    def close(self) -> None:
        if self._replay is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._replay.fileno())
            self._replay.close()
        self._socket.close()
        self._context.term()

    def _serve_replays(self) -> None:
        assert self._replay is not None
        while True:
            try:
                asked = self._replay.recv_multipart(flags=1)  # zmq.NOBLOCK
            except self._again:
                return  # the descriptor wakes us only when there was nothing left
            if len(asked) != 3:
                continue
            start = int.from_bytes(asked[2], "big")
            for number, payload in self._sent:
                if int.from_bytes(number, "big") >= start:
                    self._replay.send_multipart([asked[0], b"", self._topic, number, payload], flags=1)
            self._replay.send_multipart([asked[0], b"", b"", _END_OF_REPLAY, b""], flags=1)

    def _stored(self, blocks: BlocksStored) -> dict[str, Any]:
        size = self._block_size
        start, end = blocks.first_block * size, (blocks.first_block + len(blocks.block_hashes)) * size
        tokens, salt = self._prompts[blocks.request_id]
        extra_keys: list[list[str] | None] = [None] * len(blocks.block_hashes)
        if salt and blocks.first_block == 0:
            extra_keys[0] = [salt]
        return {
            "type": "BlockStored",
            "block_hashes": blocks.block_hashes,
            "parent_block_hash": blocks.parent_hash,
            "token_ids": tokens[start:end],
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": extra_keys,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _send(self, events: list[dict[str, Any]], unix_s: float) -> None:
        payload = msgspec.msgpack.encode([unix_s, events, 0])
        number = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._sent.append((number, payload))
        if self._losing:
            self._losing -= 1
        else:
            self._socket.send_multipart([self._topic, number, payload])
