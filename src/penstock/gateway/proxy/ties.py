"""What ties a request to an endpoint: its session, its prompt's prefix, an earlier answer it refers to.

Read here, because the core sees no bodies and headers. Of routing's ties only those that the policy uses are read. A
turn of an agent's session is known by the names of clients, or by its prompt if that is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from penstock.config.model import Settings
from penstock.config.sections.routing import by_cache, by_session
from penstock.core.values.request import Turn
from penstock.gateway.openai import prefix_keys
from penstock.gateway.openai.body import Peek
from penstock.gateway.openai.fields import NOTHING
from penstock.gateway.openai.splice import Body
from penstock.gateway.sessions.session_names import HEADERS
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.sessions.kept_answers import Responses
    from penstock.gateway.sessions.session_reader import Turns

LONG_BYTES: Final = 4096  # of a body whose prompt tells its session; a shorter one is computed again in no time
RESPONSES_PATH: Final = "/v1/responses"
#: Methods at an answer that an engine keeps, by the end of its path behind its id.
ANSWER_METHODS: Final = {"": ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}


#: What ties one request: its session for routing, the keys of its prompt's beginning, the endpoint that keeps what it
#: refers to, and its turn of an agent's session.
Ties = tuple[str | None, tuple[int, ...], str | None, Turn | None]


def stored_answer(path: str) -> tuple[str, str] | None:
    """Returns the id in the path of an answer that an engine keeps, and what follows it; None for other paths."""
    rest = path.removeprefix(RESPONSES_PATH + "/")
    if rest == path or not rest:
        return None
    name, slash, verb = rest.partition("/")
    return (unquote(name), slash + verb) if name and slash + verb in ANSWER_METHODS else None


class Affinities:
    """Reads ties by the settings."""

    def __init__(self, prefix_seed: int) -> None:
        self.prefix_seed = prefix_seed  #: the same wherever keys are compared: see `prefix_keys`
        self._responses: Responses | None = None  # made when it is needed
        self.cut = prefix_keys.USUAL  #: how prompts are cut into the chunks that keys stand for
        self._turns: Turns | None = None  # by the settings; made when it is needed

    @property
    def responses(self) -> Responses:
        """Where kept answers were made."""
        if self._responses is None:
            from penstock.gateway.sessions.kept_answers import Responses  # noqa: PLC0415 - few engines keep answers

            self._responses = Responses()
        return self._responses

    def follow(self, settings: Settings) -> None:
        """Read ties by `settings` from now on. Answers stay remembered."""
        routing = settings.routing
        session = routing.session
        self._reads_prefix = by_cache(routing.policy)
        self.cut = prefix_keys.cut_at(routing.prefix_chunk)
        self._reads_session = by_session(routing.policy)
        self._session_by, self._turns = session, None
        self._names_any = bool(session.cookie or session.body or [name for name in session.names if name.body])
        named = [session.header, *[name.header for name in session.names]]
        self._headers = HEADERS.union([header.encode() for header in named if header])

    def ties(self, exchange: Exchange, body: Body, peek: Peek, model: str) -> Ties:
        """Returns the ties of a request for `model`, its alias resolved."""
        goes_on = peek.previous_response is not None
        home = self._home(exchange, peek) if goes_on else None
        session = self._reader.session(exchange.lookup, body, peek) if self._reads_session else None
        keys: tuple[int, ...] = ()
        turn, text = None, peek.text
        if text is not None and exchange.target_path in prefix_keys.PATHS:
            # A request that continues an earlier answer begins with a prompt that only the engine knows.
            if self._reads_prefix and not goes_on:
                keys = prefix_keys.keys(text, model, self.prefix_seed, self.cut)
            if (
                goes_on
                or self._names_any
                or not self._headers.isdisjoint(exchange.lookup)
                or text.metadata is not NOTHING
                or text.session_id is not NOTHING
                or text.conversation is not NOTHING
                or text.prompt_cache_key is not NOTHING
            ):
                previous = self.responses.session(peek.previous_response) if goes_on else ""
                turn = self._reader.named(exchange.lookup, body, peek, previous)
            if turn is None and len(body) >= LONG_BYTES and not goes_on:
                turn = self._reader.by_prompt(text)
        return session, keys, home, turn

    def who(self, exchange: Exchange, body: Body, peek: Peek) -> tuple[str | None, str | None]:
        """Returns home and session of a request, whatever the routing policy."""
        return self._home(exchange, peek), self._reader.session(exchange.lookup, body, peek)

    def _home(self, exchange: Exchange, peek: Peek) -> str | None:
        if exchange.target_path != RESPONSES_PATH or peek.previous_response is None:
            return None
        return self.responses.home(peek.previous_response)

    @property
    def _reader(self) -> Turns:
        if self._turns is None:
            from penstock.gateway.sessions.session_reader import Turns  # noqa: PLC0415 - most chats are short and have no name

            self._turns = Turns(self._session_by, self.prefix_seed)
        return self._turns
