"""A request as the scheduler knows it: frozen facts, made once at the edge.

The core never sees a body. It gets the size and estimates the cost from that.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from penstock.core.values.settings import Prices

PREFIX_CHUNK_BYTES = 512  # about 128 tokens: finer would cost more than a match of less is worth
PREFIX_CHUNKS_MAX = 512  # 256 KB of prompt; longer matches are equally good
PREFIX_GROWTH = 16  # deep in a prompt a key stands for a sixteenth of the part before it


def _ends() -> tuple[int, ...]:
    ends = [1]
    while (following := ends[-1] + max(1, ends[-1] // PREFIX_GROWTH)) <= PREFIX_CHUNKS_MAX:
        ends.append(following)
    return tuple(ends)


PREFIX_ENDS = _ends()  # how many chunks of a prompt so many of its keys stand for
PREFIX_KEYS_MAX = len(PREFIX_ENDS)
_KEYS = tuple(sum(end <= chunks for end in PREFIX_ENDS) for chunks in range(PREFIX_CHUNKS_MAX + 1))

WORK_PER_OUTPUT_TOKEN = 2.0  # work, independent of charges: completion tokens hold a slot longer

SERVICE_S = 60.0  # memory of reported service of flows: long enough for some long answers

TOOLS = "tools"  # of `Request.needs`: calls of tools, for which engines need a parser

Key = Hashable  # of a block of a prompt: compared and looked up, never counted with


def keys_within(chunks: int) -> int:
    """Returns the number of keys, placed as in `PREFIX_ENDS`, that cover at most `chunks` chunks."""
    return _KEYS[min(chunks, PREFIX_CHUNKS_MAX)]


class Contents(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A body's contents by kind, for estimating tokens per kind."""

    text_bytes: int  #: the rest without the data of pictures, sounds and so on, and without token ids
    token_ids: int = 0  #: of prompts given as such
    pictures: int = 0
    sounds: int = 0
    videos: int = 0
    documents: int = 0
    inputs: int = 1  #: prompts that are computed apart from each other
    answers: int = 1  #: wanted in all; 0: the result is no text


class Request(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One client request, as the scheduler sees it."""

    id: str
    model: str  #: the served model's name, aliases already resolved
    band: int  #: rank of its priority band, 0 is the highest
    tenant: str = "anonymous"
    account: str = ""  #: the name for limits, if not the tenant's: that of a shared part
    flow: tuple[str, ...] = ("anonymous",)  #: path through the fairness levels
    weights: tuple[float, ...] = (1.0,)  #: one per level of the path
    body_bytes: int = 0
    contents: Contents | None = None  #: None: the body is text, one prompt for one answer
    output_tokens_max: int | None = None  #: the cap that the request sets itself
    streamed: bool = False  #: the answer comes token by token, so its first token can be seen
    pinned: str | None = None  #: the endpoint named by `?id=`: admitted or refused at once
    deadline_s: float | None = None  #: when the first token has to be there, on the scheduler's clock
    priority: int = 0  #: order inside its own flow, lower first
    session: str | None = None  #: requests of one session are better served by one endpoint
    prefix: tuple[int, ...] = ()  #: chain hashes of the prompt's chunks, so equal keys mean equal prompts up to there
    prefix_chunk_bytes: int = PREFIX_CHUNK_BYTES  #: of the prompt, per key
    home: str | None = None  #: the endpoint that keeps the answer it refers to: it goes there while that one is alive
    divisible: bool = True  #: its prompt may be computed at one endpoint and its answer made at another
    prices: Prices | None = None  #: its token prices; None: the common ones
    locate_s: float = 0.0  #: it may wait so long for `located` or `cached`
    prompt_tokens_max: int | None = None  #: the longest prompt that its key may send, as estimated
    falls_back: bool = False  #: another model is used if this one has no endpoint: it does not wait for one
    instead_of: str = ""  #: the requested model, if different
    also: tuple[str, ...] = ()  #: further names for limits: those of its key and of its model within the tenant
    prefix_grows: bool = False  #: its later keys stand for several chunks each, as in `PREFIX_ENDS`
    time_per_output_token_s_max: float | None = None  #: endpoints that are slower now are used if no others are open
    only: tuple[str, ...] = ()  #: the endpoints that it may go to; empty: all
    needs: tuple[str, ...] = ()  #: what some engines lack: its path, and `TOOLS` if it has tools
    others: tuple[str, ...] = ()  #: models that may serve it instead: it waits for its own only if none of these works
    carried: bool = (
        False  #: a proxy sends it, once: failures that it reports judge no endpoint, and a recall is its end
    )

    @property
    def accounts(self) -> tuple[str, ...]:
        """The names for limits: the tenant's or the part's first."""
        return (self.account or self.tenant, *self.also)

    def keys_of(self, chunks: int) -> int:
        """Returns how many of the request's leading keys stand for `chunks` chunks of its prompt."""
        return keys_within(chunks) if self.prefix_grows else chunks


class Underway(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A continuing lease, as known to its edge."""

    lease: int
    endpoint: str
    running_s: float  #: since it was sent there
    begun: bool = False  #: its client has some of the answer
    output_tokens: int = 0  #: that were seen of the answer
    decode: str | None = None  #: only its prompt is computed there; this endpoint is leased to answer it
    decode_lease: int | None = None
    handed_over: bool = False  #: its prompt was computed elsewhere


class ServiceGot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A flow's recent service: sums that decay over a minute."""

    band: int
    flow: tuple[str, ...]
    weights: tuple[float, ...]
    accounts: tuple[str, ...]  #: the names for limits
    prices: Prices | None
    requests: float
    prompt_tokens: float
    cached_tokens: float
    completion_tokens: float


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens of a prompt and of its answer."""

    prompt_tokens: int
    output_tokens: int


class Usage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An answer's actual cost in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  #: the part of the prompt that was in the engine's prefix cache
    cached_told: bool = False  #: whether the engine reported it: 0 may also mean that it does not
    reasoning_tokens: int = 0  #: the part of the answer that is reasoning, if the engine reports it

    @property
    def work(self) -> float:
        return max(1, self.prompt_tokens - self.cached_tokens) + WORK_PER_OUTPUT_TOKEN * self.completion_tokens
