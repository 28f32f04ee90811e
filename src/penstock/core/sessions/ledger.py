"""The account of KV memory: which session is resident where, and how much does each tenant hold?

A session's footprint is the prompt and answer of its last turn, plus those of its sub-agents that are under way. A
resident session is booked at one endpoint with its footprint. Booked is not measured: blocks that several sessions
share are counted once for each, and an engine may have given up blocks of a session that is idle.
"""

from __future__ import annotations

import math
from collections import OrderedDict

SESSIONS_MAX = 100_000  # some 40 MB; those that neither wait nor are resident are forgotten, the oldest first


class AgentSession:
    """One session, its sub-agents included. Written by `MemoryLedger` and `SessionGate` alone."""

    __slots__ = (
        "admitted_s", "booked", "footprint", "home", "idle_s", "name", "origin", "own", "parts", "tenant", "turns",
        "waiting", "waits_s",
    )  # fmt: skip

    def __init__(self, name: str, tenant: str) -> None:
        self.name = name
        self.tenant = tenant
        self.own = 0  # tokens of the session's own last turn
        self.parts: dict[str, tuple[str, int]] = {}  # turns under way: whose it is, and its tokens
        self.footprint = 0
        self.booked = 0  # at its endpoint
        self.home: str | None = None  # while it is resident
        self.origin: str | None = None  # where it was resident last
        self.admitted_s = -math.inf
        self.turns = 0  # ended since it was admitted
        self.idle_s = -math.inf  # since when no turn is under way
        self.waiting: list[str] = []  # turns that wait
        self.waits_s = 0.0  # since when they do

    @property
    def idle(self) -> bool:
        """True if it is resident and between turns."""
        return self.home is not None and not self.parts


class MemoryLedger:
    """Residents by endpoint, and tokens held by tenant."""

    def __init__(self) -> None:
        self.capacity: dict[str, int] = {}
        self.held: dict[str, int] = {}  #: tokens by endpoint
        self.by_tenant: dict[str, int] = {}
        self.residents: dict[str, dict[str, AgentSession]] = {}
        self._sessions: OrderedDict[str, AgentSession] = OrderedDict()

    def add_endpoint(self, name: str, kv_tokens: int) -> None:
        self.capacity[name] = kv_tokens
        self.held.setdefault(name, 0)
        self.residents.setdefault(name, {})

    def remove_endpoint(self, name: str) -> None:
        """An endpoint left, or restarted: nothing is resident there."""
        for session in list(self.residents.get(name, {}).values()):
            self.give_up(session)
            session.origin = None
        for table in (self.capacity, self.held, self.residents):
            table.pop(name, None)

    def session(self, name: str, tenant: str) -> AgentSession:
        """Returns a session, a new one if it is not known. Names of two tenants never meet."""
        key = f"{tenant}\x00{name}"
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = AgentSession(key, tenant)
            self._forget()
        self._sessions.move_to_end(key)
        return session

    def room(self, endpoint: str) -> int:
        """Tokens free at an endpoint; negative if its residents grew beyond it."""
        return self.capacity[endpoint] - self.held[endpoint]

    def take(self, session: AgentSession, endpoint: str, now: float) -> None:
        """Make a session resident."""
        assert session.home is None
        session.home = session.origin = endpoint
        session.admitted_s, session.turns = now, 0
        self.residents[endpoint][session.name] = session
        self._book(session, session.footprint)

    def give_up(self, session: AgentSession) -> None:
        """A session is resident no longer."""
        assert session.home is not None
        self._book(session, 0)
        del self.residents[session.home][session.name]
        session.home = None

    def resize(self, session: AgentSession) -> None:
        """Set a session's footprint by its last turn and what is under way."""
        agents = sum(tokens for part, tokens in session.parts.values() if part)
        own = max((tokens for part, tokens in session.parts.values() if not part), default=session.own)
        session.own = own
        session.footprint = own + agents
        if session.home is not None:
            self._book(session, session.footprint)

    def _book(self, session: AgentSession, tokens: int) -> None:
        assert session.home is not None
        more = tokens - session.booked
        session.booked = tokens
        self.held[session.home] += more
        self.by_tenant[session.tenant] = self.by_tenant.get(session.tenant, 0) + more
        if not self.by_tenant[session.tenant]:
            del self.by_tenant[session.tenant]

    def _forget(self) -> None:
        looks = 0
        while len(self._sessions) > SESSIONS_MAX and looks < len(self._sessions):
            name, session = next(iter(self._sessions.items()))
            if session.home is None and not session.waiting:
                del self._sessions[name]
            else:
                self._sessions.move_to_end(name)
                looks += 1
