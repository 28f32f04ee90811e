"""Where are the answers that engines keep (OpenAI's responses), whose are they, and of which session?

A request that goes on from an answer continues its session. An answer of no session begins one, of its own name.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

from penstock.core.values.request import Turn

RESPONSES_MAX: Final = 100_000  # answers remembered, about 20 MB; a reference to a forgotten one goes anywhere
RESPONSE_ID_MAX: Final = 256
_RESPONSE_ID: Final = re.compile(rb'"id": ?"([^"\\]{1,%d})"' % RESPONSE_ID_MAX)


class Made:
    """Where an answer was made, its owner, and its session."""

    __slots__ = ("endpoint", "owner", "session")

    def __init__(self, endpoint: str, owner: str | None, session: str) -> None:
        self.endpoint = endpoint
        self.owner = owner  # the tenant, if a key identified it
        self.session = session  # that which an answer to go on from it belongs to


class Responses:
    """Which endpoint made which answer, of APIs that keep answers."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, Made] = OrderedDict()
        self.followed: dict[str, Callable[[], None]] = {}  #: answers that are computed here; each holds a lease
        self.tell: Callable[[str, str, str | None, str], None] | None = None  #: to others; no endpoint: forgotten

    def made(self, head: bytes, endpoint: str, owner: str | None = None, session: str = "") -> str:
        """Note that an answer that begins with `head` was made there. Returns its id; "": that has not come yet.

        An answer without a `session` begins one, of its own name.
        """
        found = _RESPONSE_ID.search(head)
        if found is None:
            return ""
        answer = found[1].decode("utf-8", "replace")
        session = session or answer
        self.note(answer, endpoint, owner, session)
        if self.tell is not None:
            self.tell(answer, endpoint, owner, session)
        return answer

    def asked(self, answer: str) -> None:
        """Somebody has read, cancelled or deleted an answer."""
        look = self.followed.get(answer)
        if look is not None:
            look()

    def note(self, answer: str, endpoint: str, owner: str | None, session: str = "") -> bool:
        """Remember where an answer was made; empty `endpoint`: forget it. Returns True if that is new."""
        if not endpoint:
            return self._made.pop(answer, None) is not None
        is_news = answer not in self._made
        self._made[answer] = Made(endpoint, owner, session)
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
            self.tell(response_id, "", None, "")

    def home(self, response_id: object) -> str | None:
        """Returns the endpoint where an answer was made; None: not remembered."""
        made = self._made.get(response_id) if isinstance(response_id, str) else None
        return None if made is None else made.endpoint

    def session(self, response_id: object) -> str:
        """Returns the session of an answer; empty: not remembered."""
        made = self._made.get(response_id) if isinstance(response_id, str) else None
        return "" if made is None else made.session


class Keeping:
    """Notes where one answer is made, of an API that keeps answers."""

    __slots__ = ("_owner", "_responses", "_session", "background", "name")

    def __init__(self, responses: Responses, owner: str | None, turn: Turn | None, *, background: bool) -> None:
        self._responses = responses
        self._owner = owner
        self._session = "" if turn is None else turn.first_name
        self.background = background  #: its engine may compute it after it was answered
        self.name = ""  #: its id, once that has come

    def found(self, head: bytes, endpoint: str) -> bool:
        """Note where an answer that begins with `head` is made. Returns False if its id has not come yet."""
        if not self.name:
            self.name = self._responses.made(head, endpoint, self._owner, self._session)
        return bool(self.name)

    def follow(self, look: Callable[[], None]) -> None:
        """Have `look` called when somebody asks for the answer here, until `followed`."""
        self._responses.followed[self.name] = look

    def followed(self) -> None:
        self._responses.followed.pop(self.name, None)
