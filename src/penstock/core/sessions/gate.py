"""The gate before the engines' KV memory: which session waits for how long, and in fairness to whom?

**Model.** An endpoint has M tokens of KV memory. A session is *resident* there with its footprint f, *idle* between its
turns; otherwise it is new or paused, and its turns wait. A turn of a resident session finds its prompt in the cache, as
long as the residents' footprints are within M; a session that comes back after a pause has its whole context computed
again. So turns of residents pass at once, and others wait until their session becomes resident. While everything fits,
all pass, and routing decides alone where they go: what is booked is where they were sent. Otherwise the gate names the
endpoint, and the turn goes there or, if that is away, or has no room for `STAY` times what computing the context takes
(`worth_s` at most), elsewhere.

**Rules.** Room for a waiting session is free room (`SPARE` stays free, for growth), sessions idle for `lease_s` of
tenants that hold no less per weight, sessions idle for W of all others, because most of them are over, and
1. *Max-min*: a tenant's level is what he holds per weight. One whose level stays below another's with the session
   takes room from idle sessions of the latter, at once, the highest level first. Each such step lowers the higher of
   two levels and never lifts the lower one above it, so levels become equal, except of those who want less: max-min.
   If it turns the two levels round, which two tenants could do with each turn, the one paused was resident for a lease
   (`WORTH`) or `slice_s`. Whoever holds nothing gets his first session in, whatever its size: from sessions resident
   for `slice_s`. A tenant of a lower band counts as above all of a higher one.
2. *W*: a session that waited for `wait_s` takes the room of idle sessions that had a turn, of its own tenant (if all
   that he holds would not do, of others, too), the longest resident first; those of at least `slice_s` before others.
3. *Origin first*: a session goes back to where it was. It goes elsewhere, if no room is to be had there, once it waited
   for `worth_s`, or by rule 1 or 2.
Of the tenants the one that holds the least per weight is first (before all, whose session waited more than W), of equal
ones and within a tenant who waits longest. Residents that grow
beyond M cost idle sessions of the tenant that holds the most per weight their place, the smallest that makes up for it.
A session whose context is less than `SMALL` of every memory neither waits nor counts: computing it again takes a
moment. Nor does the first prompt without a name, which may be the only one: it is a session's from its second turn on.
And a lease is no longer than `WORTH` times what computing the context again takes.

**Bound.** Let every turn end within T, and let a tenant have n residents. Of his sessions, m claim room by rule 2 when
another one begins to, at `CLAIM` · W. Within each T every resident is idle at least once with a turn behind it, and the
gate looks at that moment; so each T lets n sessions in, as long as none is larger than the resident that it replaces
with the free room there, and the last one waited at most CLAIM · W + ⌈(m + 1)/n⌉ · T. Not proven: a larger session,
which needs several residents to be idle at once; engines whose memory is not what they report; turns without an end;
more than `LINES_MAX` tenants that claim room at once.

**Price of W.** Each session let in by rule 2 costs one context computed again, and m excess sessions are let in once in
W: m · f / (prefill rate · W) of one engine's time (`price`). With 7 sessions of 85,000 tokens, 25,000 tokens a second
and 60 s that is 40 %, with 300 s 8 %.

**After a change of leader** residents are known by their leases under way. An idle one is known again by its next turn:
for `RETURN_S` nobody else is let in, and for a lease a turn whose prompt was sent to an endpoint before is resident
there; one that waited already, maybe for memory, only if it fits. Lost are operators' pauses, counts of turns, and the
order of who waited by W in the other's line: age is kept.

While all endpoints of a model are away nobody comes in, and residents wait in the queue for theirs. Nor does a session
of a tenant that an operator paused.

It does nothing for a model of which an endpoint in service tells no memory, or keeps no blocks of ended requests, and
none where endpoints have roles.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.quotas import Quotas
from penstock.core.sessions.memory_ledger import FOUND, AgentSession, EndpointMemory, Holder, MemoryLedger, Tenancy
from penstock.core.sessions.recognition import SessionNames
from penstock.core.util.decaying import DecayingRate
from penstock.core.values.lifecycle import State
from penstock.core.values.request import Request, Usage
from penstock.core.values.rows import MemoryRow, SessionsSnapshot
from penstock.core.values.settings import SHORT_WAIT_S, SessionSettings

STOPS_MAX: Final = 1_000  # pauses by operators
CLAIM: Final = 0.95  # of W: the rest is for a session to end its turn
SPARE: Final = 0.08  # of an endpoint's memory: two sessions of 85,000 tokens in 2,200,000
SMALL: Final = 0.002  # of an endpoint's memory: five hundred fill it, and one is computed within a step or two
GROWN_MAX: Final = 0.05  # of an endpoint's memory: residents may exceed it until one of a tenant over his share is idle
WORTH: Final = 10.0  # times the seconds of prefill: a wait for a place costs its client all of them, a prompt a tenth
STAY: Final = 2.0  # times the seconds of prefill: elsewhere its context is computed, and later what that pushes out
IDLE_MAX: Final = 64  # idle sessions of a tenant at one endpoint, the longest idle first, that may have shorter leases
LOOK_MAX: Final = 16  # sessions of one tenant that may pass one which does not fit, into free room
LINES_MAX: Final = 32  # tenants looked at in one round, and as many more of those that waited W
ADMITTED_MAX: Final = 64  # sessions let in by one fact; the next one goes on
TENANTS_SHOWN: Final = 50  # in the row of an endpoint
RETURN_S: Final = 10.0  # half of all think times are shorter
LOOK_S: Final = 1.0  # between two looks without a fact: leases and slices are tens of seconds


class Turned:
    """A request of a session, from its arrival to its end."""

    __slots__ = ("entry", "mark", "part", "session", "tokens")

    def __init__(self, session: AgentSession, part: str, entry: Entry) -> None:
        self.session = session
        self.part = part
        self.entry = entry
        self.tokens = entry.prompt_tokens
        self.mark: int | None = None  #: see `MemoryLedger.mark`


class SessionGate:
    """Turns come in, and wait or pass. All times in seconds, all sizes in tokens."""

    def __init__(
        self,
        settings: SessionSettings,
        pool: Pool,
        quotas: Quotas,
        *,
        tenant_level: int | None = 0,
        lease_s: float = 30.0,
        slice_s: float = 120.0,
        worth_s: float = 30.0,
        worth: float = WORTH,
    ) -> None:
        """`settings.wait_s` is W. Others as in the rules above; `tenant_level`: which element of a flow's path."""
        self.settings = settings
        self.on = settings.memory
        self.ledger = MemoryLedger()
        self.pauses = self.moves = self.forced = 0  #: sessions paused, come back elsewhere, let in by rule 2
        self.waiting = 0  #: sessions that stand in a line
        self.stirred = False  #: something happened since it last looked, and sessions wait
        self._pool = pool
        self._quotas = quotas
        self._tenant_level = tenant_level
        self._lease_s = lease_s
        self._slice_s = slice_s
        self._worth_s = worth_s
        self._worth = worth
        self._names = SessionNames()
        self.turns: dict[str, Turned] = {}  #: by request: those that wait or are under way
        self.lines: dict[Holder, None] = {}  #: those of whom sessions wait
        self.stopped: dict[str, AgentSession] = {}  #: by operators, those that wait
        self.stops: dict[tuple[str, str], None] = {}  #: tenants and names that operators paused, known here or not
        self._staying: dict[str, float] = {}  # requests that go to one endpoint alone, and until when
        self._stays: list[tuple[float, str]] = []  # a heap of these; some have left
        self._admissions = DecayingRate()
        self._closed_until_s = self._returns_until_s = -math.inf  # after a change of leader

    # --- facts --------------------------------------------------------------------------------------------------

    def follow(self, settings: SessionSettings) -> list[Entry]:
        """Use other settings from now on. Returns the requests that wait no longer, because it is off."""
        self.settings = settings
        if settings.memory is self.on:
            return []
        self.on = settings.memory
        going = [turn.entry for turn in self.turns.values() if turn.entry.held]
        for turn in self.turns.values():
            turn.entry.may_leave()
        capacities = {name: memory.capacity for name, memory in self.ledger.memories.items()}
        self.ledger = MemoryLedger()
        for name, capacity in capacities.items():
            self.ledger.tells(name, capacity)
        self.turns, self.lines, self.stopped, self._staying, self._stays = {}, {}, {}, {}, []
        self.waiting, self.stirred = 0, False
        return going

    def arrived(self, entry: Entry, now: float, *, waited_s: float = 0.0, decided: bool = False) -> bool:
        """A request with a turn arrived. Returns True if it passes; otherwise it waits for `released`.

        `decided`: another scheduler let it wait, perhaps for memory: then its session may be no resident.
        """
        found = self._found(entry, now)
        if found is None:
            return True
        session, part = found
        turn = self.turns[entry.id] = Turned(session, part, entry)
        session.model = entry.model
        if session.home is not None and self._is_away(session.home, entry, now):
            self.ledger.give_up(session)
        if session.home is not None:
            self._begin(turn)
            self._hold_to_limit(self.ledger.memories[session.home])
            self._prefer_home(entry, session, now)
            return True
        footprint = turn.tokens + session.agents if not part else max(session.footprint, turn.tokens)
        if not session.stopped and not session.waiting:
            if _may_be_single(session, entry):
                self._begin(turn)
                return True
            places, some_work = self._places(entry, now)
            places = _by_origin(places, session)
            back = _was_at(entry, places, self._pool) if now < self._returns_until_s else None
            if back is not None and not (decided and back.room < footprint):
                self._begin(turn)
                self.ledger.take(session, back.name, now)
                self._hold_to_limit(back)
                return True
            if not places or footprint < SMALL * min([memory.capacity for memory in places]):
                self._begin(turn)
                return True
            waits_on = (
                not some_work
                or self.waiting
                or self._quotas.any_paused(entry.accounts)
                or (waited_s > 0.0 and now < self._closed_until_s)
            )
            if not waits_on and all(m.room >= footprint + self._spare(m) for m in places):
                self._begin(turn)
                self.ledger.take(session, places[0].name, now)
                return True
        if not part:
            session.own = turn.tokens
        session.footprint = footprint
        if not session.waiting:
            session.waits_s = now - waited_s
            if session.stopped:
                self.stopped[session.key] = session
            else:
                self._join(session)
        session.waiting[entry.id] = entry
        self.stirred = True
        return False

    def released(self, now: float) -> list[Entry]:
        """Returns requests that go now. To be asked after each fact, and when time has passed (`looks_s`)."""
        self.stirred = False
        going: list[Entry] = []
        if now < self._closed_until_s:
            return going
        for _ in range(min(self.waiting, ADMITTED_MAX)):
            session = self._admit_one(now)
            if session is None:
                return going
            self._admissions.note(now)
            session.last_wait_s, session.first = now - session.waits_s, False
            waiting, session.waiting = session.waiting, {}
            for request_id, entry in waiting.items():
                self._begin(self.turns[request_id])
                if session.home is not None:
                    self._stay(entry, session.home, now)
                going.append(entry)
            if session.home is not None:  # its sub-agents' turns may have waited, too
                self._hold_to_limit(self.ledger.memories[session.home])
        self.stirred = self.waiting > 0
        return going

    def sent(self, entry: Entry, endpoint: str, now: float) -> None:
        """A request with a turn went to an `endpoint`: its session is resident there, wherever it was expected."""
        turn = self.turns.get(entry.id)
        if turn is None:
            return
        if self._staying.pop(entry.id, None) is not None:
            entry.may_leave()
        if entry.blocks is not None and entry.blocks[0]:
            keys = entry.blocks[0]
            turn.mark = keys[int(FOUND * len(keys))]
        session, memory = turn.session, self.ledger.memories.get(endpoint)
        if session.home == endpoint or (turn.part and session.home is not None):
            return
        if session.waiting:  # another turn of it waits, so it is booked when that comes in
            return
        if session.home is not None:
            self.ledger.give_up(session)
        if _may_be_single(session, entry):
            session.origin = endpoint
        elif memory is not None and session.footprint >= SMALL * memory.capacity:
            self.moves += session.origin not in (None, endpoint)
            self.ledger.take(session, endpoint, now)
            self._hold_to_limit(memory)

    def took_over(self, entry: Entry, endpoint: str, now: float) -> None:
        """A request with a turn runs at an `endpoint`, where another scheduler sent it."""
        found = self._found(entry, now)
        if found is not None:
            session, part = found
            turn = self.turns[entry.id] = Turned(session, part, entry)
            session.model = entry.model
            self._begin(turn)
            self.sent(entry, endpoint, now)

    def returning(self, now: float) -> None:
        """Another scheduler decided until `now`: its idle residents come back with their next turns."""
        if self.on:
            self._closed_until_s, self._returns_until_s = now + RETURN_S, now + self._lease_s

    def ended(self, entry: Entry, usage: Usage | None, now: float) -> None:
        """A request with a turn ended, with its `usage`; None: it got no answer, or its client gave up, or waited."""
        turn = self.turns.pop(entry.id, None)
        if turn is None:
            return
        session = turn.session
        self._staying.pop(entry.id, None)
        self.stirred = self.waiting > 0
        if session.waiting.pop(entry.id, None) is not None:
            if not session.waiting:
                self._leave(session)
            return
        agents = session.parts.pop(entry.id)
        if agents >= 0:
            session.agents -= agents
            if usage is not None and usage.prompt_tokens and not session.own:
                session.own, session.lent = usage.prompt_tokens + usage.completion_tokens, True
        elif usage is not None and usage.prompt_tokens:
            if usage.cached_told and session.turns and session.home is not None and self.settings.corrected:
                self.ledger.found(session, min(session.left, usage.prompt_tokens), usage.cached_tokens)
            session.own = session.left = usage.prompt_tokens + usage.completion_tokens
            if turn.mark is not None and session.home is not None:
                self.ledger.mark(session, turn.mark)
        if usage is not None and usage.prompt_tokens:
            session.turns += 1
            session.turns_total += 1
            session.prompt_total += usage.prompt_tokens
            session.cached_total += usage.cached_tokens
            session.completion_total += usage.completion_tokens
        session.idle_s = now
        self.ledger.book(session)
        turned = entry.request.turn
        if session.home is not None:
            memory = self.ledger.memories[session.home]
            is_over = turned is not None and turned.last
            refused = usage is not None and not session.turns  # by its engine, so that has nothing of it
            if not session.parts and (is_over or refused or not session.booked):
                self.ledger.give_up(session)
            elif session.stopped and session.idle:
                self._pause(session)
            self._hold_to_limit(memory)

    # --- endpoints ----------------------------------------------------------------------------------------------

    def tells(self, endpoint: str, kv_tokens: int) -> None:
        """Note that an `endpoint` has `kv_tokens` of KV memory; 0: unknown."""
        if kv_tokens > 0:
            self.ledger.tells(endpoint, kv_tokens)
        else:
            self._released_from(self.ledger.removed(endpoint))
        self.stirred = self.waiting > 0

    def restarted(self, endpoint: str, now: float) -> None:
        """Another process answers at an `endpoint`: only sessions whose turns are queued have a place there."""
        gone = self.ledger.emptied(endpoint)
        self._released_from(gone)
        for session in gone:
            if any(self.turns[request_id].entry.state is State.WAITING for request_id in session.parts):
                self.ledger.take(session, endpoint, now)
        self.stirred = self.waiting > 0

    def unheld(self, endpoint: str, keys: Iterable[int], now: float) -> bool:
        """An engine gave up blocks: idle sessions that had half of theirs there are resident no longer.

        Returns True if other sessions may have their room.
        """
        gone = self.ledger.unheld(endpoint, keys)
        if self.settings.corrected and any(self.in_use(session, now) for session in gone):
            self.ledger.overfull(self.ledger.memories[endpoint])
        for session in gone:
            self.ledger.give_up(session)
            session.origin, session.paused = None, True
        if gone:
            self.stirred = self.waiting > 0
        return bool(gone)

    def removed(self, endpoint: str) -> None:
        """An `endpoint` left, and its residents with it."""
        self._released_from(self.ledger.removed(endpoint))
        self.stirred = self.waiting > 0

    def health_changed(self, now: float) -> None:
        """Let requests go anywhere whose session's endpoint is away."""
        self.stirred = self.waiting > 0
        for request_id in list(self._staying):
            entry = self.turns[request_id].entry
            if self._usable(entry.only[0], entry, now) is None:
                del self._staying[request_id]
                entry.may_leave()

    def _released_from(self, gone: list[AgentSession]) -> None:
        """Let the requests of sessions that lost their endpoint go anywhere."""
        for session in gone:
            for request_id in session.parts:
                if self._staying.pop(request_id, None) is not None:
                    self.turns[request_id].entry.may_leave()

    # --- operators ----------------------------------------------------------------------------------------------

    def named(self, tenant: str, name: str) -> list[AgentSession]:
        """Returns a tenant's sessions of this name, one per model, the one seen last first. Walks over all sessions."""
        found = [s for s in self.ledger.sessions.values() if s.name == name and s.tenant == tenant]
        return found[::-1]

    def stop_all(self, tenant: str, name: str) -> list[AgentSession]:
        """Pause a tenant's sessions of this name, also those that come. Returns those that are known."""
        if (tenant, name) not in self.stops and len(self.stops) >= STOPS_MAX:
            del self.stops[next(iter(self.stops))]  # it ends with its session's residence
        self.stops[tenant, name] = None
        for session in (found := self.named(tenant, name)):
            self.stop(session)
        return found

    def resume_all(self, tenant: str, name: str) -> list[AgentSession]:
        """End an operator's pause of a tenant's sessions of this name. Returns those that are known."""
        self.stops.pop((tenant, name), None)
        for session in (found := self.named(tenant, name)):
            self.resume(session)
        return found

    def stop(self, session: AgentSession) -> None:
        """Pause a `session` until `resume`: a turn under way ends, then its turns wait, and its memory is others'."""
        session.stopped = True
        if session.waiting:
            self._leave(session)
            self.stopped[session.key] = session
        elif session.idle:
            self._pause(session)
        self.stirred = self.waiting > 0

    def resume(self, session: AgentSession) -> None:
        """End an operator's pause of a `session`."""
        session.stopped = False
        if self.stopped.pop(session.key, None) is not None:
            self._join(session)
        self.stirred = self.waiting > 0

    def prefer(self, session: AgentSession) -> None:
        """Let a waiting `session` in next, as if it had waited W."""
        line = session.holder.line
        if line.pop(session.key, None) is not None:
            session.first = True
            session.holder.line = {session.key: session, **line}
            self.stirred = True

    # --- questions ----------------------------------------------------------------------------------------------

    def looks_s(self, now: float) -> float | None:
        """Returns when to ask `released` and `freed` again, if no fact comes before; None: never."""
        stays = self._stays
        while stays and stays[0][1] not in self._staying:
            heapq.heappop(stays)
        until_s = stays[0][0] if stays else None
        if not self.waiting:
            return until_s
        return now + LOOK_S if until_s is None else min(until_s, now + LOOK_S)

    def freed(self, now: float) -> None:
        """Let requests go anywhere that waited for their session's endpoint as long as that is worth."""
        while self._stays and self._stays[0][0] <= now:
            request_id = heapq.heappop(self._stays)[1]
            if self._staying.pop(request_id, None) is not None:
                self.turns[request_id].entry.may_leave()

    def session_of(self, request_id: str) -> AgentSession | None:
        """Returns the session of a request that has not ended; None if it has none, or the gate is off."""
        turn = self.turns.get(request_id)
        return None if turn is None else turn.session

    def position(self, session: AgentSession) -> int:
        """Returns a waiting session's place in its tenant's line: 1 is the next; 0: it stands in none."""
        for place, key in enumerate(session.holder.line, 1):
            if key == session.key:
                return place
        return 0

    def expected_s(self, session: AgentSession, now: float) -> float | None:
        """Returns the seconds until a waiting session comes in, by the rate of the last ones; at most the rest of W.

        None: an operator paused it.
        """
        if session.stopped:
            return None
        left_s = max(0.0, self.settings.wait_s - (now - session.waits_s))
        rate = self._admissions.per_s(now)
        if rate <= 0.0:
            return left_s
        return min(left_s, self.position(session) * len(self.lines) / rate)

    def price(self, wait_s: float) -> float:
        """Returns which part of all engines' prefill a bound of `wait_s` costs, as things are; 0 if nothing waits."""
        sessions = [session for holder in self.lines for session in holder.line.values()]
        if not sessions:
            return 0.0
        context = sum([session.footprint for session in sessions]) / len(sessions)
        rate = sum([e.ledger.speed.rate for e in self._pool if e.in_service])
        return price(len(sessions), context, rate, wait_s)

    def in_use(self, session: AgentSession, now: float) -> bool:
        """True unless a session has been idle for so long that others may take its room."""
        return bool(session.parts) or now - session.idle_s < self._lease_s

    def snapshot(self) -> SessionsSnapshot:
        """Returns the sums over all sessions, and the memory of each endpoint."""
        memory = [self._memory_row(endpoint) for endpoint in self._pool] if self.on else []
        return SessionsSnapshot(
            on=self.on,
            wait_s=self.settings.wait_s,
            resident=sum([row.sessions for row in memory]),
            waiting=self.waiting,
            price=self.price(self.settings.wait_s),
            price_of_minute=self.price(SHORT_WAIT_S),
            pauses_total=self.pauses,
            moves_total=self.moves,
            forced_total=self.forced,
            memory=memory,
        )

    def _memory_row(self, endpoint: Endpoint) -> MemoryRow:
        memory = self.ledger.memories.get(endpoint.name)
        if memory is None:
            return MemoryRow(endpoint.name, None, 0, 0, 0, 0, {}, endpoint.keeps_prefixes)
        tenants: dict[str, int] = {}
        for holder, tenancy in memory.tenancies.items():
            tenants[holder.name] = tenants.get(holder.name, 0) + tenancy.booked
        most = heapq.nlargest(TENANTS_SHOWN, tenants.items(), key=lambda item: (item[1], item[0]))
        idle = sum([len(tenancy.idle) for tenancy in memory.tenancies.values()])
        return MemoryRow(
            endpoint.name, memory.capacity, memory.usable, memory.booked, memory.residents, idle, dict(most)
        )

    # --- inside -------------------------------------------------------------------------------------------------

    def _found(self, entry: Entry, now: float) -> tuple[AgentSession, str] | None:
        """Returns the session of a request, and its part."""
        request = entry.request
        found = self._names.find(request, now)
        if found is None or self._pool.roles.any:
            return None
        name, part = found
        holder = self.ledger.holder(request.band, *self._tenant(request))
        session = self.ledger.session(name, request.tenant, request.model, holder)
        if self.stops and (request.tenant, name) in self.stops:
            session.stopped = True
        if session.holder is not holder:  # this request is of another band
            waits = session.key in session.holder.line
            if waits:
                self._leave(session)
            self.ledger.move(session, holder)
            if waits:
                self._join(session)
        return session, part

    def _tenant(self, request: Request) -> tuple[str, float]:
        """Returns the name and weight by which memory is shared."""
        level = self._tenant_level
        if level is None or level >= len(request.flow) or len(request.weights) != len(request.flow):
            return request.tenant, 1.0
        return request.flow[level], request.weights[level]

    def _begin(self, turn: Turned) -> None:
        """A turn is under way, or about to be."""
        session, request_id = turn.session, turn.entry.id
        session.paused = False
        if session.lent:
            session.own, session.lent = 0, False
        if turn.part:
            session.parts[request_id] = turn.tokens
            session.agents += turn.tokens
        else:
            session.parts[request_id] = -1
            session.own = turn.tokens
        self.ledger.book(session)

    def _prefer_home(self, entry: Entry, session: AgentSession, now: float) -> None:
        """Let a turn go to its session's endpoint alone if memory is scarce; otherwise routing decides."""
        scarce = self.waiting > 0 or any(memory.room < self._spare(memory) for memory in self.ledger.memories.values())
        if scarce and session.home is not None:
            self._stay(entry, session.home, now)

    def _stay(self, entry: Entry, endpoint: str, now: float) -> None:
        """Let a request go to its session's endpoint alone, for as long as that is worth."""
        if len(self._pool) > 1 and (not entry.only or endpoint in entry.only):
            prefill_s = entry.prompt_tokens / self._pool[endpoint].ledger.speed.rate
            until_s = now + min(self._worth_s, STAY * prefill_s)
            entry.stay_at(endpoint)
            self._staying[entry.id] = until_s
            heapq.heappush(self._stays, (until_s, entry.id))

    def _join(self, session: AgentSession) -> None:
        """Let a session stand in its tenant's line, by its age."""
        line = session.holder.line
        last = next(reversed(line.values()), None)
        line[session.key] = session
        if last is not None and last.waits_s > session.waits_s:
            session.holder.line = dict(sorted(line.items(), key=lambda item: (not item[1].first, item[1].waits_s)))
        self.lines[session.holder] = None
        self.waiting += 1

    def _leave(self, session: AgentSession) -> None:
        """A session waits no longer."""
        if self.stopped.pop(session.key, None) is not None:
            return
        holder = session.holder
        del holder.line[session.key]
        self.waiting -= 1
        if not holder.line:
            del self.lines[holder]

    def _usable(self, name: str, entry: Entry, now: float) -> Endpoint | None:
        """Returns an endpoint by its name, if it may serve a request now."""
        endpoint = self._pool.get(name)
        if endpoint is None or not endpoint.works(now) or not endpoint.serves(entry.model):
            return None
        only = entry.request.only
        return None if only and name not in only else endpoint

    def _is_away(self, home: str, entry: Entry, now: float) -> bool:
        """True if a request can't go to its session's home, but elsewhere. If all are away, it waits for that one."""
        usable = self._usable(home, entry, now)
        return usable is None and any(self._usable(endpoint.name, entry, now) is not None for endpoint in self._pool)

    def _places(self, entry: Entry, now: float) -> tuple[list[EndpointMemory], bool]:
        """Returns where a request's session may be resident, those with the most room first, and if any of them works.

        If none works, these are all: those that are ejected or, with False, away. Empty: the gate does nothing for it,
        because none is there or one tells no memory.
        """
        only = entry.request.only
        serving = [e for e in self._pool if e.serves(entry.model) and not (only and e.name not in only)]
        some = [e for e in serving if e.works(now)] or [e for e in serving if e.in_service]
        memories: list[EndpointMemory] = []
        for endpoint in some or serving:
            memory = self.ledger.memories.get(endpoint.name)
            if memory is None:
                return [], False
            memories.append(memory)
        memories.sort(key=lambda memory: (-memory.room, memory.name))
        return memories, bool(some)

    def _order(self, now: float) -> list[Holder]:
        """Returns the tenants to look at: whose first session waited more than W or is preferred, then the least level.

        Of equal ones who waits longest. If they are too many, those with sessions that claim room by rule 2 come last.
        """
        lines, late_s = list(self.lines), now - self.settings.wait_s

        def turn(holder: Holder) -> tuple[int, bool, float, float, str]:
            head = _head(holder)
            return holder.band, head.waits_s > late_s and not head.first, holder.level, head.waits_s, holder.name

        if len(lines) <= LINES_MAX:
            return sorted(lines, key=turn)
        order = heapq.nsmallest(LINES_MAX, lines, key=turn)
        claim_s = now - CLAIM * self.settings.wait_s
        due = [holder for holder in lines if _head(holder).waits_s <= claim_s or _head(holder).first]
        return order + heapq.nsmallest(LINES_MAX, due, key=lambda holder: _head(holder).waits_s)

    def _admit_one(self, now: float) -> AgentSession | None:
        """Make one waiting session resident, if any can be."""
        known: dict[tuple[str, tuple[str, ...]], tuple[list[EndpointMemory], bool]] = {}  # the places of this moment
        for holder in self._order(now):
            for place, session in enumerate(islice(holder.line.values(), LOOK_MAX)):
                entry = next(iter(session.waiting.values()))
                if self._quotas.any_paused(entry.accounts):  # it would hold memory and have no turn
                    continue
                key = entry.model, entry.request.only
                if key not in known:
                    known[key] = self._places(entry, now)
                places, some_work = known[key]
                if places and not some_work:
                    continue
                found = self._place(session, places, now) if place == 0 else self._free(session, places, now)
                if found is not None or not places:
                    self._leave(session)
                    if found is not None:
                        self.moves += session.origin not in (None, found.name)
                        session.left = 0
                        self.ledger.take(session, found.name, now)
                    return session
        return None

    def _free(self, session: AgentSession, places: list[EndpointMemory], now: float) -> EndpointMemory | None:
        """Returns the endpoint with free room for a session: its origin, as long as that is worth the wait."""
        if not places:
            return None
        origin = self.ledger.memories.get(session.origin) if session.origin is not None else None
        memory = origin if origin in places else places[0]
        if memory.room >= session.footprint + self._spare(memory):
            return memory
        most = places[0]
        if most is memory or now - session.waits_s < self._worth_s:
            return None
        return most if most.room >= session.footprint + self._spare(most) else None

    def _place(self, session: AgentSession, places: list[EndpointMemory], now: float) -> EndpointMemory | None:
        """Returns the endpoint of a session that becomes resident now, with its room made; or None."""
        holder, waited_s = session.holder, now - session.waits_s
        nothing = not holder.booked
        due = session.first or waited_s >= CLAIM * self.settings.wait_s
        small = due and all(m.room + m.held(holder) < min(session.footprint, m.usable) for m in places)
        hurries = nothing or due or any(_above(other, session) for memory in places for other in memory.tenancies)
        for memory in _by_origin(places, session):
            spare = 0 if hurries else self._spare(memory)
            missing = min(session.footprint + spare, memory.usable) - memory.room
            if missing <= 0 or self._make_room(memory, missing, session, now, due=due, small=small):
                self.forced += due
                return memory
            if session.origin == memory.name and not hurries and waited_s < self._worth_s:
                return None
        return None

    def _make_room(
        self, memory: EndpointMemory, missing: int, session: AgentSession, now: float, *, due: bool, small: bool
    ) -> bool:
        """Pause sessions in order until so many tokens are free, or none at all if they would not do.

        `due`: it waited W; `small`: nowhere would all that its tenant holds do.
        """
        if memory.idle_tokens < missing:
            return False
        paused: dict[str, AgentSession] = {}
        for other in self._givers(memory, session, now, due=due, small=small):
            if other.key not in paused:
                paused[other.key] = other
                missing -= other.booked
                if missing <= 0:
                    break
        if missing > 0:
            return False
        for other in paused.values():
            self._pause(other)
        return True

    def _givers(
        self, memory: EndpointMemory, session: AgentSession, now: float, *, due: bool, small: bool
    ) -> Iterator[AgentSession]:
        """Yields the idle sessions of an endpoint whose room a session may take, in order; some twice."""
        holder = session.holder
        rank = _rank(holder)[:2]
        lease_per_token = self._worth / self._pool[memory.name].ledger.speed.rate
        highest = sorted(memory.tenancies.values(), key=lambda tenancy: _rank(tenancy.holder), reverse=True)
        long_s = max(self._lease_s, self.settings.wait_s)
        for tenancy in highest:
            if _rank(tenancy.holder)[:2] >= rank:
                yield from _idle_longer(tenancy, self._lease_s, lease_per_token, now)
            else:
                yield from _idle_longer(tenancy, long_s, math.inf, now)
        for tenancy in highest:
            if _above(tenancy.holder, session):
                for other in tenancy.idle.values():
                    resident_s = min(self._slice_s, lease_per_token * other.booked)
                    if now - other.admitted_s >= resident_s or not _turns_round(other, session):
                        yield other
        others = [x for x in highest if x.holder is not holder and x.holder.band >= holder.band]
        if not holder.booked:
            for tenancy in others:
                yield from [other for other in tenancy.idle.values() if now - other.admitted_s >= self._slice_s]
        if due:
            own = memory.tenancies.get(holder)
            giving = ([] if own is None else [own]) + (others if small else [])
            for least_s in (self._slice_s, 0.0):
                for tenancy in giving:
                    yield from _with_turns(tenancy, now - least_s)

    def _spare(self, memory: EndpointMemory) -> int:
        """Tokens that stay free for the growth of residents, unless a rule is a claim."""
        return round(SPARE * memory.usable) if memory.tenancies else 0

    def _pause(self, session: AgentSession) -> None:
        self.ledger.give_up(session)
        session.paused = True
        self.pauses += 1

    def _hold_to_limit(self, memory: EndpointMemory) -> None:
        """Residents grew: while they exceed the memory, pause idle ones of the tenant who holds the most per weight.

        The smallest that makes up for it, or else the largest: less is computed again than if the longest idle one were
        paused. If none of them is idle, the next one to end its turn is paused; others only if the residents grew too
        far.
        """
        if memory.room >= 0:
            return
        highest = sorted(memory.tenancies.values(), key=lambda tenancy: _rank(tenancy.holder), reverse=True)
        for tenancy in highest:
            while tenancy.idle and memory.room < 0:
                self._pause(_fitting(islice(tenancy.idle.values(), IDLE_MAX), -memory.room))
            if memory.room >= -GROWN_MAX * memory.capacity:
                return


