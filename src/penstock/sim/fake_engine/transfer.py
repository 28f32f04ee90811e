"""KV computed by another engine: promised by a prefill, used by a decode.

The fields are those of vLLM's NIXL connector. With `do_remote_decode` an engine computes the prompt, makes one token,
and names its blocks; with `do_remote_prefill` another engine fetches them and continues. Here block ids are the
prompt's hashes. Blocks that do not match or are too old are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HELD_S = 480.0  # how long vLLM holds blocks for a decode that does not come


class Transfers:
    """The connector of one engine."""

    def __init__(self, engine_id: str, *, held_s: float = HELD_S) -> None:
        self._engine_id = engine_id
        self._held_s = held_s

    def promise(self, request_id: str, hashes: Sequence[int], prompt_tokens: int, unix_s: float) -> dict[str, Any]:
        """Returns a prefill's description of its blocks."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(hashes),
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": prompt_tokens,
            "remote_until": unix_s + self._held_s,
        }

    def comes(self, params: Mapping[str, Any], hashes: Sequence[int], prompt_tokens: int, unix_s: float) -> bool:
        """Returns True if another engine promised this prompt's KV and still holds it."""
        until = params.get("remote_until")
        return (
            isinstance(params.get("remote_engine_id"), str)
            and params.get("remote_block_ids") == list(hashes)
            and params.get("remote_num_tokens") == prompt_tokens
            and isinstance(until, int | float)
            and unix_s < until
        )
