"""LMCache's two services as their wire has them: a controller and a coordinator, told by a test who holds what.

Both know prompts by chunks of 256 tokens, each hashed with all before it. The controller names for each chunk only the
first instance that has it; the coordinator lists everybody, for each rank of a model of that world size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from tests.gateway.raw_engine import Peer, RawEngine

CHUNK_TOKENS = 256


def chunk_hashes(tokens: Sequence[int]) -> list[str]:
    """One for each whole chunk."""
    chain, found = b"", []
    for start in range(0, len(tokens) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        chain = blake2b(chain + repr(list(tokens[start : start + CHUNK_TOKENS])).encode(), digest_size=16).digest()
        found.append(chain.hex())
    return found


class _Service(RawEngine):
    """JSON over HTTP. `asked` keeps what was asked."""

    def __init__(self) -> None:
        super().__init__(self._answers)
        self.asked: list[tuple[str, Any]] = []
        self.broken: bytes | None = None  #: answered to everything instead
        self.hangs = False  #: never answers

    async def _answers(self, peer: Peer) -> None:
        while True:
            head, _, body = (await peer.request()).partition(b"\r\n\r\n")
            method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
            value = json.loads(body) if body else None
            self.asked.append((path, value))
            if self.hangs:
                await peer.gone()
                return
            status, answer = self.answer(method, path.partition("?")[0], value)
            data = json.dumps(answer).encode() if self.broken is None else self.broken
            await peer.send(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))

    def answer(self, method: str, path: str, value: Any) -> tuple[int, Any]:
        raise NotImplementedError


class FakeController(_Service):
    """`lmcache_controller`."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, set[str]] = {}  # by instance, in order of registration
        self.ips: dict[str, str] = {}

    def holds(self, instance: str, tokens: Sequence[int]) -> None:
        self.held.setdefault(instance, set()).update(chunk_hashes(tokens))

    def answer(self, method: str, path: str, value: Any) -> tuple[int, Any]:
        if (method, path) == ("POST", "/lookup"):
            layout: dict[str, list[Any]] = {}
            for number, chunk in enumerate(chunk_hashes(value["tokens"]), start=1):
                holder = next((name for name, held in self.held.items() if chunk in held), None)
                if holder is None:
                    break
                layout[holder] = ["LocalCPUBackend", number * CHUNK_TOKENS]
            return 200, {"event_id": "Lookup1", "layout_info": layout} if layout else {}
        if (method, path) == ("POST", "/query_worker_info") and value["instance_id"] == "all":
            infos = [{"instance_id": name, "worker_id": 0, "ip": ip, "port": 1} for name, ip in self.ips.items()]
            return 200, {"event_id": "1", "worker_infos": infos}
        return 404, {"detail": "Not Found"}


class FakeCoordinator(_Service):
    """`lmcache coordinator`."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[tuple[str, str, int, str], list[dict[str, Any]]] = {}
        self.ips: dict[str, str] = {}
        self.lists = True

    def holds(
        self,
        instance: str,
        tokens: Sequence[int],
        *,
        model: str = "sim",
        world_size: int = 1,
        ranks: Sequence[int] | None = None,
        tier: str = "l1",
        shared: bool = False,
        salt: str = "",
    ) -> None:
        placement = {"instance_id": instance, "incarnation": "i", "tier": tier, "backend": "x", "size_bytes": 1}
        for chunk in chunk_hashes(tokens):
            for rank in range(world_size) if ranks is None else ranks:
                placed = self._placed.setdefault((chunk, model, _kv_rank(world_size, rank), salt), [])
                placed.append({**placement, "shared": shared})

    def answer(self, method: str, path: str, value: Any) -> tuple[int, Any]:
        if (method, path) == ("POST", "/directory/lookup"):
            chunks = chunk_hashes(value["token_ids"])
            size = value["world_size"]
            keys = [
                (chunk, value["model_name"], _kv_rank(size, rank), value["cache_salt"])
                for chunk in chunks
                for rank in range(size)
            ]
            return 200, {
                "chunks": len(chunks),
                "results": [self._result(key, value["token_ids"], chunks) for key in keys],
            }
        if (method, path) == ("GET", "/directory/keys") and self.lists:
            rows = [{"key": _key(*key), "placements": held} for key, held in self._placed.items()]
            return 200, {"total": len(rows), "keys": rows}
        if (method, path) == ("GET", "/instances"):
            return 200, {"instances": [{"instance_id": name, "ip": ip} for name, ip in self.ips.items()]}
        return 404, {"detail": "Not Found"}

    def _result(self, key: tuple[str, str, int, str], tokens: list[int], chunks: list[str]) -> dict[str, Any]:
        placed = self._placed.get(key, [])
        start = chunks.index(key[0]) * CHUNK_TOKENS
        known = tokens[start : start + CHUNK_TOKENS] if placed else []
        return {"key": _key(*key), "placements": placed, "token_ids": known, "access_count": 0}


def _kv_rank(world_size: int, rank: int) -> int:
    return world_size << 24 | rank << 16 | world_size << 8 | rank


def _key(chunk: str, model: str, kv_rank: int, salt: str) -> dict[str, Any]:
    return {
        "chunk_hash_hex": chunk,
        "model_name": model,
        "kv_rank": kv_rank,
        "object_group_id": 0,
        "cache_salt": salt,
    }
