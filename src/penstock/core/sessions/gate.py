"""The gate before the engines' KV memory: which session waits for how long, and in fairness to whom?

**Model.** An endpoint has M tokens of KV memory. A session is *resident* there with its footprint f, *idle* between its
turns; otherwise it is new or paused, and its turns wait. A turn of a resident session finds its prompt in the cache, as
long as the residents' footprints are within M; a session that comes back after a pause has its whole context computed
again. So turns of residents pass at once, and others wait until their session becomes resident.

**Rules.** Room for a waiting session is free room (`SPARE` stays free, for growth), sessions idle for `lease_s`, and
1. *Max-min*: a tenant's level is what he holds per weight. One whose level stays below another's with the session
   takes room from idle sessions of the latter, at once, the highest level first. Each such step lowers the higher of
   two levels and never lifts the lower one above it, so levels become equal, except of those who want less: max-min.
   Whoever holds nothing gets his first session in, whatever its size: from sessions resident for `slice_s`.
2. *W*: a session that waited for `wait_s` takes the room of idle sessions that had a turn, of its own tenant (of any,
   if he holds nothing), the longest resident first; those of at least `slice_s` before others.
3. *Origin first*: a session goes back to where it was. It goes elsewhere, if no room is to be had there, once it waited
   for `worth_s`, or by rule 1 or 2.
Of the tenants the one that holds the least per weight is first, within a tenant who waits longest. Residents that grow
beyond M cost idle sessions of the tenant that holds the most per weight their place.

**Bound.** Let every turn end within T, and let a tenant have n residents. Of his sessions, m claim room by rule 2 when
another one begins to, at `CLAIM` · W. Within each T every resident is idle at least once with a turn behind it, and the
gate looks at that moment; so each T lets n sessions in, as long as none is larger than the resident that it replaces
with the free room there, and the last one waited at most CLAIM · W + ⌈(m + 1)/n⌉ · T. Not proven: a larger session,
which needs several residents to be idle at once; engines whose memory is not what they report; turns without an end.

**Price of W.** Each session let in by rule 2 costs one context computed again, and m excess sessions are let in once in
W: m · f / (prefill rate · W) of one engine's time. With 7 sessions of 85,000 tokens, 25,000 tokens a second and 60 s
that is 40 %, with 300 s 8 %.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from penstock.core.sessions.ledger import AgentSession, MemoryLedger

CLAIM = 0.95  # of W: the rest is for a session to end its turn
SPARE = 0.08  # of an endpoint's memory: two sessions of 85,000 tokens in 2,200,000
GROWN_MAX = 0.05  # of an endpoint's memory: residents may exceed it until one of a tenant over his share is idle
LOOK_MAX = 16  # sessions of one tenant that may pass one which does not fit, into free room


class SessionGate:
    """Turns come in, and go to endpoints. All times in seconds, all sizes in tokens."""

    def __init__(
        self, *, wait_s: float = 300.0, lease_s: float = 30.0, slice_s: float = 120.0, worth_s: float = 30.0
    ) -> None:
        """`wait_s` is W. Others as in the rules above."""
        self.ledger = MemoryLedger()
        self.pauses = self.moves = self.forced = 0  #: sessions paused, come back elsewhere, let in by rule 2
        self._wait_s = wait_s
        self._lease_s = lease_s
        self._slice_s = slice_s
        self._worth_s = worth_s
        self._weights: dict[str, float] = {}
        self._turns: dict[str, tuple[AgentSession, str, int]] = {}
        self._lines: dict[str, deque[AgentSession]] = {}  # waiting sessions by tenant, the longest wait first

    @property
    def waiting(self) -> int:
        """Sessions that wait."""
        return sum(len(line) for line in self._lines.values())

    def arrived(
        self, turn: str, session: str, tenant: str, tokens: int, *, now: float, part: str = "", weight: float = 1.0
    ) -> str | None:
        """A turn arrived, of a session or of its sub-agent `part`. Returns its endpoint, or None if it waits."""
        found = self.ledger.session(session, tenant)
        self._weigh(tenant, weight)
        self._turns[turn] = (found, part, tokens)
        if found.home is not None:
            self._begin(found, turn)
            self._hold_to_limit(found.home)
            return found.home
        if not found.waiting:
            found.waits_s = now
            self._lines.setdefault(tenant, deque()).append(found)
        found.waiting.append(turn)
        if not part:
            found.own = tokens
        found.footprint = max(found.footprint if part else 0, tokens)
        return None

    def ended(self, turn: str, tokens: int, *, now: float) -> None:
        """A turn ended, with `tokens` in prompt and answer; or its client gave up, waiting or not."""
        session, part, _ = self._turns.pop(turn)
        if turn in session.waiting:
            session.waiting.remove(turn)
            if not session.waiting:
                self._leave(session)
            return
        del session.parts[turn]
        if not part:
            session.own = tokens
        session.turns += 1
        session.idle_s = now
        self.ledger.resize(session)
        if session.home is not None:
            self._hold_to_limit(session.home)

    def released(self, now: float) -> list[tuple[str, str]]:
        """Returns turns that go now, with their endpoints. To be asked after each fact, and when time has passed."""
        going: list[tuple[str, str]] = []
        for _ in range(self.waiting):
            admitted = self._admit_one(now)
            if admitted is None:
                break
            assert admitted.home is not None
            going += [(turn, admitted.home) for turn in admitted.waiting]
            for turn in admitted.waiting:
                self._begin(admitted, turn)
            admitted.waiting = []
        return going

    # inside ------------------------------------------------------------------------------------------------------

    def _weigh(self, tenant: str, weight: float) -> None:
        """Note a tenant's weight, and forget those of tenants that neither hold nor wait now and then."""
        weights, held, lines = self._weights, self.ledger.by_tenant, self._lines
        weights[tenant] = weight
        if len(weights) > 2 * (len(held) + len(lines)) + 64:
            self._weights = {name: weights[name] for name in weights if name in held or name in lines or name == tenant}

    def _begin(self, session: AgentSession, turn: str) -> None:
        _, part, tokens = self._turns[turn]
        session.parts[turn] = (part, tokens)
        self.ledger.resize(session)

    def _admit_one(self, now: float) -> AgentSession | None:
        """Make one waiting session resident, if any can be."""
        for tenant in sorted(self._lines, key=lambda name: (self._level(name), name)):
            for place, session in enumerate(self._lines[tenant]):
                if place >= LOOK_MAX:
                    break
                endpoint = self._place(session, now) if place == 0 else self._free(session)
                if endpoint is not None:
                    self.moves += session.origin not in (None, endpoint)
                    self._leave(session)
                    self.ledger.take(session, endpoint, now)
                    return session
        return None

    def _leave(self, session: AgentSession) -> None:
        line = self._lines[session.tenant]
        line.remove(session)
        if not line:
            del self._lines[session.tenant]

    def _free(self, session: AgentSession) -> str | None:
        """Returns the endpoint with free room for a session, its origin if that is one."""
        for endpoint in self._endpoints(session):
            if self.ledger.room(endpoint) >= session.footprint + self._spare(endpoint):
                return endpoint
            if session.origin is not None:
                return None
        return None

    def _endpoints(self, session: AgentSession) -> list[str]:
        """Returns all endpoints, the session's origin first, then those with the most room."""
        ledger = self.ledger
        return sorted(ledger.capacity, key=lambda name: (name != session.origin, -ledger.room(name), name))

    def _level(self, tenant: str, more: int = 0) -> float:
        """Returns what a tenant holds per weight, or would hold with `more` tokens."""
        return (self.ledger.by_tenant.get(tenant, 0) + more) / self._weights[tenant]

    def _place(self, session: AgentSession, now: float) -> str | None:
        """Returns the endpoint of a session that becomes resident now, with its room made; or None."""
        tenant, waited_s = session.tenant, now - session.waits_s
        nothing = not self.ledger.by_tenant.get(tenant)
        level = self._level(tenant, session.footprint)
        above = {other for other in self.ledger.by_tenant if self._level(other) > level}
        due = waited_s >= CLAIM * self._wait_s

        def takes(other: AgentSession) -> bool:
            return other.tenant in above or (nothing and now - other.admitted_s >= self._slice_s)

        def had_its_turns(other: AgentSession) -> bool:
            return (nothing or other.tenant == tenant) and other.turns > 0

        def sliced(other: AgentSession) -> bool:
            return had_its_turns(other) and now - other.admitted_s >= self._slice_s

        hurries = bool(above) or nothing or due
        for endpoint in self._endpoints(session):
            rooms = [self._leased(endpoint, session, now), self._idle(endpoint, takes, self._highest)]
            if due:
                rooms += [self._idle(endpoint, rule, _longest_resident) for rule in (sliced, had_its_turns)]
            spare = 0 if hurries else self._spare(endpoint)
            if self._make_room(endpoint, session.footprint + spare, rooms):
                self.forced += due
                return endpoint
            if session.origin == endpoint and not hurries and waited_s < self._worth_s:
                return None
        return None

    def _highest(self, session: AgentSession) -> tuple[float, float, str]:
        return -self._level(session.tenant), session.idle_s, session.name

    def _spare(self, endpoint: str) -> int:
        """Tokens that stay free for the growth of residents, unless a rule is a claim."""
        return round(SPARE * self.ledger.capacity[endpoint]) if self.ledger.residents[endpoint] else 0

    def _leased(self, endpoint: str, session: AgentSession, now: float) -> Iterator[AgentSession]:
        """Sessions idle for a lease, of tenants that hold no less per weight than this session's."""
        level = self._level(session.tenant)

        def reclaimable(other: AgentSession) -> bool:
            return now - other.idle_s >= self._lease_s and self._level(other.tenant) >= level

        return self._idle(endpoint, reclaimable, _longest_idle)

    def _idle(
        self,
        endpoint: str,
        rule: Callable[[AgentSession], bool],
        order: Callable[[AgentSession], tuple[float | str, ...]],
    ) -> Iterator[AgentSession]:
        residents = self.ledger.residents[endpoint].values()
        return iter(sorted((other for other in residents if other.idle and rule(other)), key=order))

    def _make_room(self, endpoint: str, tokens: int, rooms: list[Iterator[AgentSession]]) -> bool:
        """Pause sessions in this order until `tokens` fit, or none at all if they would not do."""
        missing = min(tokens, self.ledger.capacity[endpoint]) - self.ledger.room(endpoint)
        paused: dict[str, AgentSession] = {}
        for sessions in rooms:
            for session in sessions:
                if missing <= 0:
                    break
                if session.name not in paused:
                    paused[session.name] = session
                    missing -= session.booked
        if missing > 0:
            return False
        for session in paused.values():
            self._pause(session)
        return True

    def _pause(self, session: AgentSession) -> None:
        self.ledger.give_up(session)
        self.pauses += 1

    def _hold_to_limit(self, endpoint: str) -> None:
        """Residents grew: while they exceed the memory, pause idle ones of the tenant who holds the most per weight.

        If none of them is idle, the next one to end its turn is paused; others only if the residents grew too far.
        """
        ledger = self.ledger
        while (room := ledger.room(endpoint)) < 0:
            residents = list(ledger.residents[endpoint].values())
            most = max({other.tenant for other in residents}, key=lambda name: (self._level(name), name))
            far = room < -GROWN_MAX * ledger.capacity[endpoint]
            idle = [other for other in residents if other.idle and (far or other.tenant == most)]
            if not idle:
                return
            self._pause(min(idle, key=lambda other: (other.tenant != most, *_longest_idle(other))))


def _longest_idle(session: AgentSession) -> tuple[float, str]:
    return session.idle_s, session.name


def _longest_resident(session: AgentSession) -> tuple[float, str]:
    return session.admitted_s, session.name
