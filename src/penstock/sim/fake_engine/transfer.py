"""KV that another engine computed: what does a prefill promise, and what may a decode believe of it?

The fields are those of vLLM's NIXL connector, as a proxy sees them. Asked with `do_remote_decode`, an engine computes
the prompt, makes one token, and names its blocks; asked with `do_remote_prefill` and these blocks, another engine
fetches them and goes on. Engines here have no side channel, so block ids are the prompt's own hashes, which tell
whether they fit. Blocks that do not fit, or are too old, are computed again, as a real engine does when it can't fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELD_S = 480.0  # how long vLLM holds blocks for a decode that does not come


class Transfers:
    """The connector of one engine."""

    def __init__(self, engine_id: str, *, held_s: float = HELD_S) -> None:
        self._engine_id = engine_id
        self._held_s = held_s

    def promise(self, request_id: str, hashes: Sequence[int], prompt_tokens: int, unix_s: float) -> dict[str, Any]:
        """Returns what a prefill's answer says about its blocks."""
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
        """Returns True if what another engine promised is this prompt's KV, and still there."""
        until = params.get("remote_until")
        return (
            isinstance(params.get("remote_engine_id"), str)
            and params.get("remote_block_ids") == list(hashes)
            and params.get("remote_num_tokens") == prompt_tokens
            and isinstance(until, int | float)
            and unix_s < until
        )
