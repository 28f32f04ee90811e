"""KV events over ZMQ: which blocks came and went, in vLLM's own format?

Three frames a message: topic, sequence number in 8 bytes big-endian, msgpack of
`[ts, [event, ...], dp_rank]`; events are maps with a `type`. One message for each step that changed
something. Unlike vLLM the socket always binds, whatever host is named. A subscriber that is too slow
loses messages (the socket's own bound) and sees it by the sequence number.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import zmq

    from penstock.sim.engine import BlocksStored

QUEUED_MESSAGES_MAX = 100_000  # vLLM's default high-water mark


class KvEventsError(RuntimeError):
    """The publisher cannot be opened; the message is for the command line."""


class KvPublisher:
    """Publishes the changes of one engine. `prompts` must know each request that is in the engine."""

    def __init__(self, endpoint: str, *, topic: str, block_size: int) -> None:
        try:
            import zmq  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise KvEventsError("--kv-events needs pyzmq: pip install 'penstock[kv]'") from error
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(QUEUED_MESSAGES_MAX)
        self._socket.set(zmq.LINGER, 0)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise KvEventsError(f"cannot bind --kv-events {endpoint}: {error}") from error
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT)
        self._topic = topic.encode()
        self._block_size = block_size
        self._sequence = 0
        self._prompts: dict[str, list[int]] = {}
        self._left: deque[str] = deque()

    def joined(self, request_id: str, tokens: list[int]) -> None:
        self._prompts[request_id] = tokens

    def left(self, request_id: str) -> None:
        """The request is gone; its tokens may still be needed for this step's message."""
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

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _stored(self, blocks: BlocksStored) -> dict[str, Any]:
        size = self._block_size
        start, end = blocks.first_block * size, (blocks.first_block + len(blocks.block_hashes)) * size
        return {
            "type": "BlockStored",
            "block_hashes": blocks.block_hashes,
            "parent_block_hash": blocks.parent_hash,
            "token_ids": self._prompts[blocks.request_id][start:end],
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * len(blocks.block_hashes),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _send(self, events: list[dict[str, Any]], unix_s: float) -> None:
        payload = msgspec.msgpack.encode([unix_s, events, 0])
        self._socket.send_multipart([self._topic, self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1
