"""Which paths are there: the engines' own APIs, passed through, and how each kind of path is served."""

from __future__ import annotations

from enum import Enum
from urllib.parse import unquote

import msgspec

from penstock.server.wire import Api


class Kind(Enum):
    """How a path is served."""

    QUEUED = "queued"  #: waits its turn and holds a lease while it is answered
    DIRECT = "direct"  #: costs an engine next to nothing: to the least loaded one at once


class Route(msgspec.Struct, frozen=True):
    """One pass-through path."""

    kind: Kind
    api: Api = Api.OPENAI
    streams: bool = False  #: streams by its path alone, whatever the body says
    events: bool = False  #: its streams are server-sent events
    tells_usage: bool = False  #: its streams tell usage when `stream_options` asks for it
    needs_model: bool = False  #: False: where no model is named, the only one served is meant


_OPENAI = Route(Kind.QUEUED, needs_model=True)
_COMPLETIONS = Route(Kind.QUEUED, events=True, needs_model=True, tells_usage=True)
_QUEUED = Route(Kind.QUEUED)  # an engine's own
_DIRECT = Route(Kind.DIRECT)

ROUTES: dict[str, Route] = {
    "/v1/chat/completions": _COMPLETIONS,
    "/v1/completions": _COMPLETIONS,
    "/v1/responses": Route(Kind.QUEUED, events=True, needs_model=True),
    "/v1/messages": Route(Kind.QUEUED, Api.ANTHROPIC, events=True, needs_model=True),
    "/v1/messages/count_tokens": Route(Kind.DIRECT, Api.ANTHROPIC, needs_model=True),
    "/v1/embeddings": _OPENAI,
    "/v1/rerank": _OPENAI,
    "/rerank": _QUEUED,
    "/v1/score": _OPENAI,
    "/score": _QUEUED,
    "/pooling": _QUEUED,
    "/classify": _QUEUED,
    "/tokenize": _DIRECT,
    "/detokenize": _DIRECT,
    "/generate": Route(Kind.QUEUED, Api.TGI),
    "/generate_stream": Route(Kind.QUEUED, Api.TGI, streams=True, events=True),
}
_PREFIXES = ("/v1/audio/", "/v1/images/")


def route(path: str) -> Route | None:
    """The pass-through route of a path, None when there is none."""
    found = ROUTES.get(path)
    if found is None and path.startswith(_PREFIXES) and "/../" not in unquote(path).replace("\\", "/") + "/":
        return _OPENAI  # behind it something may read escapes and dots, and must not be led elsewhere
    return found


def api_of(path: str) -> Api:
    """Whose error shape a caller of this path expects."""
    found = ROUTES.get(path)
    if found is not None:
        return found.api
    return Api.ANTHROPIC if path.startswith("/v1/messages") else Api.OPENAI
