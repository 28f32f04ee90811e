"""Which paths are there: the engines' own APIs, passed through, and how each kind of path is served."""

from __future__ import annotations

from enum import Enum
from typing import Final
from urllib.parse import unquote

from penstock.gateway.openai.errors import Api


class PathKind(Enum):
    """How a path is served."""

    QUEUED = "queued"  #: waits its turn and holds a lease while it is answered
    DIRECT = "direct"  #: costs an engine next to nothing: to the least loaded one at once


class Route:
    """One pass-through path."""

    __slots__ = ("api", "bare", "events", "kind", "pooled", "streams", "streams_unless", "tells_usage")

    def __init__(
        self,
        kind: PathKind,
        api: Api = Api.OPENAI,
        *,
        streams: bool = False,
        streams_unless: bool = False,
        events: bool = False,
        tells_usage: bool = False,
        pooled: bool = False,
        bare: bool = False,
    ) -> None:
        self.kind: Final = kind
        self.api: Final = api
        self.streams: Final = streams  #: streams by its path, for any body
        self.streams_unless: Final = streams_unless  #: streams unless the body disables it
        self.events: Final = events  #: its streams are server-sent events
        self.tells_usage: Final = tells_usage  #: its streams report usage if `stream_options` asks for it
        self.pooled: Final = pooled  #: its answer is no text: vectors, scores, a picture
        self.bare: Final = bare  #: one of OpenAI's without the `/v1` before it, which few engines serve


_OPENAI = Route(PathKind.QUEUED)
_COMPLETIONS = Route(PathKind.QUEUED, events=True, tells_usage=True)
_POOLED = Route(PathKind.QUEUED, pooled=True)
DIRECT = Route(PathKind.DIRECT)  #: an engine's own, in the way of OpenAI's API
_EVENTS = Route(PathKind.QUEUED, events=True)  # an engine's own, that may stream
_BARE = Route(PathKind.QUEUED, events=True, bare=True)
_OLLAMA_POOLED = Route(PathKind.QUEUED, Api.OLLAMA, pooled=True)
_OLLAMA_STREAM = Route(PathKind.QUEUED, Api.OLLAMA, streams_unless=True)

ROUTES: dict[str, Route] = {
    "/v1/chat/completions": _COMPLETIONS,
    "/v1/completions": _COMPLETIONS,
    "/v1/responses": Route(PathKind.QUEUED, events=True),
    "/v1/messages": Route(PathKind.QUEUED, Api.ANTHROPIC, events=True),
    "/v1/messages/count_tokens": Route(PathKind.DIRECT, Api.ANTHROPIC),
    "/v1/embeddings": _POOLED,
    "/v1/rerank": _POOLED,
    "/rerank": _POOLED,
    "/v2/rerank": _POOLED,
    "/v1/reranking": _POOLED,  # llama.cpp's, as the next
    "/reranking": _POOLED,
    "/v1/score": _POOLED,
    "/score": _POOLED,
    "/v1/moderations": _POOLED,  # without a required model in OpenAI's API
    "/pooling": _POOLED,
    "/classify": _POOLED,
    "/v1/classify": _POOLED,
    "/v2/embed": _POOLED,  # Cohere's, at vLLM
    "/encode": _POOLED,  # SGLang's
    "/invocations": _EVENTS,  # SageMaker's: a body of any of the others, at vLLM and SGLang
    "/inference/v1/generate": _EVENTS,  # vLLM's, from tokens to tokens
    "/completion": _EVENTS,  # llama.cpp's own, down to `/embeddings`; with `/v1` before them they are OpenAI's
    "/completions": _BARE,
    "/infill": _EVENTS,
    "/chat/completions": _BARE,
    "/embedding": _POOLED,
    "/embeddings": Route(PathKind.QUEUED, pooled=True, bare=True),
    "/api/chat": _OLLAMA_STREAM,
    "/api/generate": _OLLAMA_STREAM,
    "/api/embed": _OLLAMA_POOLED,
    "/api/embeddings": _OLLAMA_POOLED,
    "/tokenize": DIRECT,
    "/detokenize": DIRECT,
    "/generate": Route(PathKind.QUEUED, Api.TGI),
    "/generate_stream": Route(PathKind.QUEUED, Api.TGI, streams=True, events=True),
}
_PREFIXES = ("/v1/audio/", "/v1/images/")


def route(path: str) -> Route | None:
    """Returns the pass-through route of a path, or None."""
    found = ROUTES.get(path)
    if found is None and path.startswith(_PREFIXES) and "/../" not in unquote(path).replace("\\", "/") + "/":
        return (
            _POOLED if path.startswith("/v1/images/") else _OPENAI
        )  # behind it something may read escapes and dots, and must not be led elsewhere
    return found


def api_of(path: str) -> Api:
    """Returns the API that decides the error shape of this path."""
    found = ROUTES.get(path)
    if found is not None:
        return found.api
    if path.startswith("/api/") and not path.startswith("/api/v1/"):  # there somebody's base URL has a prefix
        return Api.OLLAMA
    return Api.ANTHROPIC if path.startswith("/v1/messages") else Api.OPENAI
