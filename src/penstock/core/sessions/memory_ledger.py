"""The account of KV memory: which session is resident where, and how much does each tenant hold?

A session's footprint is the prompt and answer of its last turn (a sub-agent's, if it had none of its own), plus those
of its sub-agents that are under way. A resident session is booked at one endpoint with its footprint. Booked is not
measured: blocks that several sessions share are counted once for each, and an engine may have given up blocks of a
session that is idle.

So what is told of an endpoint's memory is not all that sessions can use of it. An answer reports how much of its prompt
was cached: a resident's turn that found less than `FOUND` of its previous turn shows that what was booked then does not
fit, and `usable` falls below that by `SHRINK`, at least to `USABLE_MIN` of the memory; each turn that found it while
the endpoint was about full lifts it by `GROW`. (Additive increase and multiplicative decrease, as in congestion
control; it replaces a fixed share of the memory for what is not booked.)

Where an engine's events tell which blocks it gave up, a resident is *marked* by the block at `FOUND` of its last
prompt. If that goes while the session is idle, it is resident no longer; if it was in use, `usable` falls as if its
next turn had found less.

No question costs more than the tenants of one endpoint: residents stand in the order of admission, idle ones in that of
their last turn's end, by endpoint and tenant.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from penstock.core.queueing.entry import Entry

SESSIONS_MAX: Final = 100_000  # some 60 MB; those that neither wait nor are resident are forgotten, the oldest first
FOUND: Final = 0.5  # of the previous turn's tokens: an engine that evicts takes whole contexts, or their ends
SHRINK: Final = 0.98  # with each turn that found less: some of one moment show the same
GROW: Final = 0.002  # of the memory: a hundred good turns take back ten bad ones
USABLE_MIN: Final = 0.5  # of the memory: whatever else uses it, or misreports hits, the gate holds no more than that
FULL: Final = 0.9  # of `usable`: below, a hit does not show that more would fit


class Holder:
    """A tenant of one band: it holds memory at endpoints, and its sessions stand in one line."""

    __slots__ = ("band", "booked", "line", "name", "weight")

    def __init__(self, band: int, name: str) -> None:
        self.band = band
        self.name = name
        self.weight = 1.0
        self.booked = 0  #: tokens, at all endpoints
        self.line: dict[str, AgentSession] = {}  #: that wait, the longest wait first

    @property
    def level(self) -> float:
        """What it holds per weight."""
        return self.booked / self.weight


class AgentSession:
    """One session, its sub-agents included. Written by `MemoryLedger` and `SessionGate` alone."""

    __slots__ = (
        "admitted_s", "agents", "booked", "cached_total", "completion_total", "first", "footprint", "holder", "home",
        "idle_s", "key", "last_wait_s", "left", "lent", "mark", "model", "name", "origin", "own", "parts", "paused",
        "prompt_total", "stopped", "tenant", "turns", "turns_total", "waiting", "waits_s",
    )  # fmt: skip

    def __init__(self, key: str, name: str, tenant: str, holder: Holder) -> None:
        self.key = key  #: unique among all tenants
        self.name = name
        self.tenant = tenant
        self.holder = holder
        self.model = ""  #: of its last turn
        self.own = 0  #: tokens of the session's own last turn
        self.lent = False  #: `own` is of a sub-agent's last turn, because it had no turn of its own
        self.left = 0  #: tokens that its last own turn left at its endpoint since it was admitted
        self.mark: int | None = None  #: key of the block at `FOUND` of its last prompt, if events tell of blocks
        self.agents = 0  #: tokens of sub-agents' turns under way
        self.parts: dict[str, int] = {}  #: turns under way, by request: a sub-agent's tokens, or -1 for its own
        self.footprint = 0
        self.booked = 0  #: at its endpoint
        self.home: str | None = None  #: while it is resident
        self.origin: str | None = None  #: where it was resident last
        self.paused = False  #: it gave its place to others, and has had no turn since
        self.admitted_s = -math.inf
        self.turns = 0  #: ended since it was admitted
        self.turns_total = 0
        self.prompt_total = self.cached_total = self.completion_total = 0  #: tokens of all its turns
        self.idle_s = -math.inf  #: since when no turn is under way
        self.waiting: dict[str, Entry] = {}  #: turns that wait, by request
        self.waits_s = 0.0  #: since when they do
        self.last_wait_s = 0.0  #: for how long they did before it came in
        self.stopped = False  #: by an operator: it comes in when he resumes it
        self.first = False  #: by an operator: it comes in next

    @property
    def idle(self) -> bool:
        """True if it is resident and between turns."""
        return self.home is not None and not self.parts


class Tenancy:
    """The sessions of one holder at one endpoint."""

    __slots__ = ("booked", "holder", "idle", "idle_tokens", "residents")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.booked = 0  #: tokens of its residents
        self.residents: dict[str, AgentSession] = {}  # the longest resident first
        self.idle: dict[str, AgentSession] = {}  # the longest idle first
        self.idle_tokens = 0


class EndpointMemory:
    """One endpoint's KV memory."""

    __slots__ = ("booked", "capacity", "idle_tokens", "marks", "name", "tenancies", "usable")

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity  #: as told
        self.usable = capacity  #: of it, by sessions
        self.booked = 0  #: tokens of all residents
        self.idle_tokens = 0
        self.tenancies: dict[Holder, Tenancy] = {}
        self.marks: dict[int, dict[str, AgentSession]] = {}  # residents by their marks; some share one

    @property
    def room(self) -> int:
        """Tokens free; negative if its residents grew beyond it."""
        return self.usable - self.booked

    def held(self, holder: Holder) -> int:
        """Returns the tokens that a tenant holds here."""
        tenancy = self.tenancies.get(holder)
        return 0 if tenancy is None else tenancy.booked

    @property
    def residents(self) -> int:
        """How many sessions are resident."""
        return sum([len(tenancy.residents) for tenancy in self.tenancies.values()])


