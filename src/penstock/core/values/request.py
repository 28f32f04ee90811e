"""A request as the scheduler knows it: frozen facts, made once at the edge.

The core never sees a body. It gets the size and estimates the cost from that. These are classes of the program, because
every decision reads them; between processes they are rows (`share/messages.py`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from penstock.core.values.settings import Prices

PREFIX_CHUNK_BYTES: Final = 512  # about 128 tokens: finer would cost more than a match of less is worth
PREFIX_CHUNKS_MAX: Final = 512  # 256 KB of prompt; longer matches are equally good
PREFIX_GROWTH: Final = 16  # deep in a prompt a key stands for a sixteenth of the part before it


def _ends() -> tuple[int, ...]:
    ends = [1]
    while (following := ends[-1] + max(1, ends[-1] // PREFIX_GROWTH)) <= PREFIX_CHUNKS_MAX:
        ends.append(following)
    return tuple(ends)


PREFIX_ENDS: Final = _ends()  # how many chunks of a prompt so many of its keys stand for
PREFIX_KEYS_MAX: Final = len(PREFIX_ENDS)
_KEYS: Final = tuple(sum(end <= chunks for end in PREFIX_ENDS) for chunks in range(PREFIX_CHUNKS_MAX + 1))

WORK_PER_OUTPUT_TOKEN: Final = 2.0  # work, independent of charges: completion tokens hold a slot longer

SERVICE_S: Final = 60.0  # memory of reported service of flows: long enough for some long answers

TOOLS: Final = "tools"  # of `Request.needs`: calls of tools, for which engines need a parser

Key = Hashable  # of a block of a prompt: compared and looked up, never counted with


def keys_within(chunks: int) -> int:
    """Returns the number of keys, placed as in `PREFIX_ENDS`, that cover at most `chunks` chunks."""
    return _KEYS[min(chunks, PREFIX_CHUNKS_MAX)]


class _ByFields:  # noqa: PLW1641 - no decision depends on a hash
    """Equal to another of its class with the same fields. Constructors take them in the order of `row`."""

    __slots__ = ()

    def row(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByFields) and type(other) is type(self) and self.row() == other.row()

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.row()}"


class Contents(_ByFields):
    """A body's contents by kind, for estimating tokens per kind."""

    __slots__ = ("answers", "documents", "inputs", "pictures", "sounds", "text_bytes", "token_ids", "videos")

    def __init__(
        self,
        text_bytes: int,
        token_ids: int = 0,
        pictures: int = 0,
        sounds: int = 0,
        videos: int = 0,
        documents: int = 0,
        inputs: int = 1,
        answers: int = 1,
    ) -> None:
        self.text_bytes: Final = text_bytes  #: the rest without the data of pictures, sounds and so on, and token ids
        self.token_ids: Final = token_ids  #: of prompts given as such
        self.pictures: Final = pictures
        self.sounds: Final = sounds
        self.videos: Final = videos
        self.documents: Final = documents
        self.inputs: Final = inputs  #: prompts that are computed apart from each other
        self.answers: Final = answers  #: wanted in all; 0: the result is no text

    def row(self) -> tuple[Any, ...]:
        pieces = self.pictures, self.sounds, self.videos, self.documents
        return (self.text_bytes, self.token_ids, *pieces, self.inputs, self.answers)


class Turn(_ByFields):
    """One request of an agent's session: its name, if the client gave one, and its prompt's last ends."""

    __slots__ = ("ends", "last", "part", "session")

    def __init__(self, session: str = "", part: str = "", ends: tuple[int, ...] = (), last: bool = False) -> None:
        self.session: Final = session  #: name of the root session; empty: not named
        self.part: Final = part  #: name of its sub-agent; empty: the session itself
        #: Hashes of the prompt up to each of its last messages, the whole prompt last; empty if it is short.
        self.ends: Final = ends
        self.last: Final = last  #: the client says that the session ends with it

    def row(self) -> tuple[Any, ...]:
        return self.session, self.part, self.ends, self.last

    @property
    def first_name(self) -> str:
        """The name of the session that begins with it; empty if it has neither a name nor ends."""
        return self.session or (f"~{self.ends[-1] & 0xFFFFFFFFFFFFFFFF:016x}" if self.ends else "")


_FIELDS: Final = (
    "id", "model", "band", "tenant", "account", "also", "flow", "weights", "body_bytes", "contents",
    "output_tokens_max", "streamed", "pinned", "deadline_s", "priority", "prices", "locate_s",
    "prompt_tokens_max", "session", "prefix", "prefix_chunk_bytes", "prefix_grows",
    "time_per_output_token_s_max", "home", "divisible", "falls_back", "needs", "others", "instead_of", "turn",
    "only", "carried",
)  # fmt: skip


