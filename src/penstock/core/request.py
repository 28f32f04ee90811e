"""What the scheduler knows of a request: frozen facts, made once at the edge.

The core never sees a body. It is told how large it is, and estimates from that what it will cost.
"""

from __future__ import annotations

import msgspec

PREFIX_CHUNK_BYTES = 512  # about 128 tokens: finer would cost more than a match of less is worth
PREFIX_KEYS_MAX = 512  # 256 KB of prompt; what agrees so far is worth going to wherever it ends


class Request(msgspec.Struct, frozen=True, gc=False):
    """One client request, as the scheduler sees it."""

    id: str
    model: str  #: the served model's name, aliases already resolved
    band: int  #: rank of its priority band, 0 is the highest
    tenant: str = "anonymous"
    flow: tuple[str, ...] = ("anonymous",)  #: path through the fairness levels
    weights: tuple[float, ...] = (1.0,)  #: one per level of the path
    body_bytes: int = 0
    prompt_bytes: int | None = None  #: of the body, what is prompt; None: all of it
    output_tokens_max: int | None = None  #: the cap that the request sets itself
    streamed: bool = False  #: the answer comes token by token, so its first token can be seen
    pinned: str | None = None  #: the endpoint named by `?id=`: admitted or refused at once
    deadline_s: float | None = None  #: when the first token has to be there, on the scheduler's clock
    priority: int = 0  #: order inside its own flow, lower first
    session: str | None = None  #: requests of one session are better served by one endpoint
    prefix: tuple[int, ...] = ()  #: chain hashes of the prompt's chunks, so equal keys mean equal prompts up to there
    prefix_chunk_bytes: int = PREFIX_CHUNK_BYTES  #: how much of the prompt each key stands for
    home: str | None = None  #: the endpoint that keeps what it refers to: goes there for as long as that one is alive
    divisible: bool = True  #: its prompt may be computed at one endpoint and its answer made at another
    locate_s: float = 0.0  #: it may wait so long for `located` or `cached` to tell where its prompt is cached


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What an answer truly cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  #: the part of the prompt that was in the engine's prefix cache
    cached_told: bool = False  #: whether the engine said so: 0 may also mean that it does not tell