def price(excess: float, context_tokens: float, prefill_tokens_per_s: float, wait_s: float) -> float:
    """Returns the price of W: which part of the time of prefill goes into contexts that are computed again.

    `excess`: sessions more than fit; `prefill_tokens_per_s`: of all engines together. At most 1.
    """
    if excess <= 0 or prefill_tokens_per_s <= 0 or wait_s <= 0:
        return 0.0
    return min(1.0, excess * context_tokens / (prefill_tokens_per_s * wait_s))


def _idle_longer(tenancy: Tenancy, lease_s: float, lease_per_token: float, now: float) -> Iterator[AgentSession]:
    """Yields a tenant's sessions that were idle for their leases, the longest idle first."""
    for place, other in enumerate(tenancy.idle.values()):
        idle_s = now - other.idle_s
        if idle_s < lease_s and place >= IDLE_MAX:
            return
        if idle_s >= lease_s or idle_s >= lease_per_token * other.booked:
            yield other


def _with_turns(tenancy: Tenancy, admitted_s: float) -> Iterator[AgentSession]:
    """Yields a tenant's idle sessions that had a turn and came in before, the longest resident first."""
    for session in tenancy.residents.values():
        if session.admitted_s > admitted_s:
            break
        if session.turns and not session.parts:
            yield session


