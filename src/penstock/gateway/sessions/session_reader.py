"""Reading the session of a request: by the first name that it has, otherwise by the ends of its prompt.

Names of `routing.session.names` come first, then those of `routing.session.header`, `cookie` and `body`, then the rows
of `session_names.py`. A client may send any name: it becomes short and printable, and different ones stay different
(`identity/name_quota.py`).

A body may tell its user otherwise than by `user`: see `user_of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from penstock.config.sections.routing import SessionName, SessionSection
from penstock.core.values.request import Turn
from penstock.gateway.identity.name_quota import safe_name
from penstock.gateway.openai.body import Peek
from penstock.gateway.openai.fields import NOTHING, Named, Text, field_reader
from penstock.gateway.openai.prompt_ends import ends_of
from penstock.gateway.openai.splice import Body, Spliced
from penstock.gateway.sessions.session_names import (
    BODY,
    HEADERS,
    KNOWN,
    LAST,
    PARENT_IN_USER_ID,
    PREVIOUS,
    USER_ID,
    Row,
)

FIELD_BYTES_MAX: Final = 65_536  # of a decoded field; a longer one is known by its hash
SPLICED_BYTES_MAX: Final = 1 << 20  # of one in a large body; a longer one is ignored
_decode: Final = msgspec.json.Decoder().decode

Headers = Mapping[bytes, bytes]  # the first value of each, by its name in lower case


class Turns:
    """Reads sessions and turns by the settings."""

    def __init__(self, settings: SessionSection, seed: int) -> None:
        """`seed`: as that of `ends_of`."""
        self._header = None if settings.header is None else settings.header.encode()
        self._cookie = None if settings.cookie is None else _cookie_pattern(settings.cookie)
        self._field = settings.body or ""
        fields = [field for name in settings.names if name.body for field in (name.body, name.parent)]
        self._fields = {name: field_reader(name) for name in (self._field, *fields) if name}
        self._rows = [_own_row(name) for name in settings.names]
        # A header that is known anyway has its place among the known ones.
        own = self._header is not None and self._header not in HEADERS
        self._is_first = self._cookie is not None or bool(self._field) or own
        self._seed = seed

    def session(self, headers: Headers, body: Body, peek: Peek) -> str | None:
        """Returns the session named by the settings' header, cookie or body, in this order; None: by none."""
        name = ""
        if self._header is not None:
            name = safe_name(headers.get(self._header))
        if not name and self._cookie is not None and (cookies := headers.get(b"cookie")):
            found = self._cookie.search(cookies)
            name = "" if found is None else safe_name(found[1])
        if not name and self._field and peek.text is not None:
            name = self._read_field(self._field, body)
        return name or None

    def named(self, headers: Headers, body: Body, peek: Peek, previous: str = "") -> Turn | None:
        """Returns a request's turn by the first name that it has; None: it has none.

        `previous` is the session of the answer that it goes on from, empty if there is none, or that is not known.
        """
        assert peek.text is not None
        given = _Given(self, headers, body, peek.text, previous)
        for row in self._rows:
            if (turn := given.read(row)) is not None:
                return turn
        if self._is_first and (name := self.session(headers, body, peek)):
            return Turn(name)
        for row in KNOWN:
            if (turn := given.read(row)) is not None:
                last = headers.get(LAST, b"").strip().lower() in (b"true", b"1")
                return Turn(turn.session, turn.part, (), last=True) if last else turn
        return None

    def by_prompt(self, text: Text) -> Turn | None:
        """Returns the turn of a long prompt that is all there; None: it is short, or can't be read."""
        ends = ends_of(text, self._seed)
        return Turn("", "", ends) if ends else None

    def own_field(self, name: str, body: Body) -> str:
        """Returns the name in a field that the settings name; empty: none."""
        return self._read_field(name, body) if name in self._fields else ""

    def _read_field(self, name: str, body: Body) -> str:
        if isinstance(body, Spliced):
            return name_in(body.raw(name, SPLICED_BYTES_MAX))
        return name_in(self._fields[name].decode(body).value)