class Request(_ByFields):
    """One client request, as the scheduler sees it."""

    __slots__ = _FIELDS

    def __init__(
        self,
        id: str,  # noqa: A002
        model: str,
        band: int,
        tenant: str = "anonymous",
        account: str = "",
        also: tuple[str, ...] = (),
        flow: tuple[str, ...] = ("anonymous",),
        weights: tuple[float, ...] = (1.0,),
        body_bytes: int = 0,
        contents: Contents | None = None,
        output_tokens_max: int | None = None,
        streamed: bool = False,
        pinned: str | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        prices: Prices | None = None,
        locate_s: float = 0.0,
        prompt_tokens_max: int | None = None,
        session: str | None = None,
        prefix: tuple[int, ...] = (),
        prefix_chunk_bytes: int = PREFIX_CHUNK_BYTES,
        prefix_grows: bool = False,
        time_per_output_token_s_max: float | None = None,
        home: str | None = None,
        divisible: bool = True,
        falls_back: bool = False,
        needs: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
        instead_of: str = "",
        turn: Turn | None = None,
        only: tuple[str, ...] = (),
        carried: bool = False,
    ) -> None:
        self.id: Final = id
        self.model: Final = model  #: the served model's name, aliases already resolved
        self.band: Final = band  #: rank of its priority band, 0 is the highest
        self.tenant: Final = tenant
        self.account: Final = account  #: the name for limits, if not the tenant's: that of a shared part
        self.also: Final = also  #: further names for limits: those of its key and of its model within the tenant
        self.flow: Final = flow  #: path through the fairness levels
        self.weights: Final = weights  #: one per level of the path
        self.body_bytes: Final = body_bytes
        self.contents: Final = contents  #: None: the body is text, one prompt for one answer
        self.output_tokens_max: Final = output_tokens_max  #: the cap that the request sets itself
        self.streamed: Final = streamed  #: the answer comes token by token, so its first token can be seen
        self.pinned: Final = pinned  #: the endpoint named by `?id=`: admitted or refused at once
        self.deadline_s: Final = deadline_s  #: when the first token has to be there, on the scheduler's clock
        self.priority: Final = priority  #: order inside its own flow, lower first
        self.prices: Final = prices  #: its token prices; None: the common ones
        self.locate_s: Final = locate_s  #: it may wait so long for `located` or `cached`
        self.prompt_tokens_max: Final = prompt_tokens_max  #: the longest prompt that its key may send, as estimated
        self.session: Final = session  #: requests of one session are better served by one endpoint
        self.prefix = prefix  #: chain hashes of the prompt's chunks: equal keys mean equal prompts up to there
        self.prefix_chunk_bytes: Final = prefix_chunk_bytes  #: of the prompt, per key
        self.prefix_grows: Final = prefix_grows  #: its later keys stand for several chunks each, as in `PREFIX_ENDS`
        #: Endpoints that are slower now are used if no others are open.
        self.time_per_output_token_s_max: Final = time_per_output_token_s_max
        self.home: Final = home  #: the endpoint that keeps the answer it refers to; it goes there if that is alive
        self.divisible: Final = divisible  #: its prompt may be computed at one endpoint and its answer made at another
        self.falls_back: Final = falls_back  #: if this model has no endpoint, another is used: it does not wait for one
        self.needs: Final = needs  #: what some engines lack: its path, and `TOOLS` if it has tools
        self.others: Final = others  #: models that may serve it instead: it waits for its own if none of these works
        self.instead_of: Final = instead_of  #: the requested model, if different
        self.turn: Final = turn  #: of a session; None: unnamed and short
        self.only: Final = only  #: the endpoints that it may go to; empty: all
        #: A proxy sends it, once: failures that it reports judge no endpoint, and a recall is its end.
        self.carried: Final = carried

    def row(self) -> tuple[Any, ...]:
        """Returns the fields as a process sends them to another: contents and turn are rows, too."""
        contents = None if self.contents is None else self.contents.row()
        turn = None if self.turn is None else self.turn.row()
        return (
            self.id, self.model, self.band, self.tenant, self.account, self.also, self.flow, self.weights,
            self.body_bytes, contents, self.output_tokens_max, self.streamed, self.pinned, self.deadline_s,
            self.priority, self.prices, self.locate_s, self.prompt_tokens_max, self.session, self.prefix,
            self.prefix_chunk_bytes, self.prefix_grows, self.time_per_output_token_s_max, self.home,
            self.divisible, self.falls_back, self.needs, self.others, self.instead_of, turn, self.only, self.carried,
        )  # fmt: skip

    def but(self, **changes: Any) -> Request:
        """Returns the same request with other values of these fields."""
        return Request(**{**{name: getattr(self, name) for name in _FIELDS}, **changes})

    def forget_prefix(self) -> None:
        """Drop the keys of its prompt: of a long one they are many times larger than all else."""
        self.prefix = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        """The names for limits: the tenant's or the part's first."""
        return (self.account or self.tenant, *self.also)

    def keys_of(self, chunks: int) -> int:
        """Returns how many of the request's leading keys stand for `chunks` chunks of its prompt."""
        return keys_within(chunks) if self.prefix_grows else chunks


class Estimate(_ByFields):
    """Tokens of a prompt and of its answer."""

    __slots__ = ("output_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = output_tokens

    def row(self) -> tuple[Any, ...]:
        return self.prompt_tokens, self.output_tokens


class Usage(_ByFields):
    """An answer's actual cost in tokens."""

    __slots__ = ("cached_tokens", "cached_told", "completion_tokens", "prompt_tokens", "reasoning_tokens")

    def __init__(
        self,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        cached_told: bool = False,
        reasoning_tokens: int = 0,
    ) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.completion_tokens: Final = completion_tokens
        self.cached_tokens: Final = cached_tokens  #: the part of the prompt that was in the engine's prefix cache
        self.cached_told: Final = cached_told  #: whether the engine reported it: 0 may also mean that it does not
        self.reasoning_tokens: Final = reasoning_tokens  #: the part of the answer that is reasoning, if reported

    @property
    def work(self) -> float:
        return max(1, self.prompt_tokens - self.cached_tokens) + WORK_PER_OUTPUT_TOKEN * self.completion_tokens

    def row(self) -> tuple[Any, ...]:
        tokens = self.prompt_tokens, self.completion_tokens, self.cached_tokens
        return (*tokens, self.cached_told, self.reasoning_tokens)