def _fitting(sessions: Iterable[AgentSession], missing: int) -> AgentSession:
    """Returns the smallest of some sessions that books as much as is `missing`; the largest if none does."""
    return min(sessions, key=lambda session: (session.booked < missing, abs(session.booked - missing)))


def _may_be_single(session: AgentSession, entry: Entry) -> bool:
    """True of a prompt that its client did not name, and that nothing followed yet."""
    turn = entry.request.turn
    return not session.turns_total and turn is not None and not turn.session


def _was_at(entry: Entry, places: list[EndpointMemory], pool: Pool) -> EndpointMemory | None:
    """Returns where most of a prompt was sent before, by what routing knows; None: nowhere most of it."""
    if entry.cached_tokens < FOUND * entry.prompt_tokens:
        return None
    located = entry.located
    for memory in places:
        if located.tokens(pool[memory.name].index) >= FOUND * entry.prompt_tokens:
            return memory
    return None


def _by_origin(places: list[EndpointMemory], session: AgentSession) -> list[EndpointMemory]:
    """Returns the places with the session's origin first."""
    origin = session.origin
    if origin is None or not places or places[0].name == origin:
        return places
    return sorted(places, key=lambda memory: memory.name != origin)


def _head(holder: Holder) -> AgentSession:
    return next(iter(holder.line.values()))


def _rank(holder: Holder) -> tuple[int, float, str]:
    """Who is first in line, the least first; whose room is taken first, the greatest first."""
    return holder.band, holder.level, holder.name


def _turns_round(other: AgentSession, session: AgentSession) -> bool:
    """True if a tenant of the same band would be below the one that took its session `other`."""
    giver, taker = other.holder, session.holder
    left = (giver.booked - other.booked) / giver.weight
    return giver.band == taker.band and left < (taker.booked + session.footprint) / taker.weight


def _above(other: Holder, session: AgentSession) -> bool:
    """True if a session may take the room of another tenant's idle ones at once (rule 1)."""
    holder = session.holder
    if other.band != holder.band:
        return other.band > holder.band
    return other.level > (holder.booked + session.footprint) / holder.weight
