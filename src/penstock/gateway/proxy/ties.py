"""What ties a request to an endpoint: its session, its prompt's prefix, an earlier answer it refers to.

Read here, because the core sees no bodies and headers; only what the routing policy uses is read.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final
from urllib.parse import unquote

import msgspec

from penstock.config.model import Settings
from penstock.config.sections.routing import by_cache, by_session
from penstock.gateway.openai import prefix_keys
from penstock.gateway.openai.body import Peek
from penstock.gateway.openai.fields import field_reader
from penstock.gateway.openai.splice import Body, Spliced
from penstock.http.server.server import Exchange

SESSION_BYTES_MAX: Final = 4096  # of a session field; a longer one is ignored
SESSION_CHARACTERS_MAX: Final = 256  # a longer name is cut, so sessions may become one
RESPONSES_MAX: Final = 100_000  # answers remembered, about 20 MB; a reference to a forgotten one goes anywhere
RESPONSE_ID_MAX: Final = 256
RESPONSES_PATH: Final = "/v1/responses"
#: Methods at an answer that an engine keeps, by the end of its path behind its id.
ANSWER_METHODS: Final = {"": ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
_RESPONSE_ID: Final = re.compile(rb'"id": ?"([^"\\]{1,%d})"' % RESPONSE_ID_MAX)


#: What ties one request: its session, the keys of its prompt's beginning, the endpoint that keeps what it refers to.
Ties = tuple[str | None, tuple[int, ...], str | None]


def stored_answer(path: str) -> tuple[str, str] | None:
    """Returns the id in the path of an answer that an engine keeps, and what follows it; None for other paths."""
    rest = path.removeprefix(RESPONSES_PATH + "/")
    if rest == path or not rest:
        return None
    name, slash, verb = rest.partition("/")
    return (unquote(name), slash + verb) if name and slash + verb in ANSWER_METHODS else None


class Keeping:
    """Notes where one answer is made, of an API that keeps answers."""

    __slots__ = ("_owner", "_responses", "background", "name")

    def __init__(self, responses: Responses, owner: str | None, *, background: bool) -> None:
        self._responses = responses
        self._owner = owner
        self.background = background  #: its engine may compute it after it was answered
        self.name = ""  #: its id, once that has come

    def found(self, head: bytes, endpoint: str) -> bool:
        """Note where an answer that begins with `head` is made. Returns False if its id has not come yet."""
        if not self.name:
            self.name = self._responses.made(head, endpoint, self._owner)
        return bool(self.name)

    def follow(self, look: Callable[[], None]) -> None:
        """Have `look` called when somebody asks for the answer here, until `followed`."""
        self._responses.followed[self.name] = look

    def followed(self) -> None:
        self._responses.followed.pop(self.name, None)


class Made:
    """Where an answer was made, and its owner."""

    __slots__ = ("endpoint", "owner")

    def __init__(self, endpoint: str, owner: str | None) -> None:
        self.endpoint = endpoint
        self.owner = owner  # the tenant, if a key identified it


class Responses:
    """Which endpoint made which answer, of APIs that keep answers."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, Made] = OrderedDict()
        self.followed: dict[str, Callable[[], None]] = {}  #: answers that are computed here; each holds a lease
        self.tell: Callable[[str, str, str | None], None] | None = None  #: to other processes; no endpoint: forgotten

    def made(self, head: bytes, endpoint: str, owner: str | None = None) -> str:
        """Note that an answer that begins with `head` was made there. Returns its id; "": that has not come yet."""
        found = _RESPONSE_ID.search(head)
        if found is None:
            return ""
        answer = found[1].decode("utf-8", "replace")
        self.note(answer, endpoint, owner)
        if self.tell is not None:
            self.tell(answer, endpoint, owner)
        return answer

    def asked(self, answer: str) -> None:
        """Somebody has read, cancelled or deleted an answer."""
        look = self.followed.get(answer)
        if look is not None:
            look()

    def note(self, answer: str, endpoint: str, owner: str | None) -> bool:
        """Remember where an answer was made; empty `endpoint`: forget it. Returns True if that is new."""
        if not endpoint:
            return self._made.pop(answer, None) is not None
        is_news = answer not in self._made
        self._made[answer] = Made(endpoint, owner)
        if len(self._made) > RESPONSES_MAX:
            self._made.popitem(last=False)
        return is_news

    def latest(self, count: int) -> list[tuple[str, Made]]:
        """Returns the latest `count` answers, the oldest first."""
        return list(islice(reversed(self._made.items()), count))[::-1]

    def find(self, response_id: str) -> Made | None:
        """Returns where an answer was made; None: not remembered."""
        return self._made.get(response_id)

    def forget(self, response_id: str) -> None:
        """Forget a deleted answer, here and, through `tell`, elsewhere."""
        self._made.pop(response_id, None)
        if self.tell is not None:
            self.tell(response_id, "", None)

    def home(self, response_id: object) -> str | None:
        """Returns the endpoint where an answer was made; None: not remembered."""
        made = self._made.get(response_id) if isinstance(response_id, str) else None
        return None if made is None else made.endpoint


