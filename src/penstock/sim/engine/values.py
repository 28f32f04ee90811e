"""The engine model's input and output, and its two refusals."""

from __future__ import annotations

import msgspec


class PromptTooLongError(ValueError):
    """The request could never be served: it is longer than the context, or than all KV blocks."""


class EngineFullError(RuntimeError):
    """As many requests are in the engine as `max_num_queued_reqs` allows."""


class EngineRequest(msgspec.Struct, frozen=True):
    """One request to the engine.

    `block_hashes` has one chained hash for each full block of the prompt (and may go on into the answer);
    empty means that no prefix is shared. `output_tokens` 0 means prefill only, as for embeddings.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    finish_reason: str = "length"
    transferred: bool = False  # the KV of the prompt, except its last token, comes from another engine


class EngineUsage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Progress(msgspec.Struct, frozen=True):
    """One request's share in a step. `usage` and `started_at` come with the first token and with the end."""

    id: str
    tokens: int
    first: bool = False
    finish_reason: str | None = None
    usage: EngineUsage | None = None
    started_at: float | None = None  # when the request was first given a slot

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class EngineGauges(msgspec.Struct, frozen=True, gc=False):
    """The engine's gauges at the end of its last step."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    first_token_s_total: float = 0.0
    first_tokens_total: int = 0
    between_tokens_s_total: float = 0.0
    between_tokens_total: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    preemptions_total: int = 0
    finished_total: int = 0
    steps_total: int = 0


class BlocksStored(msgspec.Struct, frozen=True):
    """Prompt blocks of one request that became known to the prefix cache."""

    request_id: str
    first_block: int
    block_hashes: tuple[int, ...]
    parent_hash: int | None