class _Given:
    """The names in one request."""

    __slots__ = ("_body", "_headers", "_previous", "_text", "_turns")

    def __init__(self, turns: Turns, headers: Headers, body: Body, text: Named, previous: str) -> None:
        self._turns = turns
        self._headers = headers
        self._body = body
        self._text = text
        self._previous = previous

    def read(self, row: Row) -> Turn | None:
        """Returns the session that the request names by a row, or None."""
        _, place, agent, above, _ = row
        session = self._value(place)
        if not session:
            return None
        part = self._value(agent) if agent else ""
        parent = self._value(above) if above else ""
        if above and not parent:
            part = ""
        elif parent and not agent:
            session, part = parent, session
        return Turn(session, "" if part == session else part)

    def _value(self, place: str) -> str:
        if not place.startswith(BODY):
            value = self._headers.get(place.encode())
            return "" if value is None else safe_name(value)
        name, text = place[len(BODY) :], self._text
        if found := self._turns.own_field(name, self._body):
            return found
        if name == "session_id":
            return name_in(text.session_id)
        if name == "conversation":
            return name_in(text.conversation, "id")
        if name == "prompt_cache_key":
            return name_in(text.prompt_cache_key)
        if name == PREVIOUS:
            return self._previous
        if name in (USER_ID, PARENT_IN_USER_ID):
            return _of_user_id(text)[1 if name == USER_ID else 2]
        return ""


def _cookie_pattern(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"(?:^|;)\s*" + re.escape(name.encode()) + rb'="?([^;"]*)')


def _own_row(name: SessionName) -> Row:
    if name.body is not None:
        return "", BODY + name.body, "", BODY + name.parent if name.parent else "", ""
    return "", name.header or "", "", (name.parent or "").lower(), ""


def name_in(raw: msgspec.Raw | bytes, key: str = "") -> str:
    """Returns a text or number of a body, or that of an object's `key`, as a name; empty for anything else."""
    whole = memoryview(raw)
    if len(whole) > FIELD_BYTES_MAX:
        return f"~{xxh3_64_hexdigest(whole)}"
    value = _value(raw)
    if key and isinstance(value, dict):
        value = value.get(key)
    return safe_name(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def user_of(text: Named) -> str | None:
    """Returns the user that a body names by `safety_identifier`, otherwise by `metadata.user_id`; None: by neither."""
    if text.safety_identifier is not NOTHING and (name := name_in(text.safety_identifier)):
        return name
    return None if text.metadata is NOTHING else _of_user_id(text)[0] or None


def _of_user_id(text: Named) -> tuple[str, str, str]:
    """Returns user, session and parent session in `metadata.user_id`, empty if it has none.

    Claude Code writes `user_…_account_…_session_…`, and since 2.1.78 an object as text, in which the account is empty
    for those who pay by key. Other clients write the user alone.
    """
    if text.metadata is NOTHING or len(memoryview(text.metadata)) > FIELD_BYTES_MAX:
        return "", "", ""
    metadata = _value(text.metadata)
    given = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(given, str):
        return "", "", ""
    if given.startswith("{"):
        inside = _value(given.encode("utf-8", "surrogatepass"))
        if isinstance(inside, dict):
            names = [inside.get(key) for key in ("account_uuid", "device_id", "session_id", "parent_session_id")]
            account, device, session, parent = [safe_name(name) if isinstance(name, str) else "" for name in names]
            return account or device, session, parent
    user, mark, session = given.rpartition("_session_")
    if not mark or not given.startswith("user_"):
        return safe_name(given), "", ""
    device, _, account = user.partition("_account_")
    return safe_name(account or device.rstrip("_")), safe_name(session), ""


def _value(raw: msgspec.Raw | bytes) -> object:
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
