"""An endpoint as senders know it: transport, engine, credential, and callbacks for what its answers show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock import clock
from penstock.engines.base import Priority
from penstock.engines.openai import OPENAI
from penstock.gateway.proxy.headers import credentials
from penstock.http.client.pool import Headers, Upstream

# An engine's load is asked for with one answer per interval: each costs vLLM 2 ms of CPU, as much as the rest of a
# short answer costs its front end, and a log line. Half the interval of the fast readings, which report more.
LOAD_INTERVAL_S: Final = 0.25
PATHS_MAX: Final = 100  # more than there are
#: Fields that we add to a body.
USAGE: Final = "stream_options"
PRIORITY: Final = "priority"
NOTHING_ADDED: Final[frozenset[str]] = frozenset()
USAGE_ADDED: Final = frozenset({USAGE})
PRIORITY_ADDED: Final = frozenset({PRIORITY})
REFUSES_S: Final = 600.0  # how long a refused field is left out; the engine may have been updated meanwhile


class Target:
    """One endpoint."""

    __slots__ = (
        "_load_due_s",
        "_refuses_until_s",
        "api_key",
        "changed",
        "created_s",
        "disowned",
        "engine",
        "heard_load",
        "meeting_place",
        "moved",
        "names",
        "priority",
        "refuses",
        "served",
        "takes",
        "unreachable",
        "upstream",
        "url",
    )

    def __init__(
        self, upstream: Upstream, api_key: str | None = None, meeting_place: tuple[str, int] | None = None
    ) -> None:
        self.upstream = upstream
        self.url = upstream.url
        self.api_key = api_key
        self.created_s = int(clock.wall())  # when it came, for people
        self.meeting_place = meeting_place  # host and port where it hands over a KV cache, if so
        self.unreachable: Callable[[], None] | None = None  # a request could not connect
        self.disowned: Callable[[], None] | None = None  # it lacks a model that it was believed to have
        self.changed: Callable[[], None] | None = None  # its kind, models or health changed
        self.engine = OPENAI  # until it is known
        self.names: Mapping[str, str] = {}  # by a model's name, the engine's own name for it, if that is another
        self.priority: Priority | None = None  # how its engine orders by the body's `priority`, if it does
        self.served: set[str] = set()  # paths on which it gave a good answer
        self.takes: frozenset[str] = frozenset()  # fields of ours in requests that it answered well
        self.refuses: frozenset[str] = frozenset()  # fields of ours that it refused
        self._refuses_until_s = 0.0
        self.heard_load: Callable[[bytes], None] | None = None  # a load header came
        self._load_due_s = 0.0
        self.moved = False  # an answer made progress since `took_movement`

    def name_of(self, model: str) -> str:
        """Returns the engine's name for a model."""
        return self.names.get(model, model)

    def answered(self, path: str) -> None:
        """Note a good answer on a `path`."""
        if len(self.served) < PATHS_MAX:
            self.served.add(path)

    def refuses_fields(self, fields: frozenset[str], now: float) -> None:
        """Note `fields` of ours that it refused, and answered well without."""
        self.refuses |= fields
        self._refuses_until_s = now + REFUSES_S

    def refused(self, now: float) -> frozenset[str]:
        """Returns the fields of ours that are left out there."""
        if now >= self._refuses_until_s:
            self.refuses = frozenset()
        return self.refuses

    def forget(self) -> None:
        """Forget the evidence of its answers: another engine may be there."""
        self.served.clear()
        self.takes = self.refuses = frozenset()

    def takes_callers_key(self, headers: Headers, *, has_key: bool) -> bool:
        """Returns True if a refused credential is the caller's own: sent on, or missing at an engine that answers.

        `has_key`: the caller's credential is a key of ours.
        """
        return self.api_key is None and not has_key and bool(credentials(headers) or self.served)

    def credential(self, headers: Headers, *, has_key: bool) -> Headers:
        """Returns what requests of a caller with these `headers` show the engine as their credential, if anything."""
        return self.own_headers() if self.api_key is not None or has_key else credentials(headers)

    def took_movement(self) -> bool:
        """True if answers made progress since the last call, or would have if their clients had read them."""
        moved, self.moved = self.moved, False
        return moved or self.upstream.waits_for_clients

    def asks_load(self, now: float) -> bool:
        """True if the answer to the next request should carry the engine's load."""
        if not self.engine.orca or now < self._load_due_s:
            return False
        self._load_due_s = now + LOAD_INTERVAL_S
        return True

    def own_headers(self) -> Headers:
        """Returns the headers of our own requests to the engine: its credential, or none."""
        return [(b"authorization", b"Bearer " + self.api_key.encode())] if self.api_key else []
