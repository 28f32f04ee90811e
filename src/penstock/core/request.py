"""What the scheduler knows of a request: frozen facts, made once at the edge.

The core never sees a body. It is told how large it is and what it is estimated to cost, in tokens.
"""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True, gc=False):
    """One client request, as the scheduler sees it."""

    id: str
    model: str  #: the served model's name, aliases already resolved
    band: int  #: rank of its priority band, 0 is the highest
    tenant: str = "anonymous"
    body_bytes: int = 0
    prompt_tokens: int = 1  #: estimate
    output_tokens: int = 1  #: estimate of what will be generated, never `max_tokens`
    streamed: bool = False  #: the answer comes token by token, so its first token can be seen
    pinned: str | None = None  #: the endpoint named by `?id=`: admitted or refused at once


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What an answer truly cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  #: the part of the prompt that was in the engine's prefix cache
