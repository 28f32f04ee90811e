"""How is a path served that passes to engines: the table of `config/paths.py`, and each API's ways of answering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from penstock.config.model import Settings
from penstock.config.paths import BELOW, BUILT_IN, PathKind
from penstock.gateway.openai.errors import Api

MODEL: Final = "model"  #: the field that names the model, if no setting names another


class Route:
    """One pass-through path."""

    __slots__ = (
        "added", "api", "bare", "events", "field", "free", "kind", "pooled", "streams", "streams_unless",
        "tells_usage",
    )  # fmt: skip

    def __init__(
        self,
        kind: PathKind,
        api: Api = Api.OPENAI,
        *,
        streams: bool = False,
        streams_unless: bool = False,
        events: bool = False,
        tells_usage: bool = False,
        bare: bool = False,
        field: str = MODEL,
        added: bool = False,
    ) -> None:
        self.kind: Final = kind
        self.free: Final = kind is PathKind.FREE
        self.pooled: Final = kind is PathKind.POOLED
        self.api: Final = api
        self.streams: Final = streams  #: streams by its path, for any body
        self.streams_unless: Final = streams_unless  #: streams unless the body disables it
        self.events: Final = events  #: its streams are server-sent events
        self.tells_usage: Final = tells_usage  #: its streams report usage if `stream_options` asks for it
        self.bare: Final = bare  #: one of OpenAI's without the `/v1` before it, which few engines serve
        self.field: Final = field  #: the field that names the model
        #: By a setting, so its API is unknown. Requests may come without a body, and name the model in the query.
        self.added: Final = added


#: The routes of one path, by method.
Ways = Mapping[str, Route]

_EVENTS = frozenset(
    {
        *("/v1/responses", "/v1/responses/compact", "/v1/messages"),
        *("/invocations", "/inference/v1/generate", "/completion", "/infill"),
    }
)
_COMPLETIONS = frozenset({"/v1/chat/completions", "/v1/completions"})
_BARE = frozenset({"/chat/completions", "/completions", "/embeddings"})
_OLLAMA_STREAMS = frozenset({"/api/chat", "/api/generate"})
_TGI = frozenset({"/generate", "/generate_stream"})


def api_of(path: str) -> Api:
    """Returns the API that decides the error shape of this path."""
    if path.startswith("/api/") and not path.startswith("/api/v1/"):  # there somebody's base URL has a prefix
        return Api.OLLAMA
    if path in _TGI:
        return Api.TGI
    return Api.ANTHROPIC if path.startswith("/v1/messages") else Api.OPENAI


def _built_in(path: str, kind: PathKind) -> Route:
    completes, bare = path in _COMPLETIONS, path in _BARE
    streams = path == "/generate_stream"
    return Route(
        kind,
        api_of(path),
        streams=streams,
        streams_unless=path in _OLLAMA_STREAMS,
        events=completes or streams or path in _EVENTS or (bare and kind is PathKind.LEASED),
        tells_usage=completes,
        bare=bare,
    )


#: A call on an answer that an engine keeps.
STORED: Final = Route(PathKind.FREE)
#: The engines' paths that pass without a setting.
ROUTES: Final[dict[str, Ways]] = {path: {"POST": _built_in(path, kind)} for path, kind in BUILT_IN.items()}


class Paths:
    """The paths that pass, by the settings: the built-in ones and those of `paths`."""

    def __init__(self) -> None:
        self._become(ROUTES)

    def follow(self, settings: Settings) -> None:
        """Pass requests on the paths of `settings`."""
        table: dict[str, dict[str, Route]] = {path: dict(ways) for path, ways in ROUTES.items()}
        for added in settings.paths:
            ways = table.setdefault(added.path, {})
            # An engine's own in the way of OpenAI's API, that may stream.
            kind = PathKind(added.kind)
            ways[added.method] = Route(
                kind, api_of(added.path), events=kind is PathKind.LEASED, field=added.model, added=True
            )
        self._become(table)

    def _become(self, table: Mapping[str, Ways]) -> None:
        self.exact = {path: ways for path, ways in table.items() if not path.endswith(BELOW)}
        self._below = {path.removesuffix("*"): ways for path, ways in table.items() if path.endswith(BELOW)}
        self._prefixes = tuple(sorted(self._below, key=len, reverse=True))  # the closest one counts

    def get(self, path: str) -> Ways | None:
        """Returns the routes of a path; None: it does not pass."""
        found = self.exact.get(path)
        if found is not None or not path.startswith(self._prefixes):
            return found
        if "/../" in unquote(path).replace("\\", "/") + "/":
            return None  # behind it something may read escapes and dots, and must not be led elsewhere
        return self._below[next(prefix for prefix in self._prefixes if path.startswith(prefix))]