class Affinities:
    """Reads ties by the settings."""

    def __init__(self, prefix_seed: int) -> None:
        self.prefix_seed = prefix_seed  #: the same wherever keys are compared: see `prefix_keys`
        self.responses = Responses()
        self.cut = prefix_keys.USUAL  #: how prompts are cut into the chunks that keys stand for

    def follow(self, settings: Settings) -> None:
        """Read ties by `settings` from now on. Answers stay remembered."""
        routing = settings.routing
        session = routing.session
        self._reads_prefix = by_cache(routing.policy)
        self.cut = prefix_keys.cut_at(routing.prefix_chunk)
        self._reads_session = by_session(routing.policy)
        self._header = None if session.header is None else session.header.encode()
        self._cookie = None if session.cookie is None else _cookie_pattern(session.cookie)
        self._field = None if session.body is None else field_reader(session.body)
        self._field_name = session.body or ""

    def ties(self, exchange: Exchange, body: Body, peek: Peek, model: str) -> Ties:
        """Returns the session, prefix keys and home of a request for `model`, its alias resolved."""
        path = exchange.target_path
        goes_on = peek.previous_response is not None
        home = self._home(exchange, peek) if goes_on else None
        session = self._session(exchange, body, peek) if self._reads_session else None
        keys: tuple[int, ...] = ()
        # A request that continues an earlier answer begins with a prompt that only the engine knows.
        if self._reads_prefix and not goes_on and peek.text is not None and path in prefix_keys.PATHS:
            keys = prefix_keys.keys(peek.text, model, self.prefix_seed, self.cut)
        return session, keys, home

    def who(self, exchange: Exchange, body: Body, peek: Peek) -> tuple[str | None, str | None]:
        """Returns home and session of a request, whatever the routing policy."""
        return self._home(exchange, peek), self._session(exchange, body, peek)

    def _home(self, exchange: Exchange, peek: Peek) -> str | None:
        if exchange.target_path != RESPONSES_PATH or peek.previous_response is None:
            return None
        return self.responses.home(peek.previous_response)

    def _session(self, exchange: Exchange, body: Body, peek: Peek) -> str | None:
        """The session named by header, cookie or body, in this order."""
        name: str | None = None
        if self._header is not None and (value := exchange.lookup.get(self._header)):
            name = value.decode("latin-1").strip()
        if not name and self._cookie is not None and (cookies := exchange.lookup.get(b"cookie")):
            found = self._cookie.search(cookies)
            name = found[1].decode("latin-1").strip() if found is not None else None
        if not name and self._field is not None and peek.text is not None:
            field = self._named(body)
            if isinstance(field, str | int) and not isinstance(field, bool):
                name = str(field)
        return name[:SESSION_CHARACTERS_MAX] if name else None

    def _named(self, body: Body) -> object:
        """The session field of a body; None: absent or invalid."""
        if isinstance(body, Spliced):
            raw = body.raw(self._field_name, SESSION_BYTES_MAX)
        else:
            assert self._field is not None
            raw = bytes(self._field.decode(body).value)
        if not 0 < len(raw) <= SESSION_BYTES_MAX:
            return None
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return None


def _cookie_pattern(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"(?:^|;)\s*" + re.escape(name.encode()) + rb'="?([^;"]*)')