class MemoryLedger:
    """Residents by endpoint and tenant, and tokens held by tenant."""

    def __init__(self) -> None:
        self.memories: dict[str, EndpointMemory] = {}
        self.holders: dict[tuple[int, str], Holder] = {}
        self.sessions: OrderedDict[str, AgentSession] = OrderedDict()

    def tells(self, endpoint: str, kv_tokens: int) -> None:
        """Note that an `endpoint` has `kv_tokens` of KV memory."""
        memory = self.memories.get(endpoint)
        if memory is None:
            self.memories[endpoint] = EndpointMemory(endpoint, kv_tokens)
        elif memory.capacity != kv_tokens:
            memory.capacity = memory.usable = kv_tokens

    def emptied(self, endpoint: str) -> list[AgentSession]:
        """An endpoint restarted: nothing is resident there. Returns those that were."""
        memory = self.memories.get(endpoint)
        if memory is None:
            return []
        gone = [session for tenancy in memory.tenancies.values() for session in tenancy.residents.values()]
        for session in gone:
            self.give_up(session)
            session.origin = None
        memory.usable = memory.capacity
        return gone

    def removed(self, endpoint: str) -> list[AgentSession]:
        """An endpoint left, or tells its memory no longer. Returns the sessions that were resident."""
        gone = self.emptied(endpoint)
        self.memories.pop(endpoint, None)
        return gone

    def session(self, name: str, tenant: str, model: str, holder: Holder) -> AgentSession:
        """Returns a session, a new one if it is not known. Names of two tenants never meet.

        Its model is part of it, because agents send small questions of a session to another model, elsewhere.
        """
        key = f"{tenant}\x00{model}\x00{name}"
        session = self.sessions.get(key)
        if session is None:
            session = self.sessions[key] = AgentSession(key, name, tenant, holder)
            self._forget()
        else:
            self.sessions.move_to_end(key)
        return session

    def holder(self, band: int, name: str, weight: float) -> Holder:
        """Returns a tenant of a band, which weighs so much from now on."""
        holder = self.holders.get((band, name))
        if holder is None:
            if len(self.holders) >= SESSIONS_MAX:  # each has a session that waits or is resident, or is forgotten here
                self.holders = {key: x for key, x in self.holders.items() if x.booked or x.line}
            holder = self.holders[band, name] = Holder(band, name)
        holder.weight = weight
        return holder

    def take(self, session: AgentSession, endpoint: str, now: float) -> None:
        """Make a `session` resident at an `endpoint`."""
        assert session.home is None
        session.home = session.origin = endpoint
        session.admitted_s, session.turns = now, 0
        memory, holder = self.memories[endpoint], session.holder
        tenancy = memory.tenancies.get(holder)
        if tenancy is None:
            tenancy = memory.tenancies[holder] = Tenancy(holder)
        tenancy.residents[session.key] = session
        self.book(session)

    def give_up(self, session: AgentSession) -> None:
        """A `session` is resident no longer; what it booked is free."""
        assert session.home is not None
        memory, holder = self.memories[session.home], session.holder
        tenancy = memory.tenancies[holder]
        if tenancy.idle.pop(session.key, None) is not None:
            tenancy.idle_tokens -= session.booked
            memory.idle_tokens -= session.booked
        del tenancy.residents[session.key]
        if not tenancy.residents:
            del memory.tenancies[holder]
        memory.booked -= session.booked
        tenancy.booked -= session.booked
        holder.booked -= session.booked
        session.booked = 0
        self.mark(session, None)
        session.home = None

    def book(self, session: AgentSession) -> None:
        """Set the footprint of a `session` by its last turn and what is under way, and book it where it is resident."""
        session.footprint = session.own + session.agents
        if session.home is None:
            return
        memory, holder = self.memories[session.home], session.holder
        tenancy = memory.tenancies[holder]
        more = session.footprint - session.booked
        was_idle = session.key in tenancy.idle
        if was_idle:
            tenancy.idle_tokens -= session.booked
            memory.idle_tokens -= session.booked
        session.booked = session.footprint
        memory.booked += more
        tenancy.booked += more
        holder.booked += more
        if not session.parts:
            tenancy.idle[session.key] = session
            tenancy.idle_tokens += session.booked
            memory.idle_tokens += session.booked
        elif was_idle:
            del tenancy.idle[session.key]

    def found(self, session: AgentSession, before: int, cached_tokens: int) -> None:
        """A resident's turn found so many tokens cached, of `before` that its previous turn had left there."""
        assert session.home is not None
        memory = self.memories[session.home]
        if cached_tokens < FOUND * before:
            self.overfull(memory)
        elif memory.booked > FULL * memory.usable:
            memory.usable = min(memory.capacity, memory.usable + round(GROW * memory.capacity))

    def overfull(self, memory: EndpointMemory) -> None:
        """What is booked of a `memory` does not fit."""
        least = round(USABLE_MIN * memory.capacity)
        memory.usable = max(least, round(SHRINK * min(memory.usable, max(memory.booked, least))))

    def mark(self, session: AgentSession, key: int | None) -> None:
        """Set the mark of a resident `session`; None: it has none."""
        assert session.home is not None
        marks = self.memories[session.home].marks
        if session.mark is not None:
            of_mark = marks[session.mark]
            del of_mark[session.key]
            if not of_mark:
                del marks[session.mark]
        session.mark = key
        if key is not None:
            marks.setdefault(key, {})[session.key] = session

    def unheld(self, endpoint: str, keys: Iterable[int]) -> list[AgentSession]:
        """Returns the idle residents of an `endpoint` whose marks are among the `keys` of blocks that it gave up."""
        memory = self.memories.get(endpoint)
        if memory is None:
            return []
        marks = memory.marks
        return [session for key in marks.keys() & keys for session in marks[key].values() if session.idle]

    def move(self, session: AgentSession, holder: Holder) -> None:
        """A `session` that stands in no line is of another `holder` from now on."""
        home, admitted_s, turns = session.home, session.admitted_s, session.turns
        if home is not None:
            self.give_up(session)
        session.holder = holder
        if home is not None:
            self.take(session, home, admitted_s)
            session.turns = turns
            tenancy = self.memories[home].tenancies[holder]
            tenancy.residents = dict(sorted(tenancy.residents.items(), key=lambda item: item[1].admitted_s))
            tenancy.idle = dict(sorted(tenancy.idle.items(), key=lambda item: item[1].idle_s))

    def _forget(self) -> None:
        looks = 0
        while len(self.sessions) > SESSIONS_MAX and looks < 64:
            key, session = next(iter(self.sessions.items()))
            looks += 1
            if session.home is None and not session.waiting and not session.parts:
                del self.sessions[key]
            elif looks == 1 and session.idle:  # all are resident: the one that was used least recently
                self.give_up(session)
                del self.sessions[key]
            else:
                self.sessions.move_to_end(key)
