"""An endpoint as those know it who send to it: its transport, its engine, its credential, whom to tell what it says."""

from __future__ import annotations

from collections.abc import Callable

from penstock import clock
from penstock.engines.base import Priority
from penstock.engines.openai import OPENAI
from penstock.gateway.proxy.headers import has_credential
from penstock.http.client.pool import Headers, Upstream

# An engine's load is asked for with one answer in so long: each costs vLLM 2 ms of CPU, as much as the rest of a short
# answer costs its front end, and a line in its log. Half the interval of the fast readings, which tell more.
LOAD_INTERVAL_S = 0.25
PATHS_MAX = 100  # more than there are
REFUSES_S = 600.0  # a field that was refused is left out: an engine that was updated unseen costs one request twice


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
        "finishes",
        "heard_load",
        "meeting_place",
        "moved",
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
        self.meeting_place = meeting_place  # host and port where it hands over what it computes, if it is asked there
        self.unreachable: Callable[[], None] | None = None  # a request found nobody there
        self.disowned: Callable[[], None] | None = None  # it does not have a model that it is believed to have
        self.changed: Callable[[], None] | None = None  # what it is, serves or how it fares became another
        self.engine = OPENAI  # until it is known
        self.priority: Priority | None = None  # how its engine orders by the body's `priority`, if it does
        self.finishes: set[str] = set()  # paths, of two, where its streams were seen to end with a finish reason
        self.served: set[str] = set()  # paths on which it gave a good answer
        self.takes: frozenset[str] = frozenset()  # fields of ours in requests that it answered well
        self.refuses: frozenset[str] = frozenset()  # fields of ours that it was seen to refuse
        self._refuses_until_s = 0.0
        self.heard_load: Callable[[bytes], None] | None = None  # a load header came
        self._load_due_s = 0.0
        self.moved = False  # some of an answer came since `took_movement`

    def answered(self, path: str) -> None:
        """It gave a good answer on a path."""
        if path not in self.served and len(self.served) < PATHS_MAX:
            self.served.add(path)

    def refuses_fields(self, fields: frozenset[str], now: float) -> None:
        """It answered well without these fields of ours, and not with them."""
        self.refuses |= fields
        self._refuses_until_s = now + REFUSES_S

    def refused(self, now: float) -> frozenset[str]:
        """Returns the fields of ours that are left out there."""
        if now >= self._refuses_until_s:
            self.refuses = frozenset()
        return self.refuses

    def forget(self) -> None:
        """Another engine may be there: forget what was seen of its answers."""
        self.finishes.clear()
        self.served.clear()
        self.takes = self.refuses = frozenset()

    def takes_callers_key(self, headers: Headers, *, has_key: bool) -> bool:
        """Returns True if a refused credential is the caller's own.

        It is if the caller sent one that went upstream, or sent none to an engine that answers callers who do.
        `has_key`: the caller's credential is a key of ours.
        """
        return self.api_key is None and not has_key and (has_credential(headers) or bool(self.served))

    def took_movement(self) -> bool:
        """True if answers have come further since this was last asked, or would have if their clients read them."""
        moved, self.moved = self.moved, False
        return moved or self.upstream.waits_for_clients

    def asks_load(self, now: float) -> bool:
        """True if the answer to a request that goes there now shall tell the engine's load."""
        if not self.engine.orca or now < self._load_due_s:
            return False
        self._load_due_s = now + LOAD_INTERVAL_S
        return True

    def own_headers(self) -> Headers:
        """Returns the headers for what we ask the engine ourselves: its credential, or none."""
        return [(b"authorization", b"Bearer " + self.api_key.encode())] if self.api_key else []
