"""Between many edges and the one scheduler: which request belongs to which edge, and which facts are still valid.

To the driver a request of an edge is a journey like any other: it joins on arrival, receives the decisions, which go to
its edge as messages, and leaves. So one scheduler, one driver and one timer serve requests of this process and of all
edges alike, and no decision depends on where a request came from.

Facts cross with actions on their way. A fact about a lease that was taken back meanwhile is dropped, except two that
end the request in any case: a complete answer, which is charged as it is billed, and a client that is gone. Facts are
validated before the scheduler sees them: a repeated number or an unknown band ends the link, not the gateway.

There is one decider at a time; the *epoch* numbers their terms. A new leader first gathers what all edges hold
(`gathering.py`), for half a second at most, and then dispatches; later announcements are merged. A leader that can't
renew dispatches nothing, and one that steps down forgets everything. Meanwhile facts are deferred, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.request import Request
from penstock.share.frames import LinkError
from penstock.share.gathering import GATHER_S, Pieces, band_here, checked
from penstock.share.messages import (
    Allowed,
    Announced,
    Announcement,
    Announcing,
    Arrived,
    Cancelled,
    Down,
    Fact,
    Failed,
    Finished,
    FirstToken,
    FoundBlocks,
    FoundCached,
    LeaseFact,
    Members,
    Moved,
    OfLease,
    OfRequest,
    PassedOn,
    Piece,
    Places,
    Progressed,
    PromptComputed,
    RequestFact,
    Rerouted,
    RunsHere,
    Told,
    WaitsHere,
    WherePlaced,
    WireRequest,
    usage_of,
)

CUT_S: Final = 3.0  # leases outlive their link so long: the time in which a dead machine is noticed
LATER_MAX: Final = 100_000  # facts: those of seconds at full load
EPOCH_BITS: Final = 32  # lease numbers of one epoch; those of two epochs never meet


class Phase(StrEnum):
    """The state of a decider."""

    IDLE = "idle"  #: another one leads
    GATHERING = "gathering"  #: edges announce what they hold
    DECIDING = "deciding"
    HOLDING = "holding"  #: it could not renew, and dispatches nothing until it has


class Journeys(Protocol):
    """The part of the driver that a decider uses."""

    def join(self, request_id: str, journey: Remote, /) -> None: ...
    def leave(self, request_id: str, /) -> None: ...
    def knows(self, request_id: str, /) -> bool: ...
    def tell(self, actions: list[Action], /) -> None: ...


class Peer:
    """One edge, as long as its link holds."""

    def __init__(self, name: str, send: Callable[[Down], None], bands: Sequence[str]) -> None:
        self.name = name
        self.send = send
        self.requests: dict[int, Remote] = {}
        self.bands = bands  #: by the settings that it follows, highest first
        self.last_number = 0
        self.stale = 0  #: facts that came too late
        self.gone = False
        self.pieces: Pieces | None = None  #: of its announcement, until it is booked
        self.announced = False  #: it was booked
        self.cut_until_s = math.inf  #: when its leases come back after its link broke


class Remote:
    """A request of an edge: a journey to the driver, a number to the edge."""

    __slots__ = ("_decider", "decode", "endpoint", "lease", "number", "peer", "request", "told")

    def __init__(self, decider: Decider, peer: Peer, number: int, request: Request) -> None:
        self._decider = decider
        self.peer = peer
        self.number = number
        self.request = request
        self.lease: int | None = None
        self.told: int | None = None  #: its edge's number of that lease, which another decider may have granted
        self.decode: tuple[int, int] | None = None  #: both numbers of the lease for the answer, if prefill is separate
        self.endpoint = ""  #: to which it was sent last

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.lease is None

    @property
    def band(self) -> str:
        return self._decider.bands[self.request.band]

    def dispatched(self, action: Dispatch, /) -> None:
        self._decider.before_dispatch(self.peer, action.endpoint)
        self.lease = self.told = action.lease
        self.endpoint = action.endpoint
        self._tell(action)

    def decoding(self, action: Decode, /) -> None:
        self.lease = self.told = action.lease
        self.endpoint = action.endpoint
        if self.decode is not None and self.decode[0] == action.lease:
            self.told = self.decode[1]
            action = msgspec.structs.replace(action, lease=self.told)
        self._tell(action)

    def requeued(self, action: Requeue, /) -> None:
        self.lease = None
        if self.peer.gone:
            self._decider.drop([self])  # its edge announces it again, if it lives
        else:
            self.peer.send(Told(self.number, action))

    def ended(self, action: Reject | Evict | Fail, /) -> None:
        self._decider.forget(self)
        self._tell(action)

    def aborted(self, action: Abort, /) -> None:
        self.peer.send(Told(self.number, action))

    def _tell(self, action: Action) -> None:
        allowance = self._decider.allowance(self.request)
        if allowance is not None:
            self.peer.send(allowance)
        self.peer.send(Told(self.number, action))


class Decider:
    """Passes facts of edges to the scheduler, each with the present time."""

    def __init__(
        self,
        scheduler: Scheduler,
        journeys: Journeys,
        *,
        now: Callable[[], float],
        bands: Sequence[str],
        levels: int,
        before_dispatch: Callable[[Peer, str], None] = lambda _seat, _endpoint: None,
        leads: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._journeys = journeys
        self._now = now
        self.bands = bands  #: of the settings in force, highest first
        self._levels = levels
        self.before_dispatch = before_dispatch  #: so that the edge knows the endpoint
        self.peers: list[Peer] = []
        self._serial = 0
        self.epoch = 1 if leads else 0
        self.alone = 0  #: it decides for its own edges only, with its part: that of one of so many gateways
        self._phase = Phase.DECIDING if leads else Phase.IDLE
        self._holds = False
        self._cut: dict[str, Peer] = {}  # by name: links that broke recently, with their leases
        self._expected: set[str] = set()  # edges that may hold requests
        self._silent: Collection[str] = ()  # those of them that announce nothing
        self._begins_s = math.inf
        self._credited: set[str] = set()  # edges whose flows' service was counted
        self._later: list[tuple[Peer, Fact, float]] = []  # deferred facts, and when they came
        self._taken_on = 0
        if not leads:
            scheduler.halted(afresh=True, now=now())

    # --- leading --------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return Phase.HOLDING if self._holds and self._phase is Phase.DECIDING else self._phase

    def lead(self, epoch: int, expected: Collection[str] = (), *, silent: Collection[str] = (), alone: int = 0) -> None:
        """Lead as soon as the `expected` edges, and those that they name, have announced what they hold.

        Edges that are `silent` announce nothing. `alone`: as one of so many gateways, with its part of slots and
        limits, and without others' edges. A leader that is called again takes the higher epoch.
        """
        now = self._now()
        if self._phase is not Phase.IDLE:
            assert bool(alone) == bool(self.alone), "step down before the change between alone and all"
            self.epoch = max(self.epoch, epoch)
            if self.phase is Phase.DECIDING:
                self._journeys.tell(self._scheduler.begun(lease_from=self._lease_from, now=now))
            return
        self.epoch, self.alone, self._phase = epoch, alone, Phase.GATHERING
        self._expected, self._silent, self._begins_s = set(expected), silent, now + GATHER_S
        self._scheduler.halted(afresh=True, now=now)

    def hold(self) -> None:
        """Dispatch nothing: another gateway may lead soon."""
        self._holds = True
        self._scheduler.halted(now=self._now())

    def go_on(self) -> None:
        """It still leads."""
        self._holds = False
        if self._phase is Phase.GATHERING:
            self._begin_if_ready()
        elif self._phase is Phase.DECIDING:
            self._journeys.tell(self._scheduler.begun(now=self._now()))
            self._catch_up()

    def step_down(self) -> None:
        """Another one leads: forget what edges hold. They announce it there."""
        now = self._now()
        self._scheduler.halted(now=now)
        for peer in [*self.peers, *self._cut.values()]:
            peer.gone = True
            self.drop(list(peer.requests.values()))
        self.peers.clear()
        self._cut.clear()
        self._later.clear()
        self._credited.clear()
        if self.alone:
            self._journeys.tell(self._scheduler.apportioned(1, now=now))
        self.alone, self._holds = 0, False
        self._phase, self._begins_s = Phase.IDLE, math.inf

    def next_deadline(self) -> float | None:
        """Returns when `expire` has something to do; None: never."""
        due_s = min([self._begins_s, *[peer.cut_until_s for peer in self._cut.values()]])
        return None if due_s == math.inf else due_s

    def expire(self) -> None:
        """End the wait for announcements, and return leases of links that broke long enough ago."""
        now = self._now()
        if now >= self._begins_s:
            self._expected.clear()
            self._begin_if_ready()
        for peer in [peer for peer in self._cut.values() if now >= peer.cut_until_s]:
            del self._cut[peer.name]
            self._journeys.tell(self._given_back(peer))

    @property
    def _lease_from(self) -> int:
        return self.epoch << EPOCH_BITS

    def _begin_if_ready(self) -> None:
        """Begin if all known edges have announced, or the time is over."""
        now = self._now()
        announced = {peer.name for peer in self.peers if peer.pieces is not None and peer.pieces.end is not None}
        over = now >= self._begins_s
        if self._holds or not (over or (self._expected and self._expected.difference(self._silent) <= announced)):
            return
        self._phase, self._begins_s = Phase.DECIDING, math.inf
        self._book([peer for peer in self.peers if peer.name in announced], now)
        if self.alone:
            self._scheduler.apportioned(self.alone, now=now)
        self._journeys.tell(self._scheduler.begun(lease_from=self._lease_from, afresh=True, now=now))
        self._catch_up()

    def _catch_up(self) -> None:
        """Process the deferred facts, each before the next."""
        later, self._later = self._later, []
        for peer, fact, came_s in later:
            if not peer.gone:
                self._journeys.tell(self._take(peer, fact, came_s))

    # --- edges come and go ----------------------------------------------------------------------------------------

    def opened(self, peer: Peer) -> None:
        """An edge's link is open. First it announces what it holds."""
        self.peers.append(peer)

    def lost(self, peer: Peer) -> list[Action]:
        """An edge is gone with its clients: its leases come back, its queued requests are dropped."""
        if peer.gone:
            return []  # another link replaced it, or this decider leads no longer
        self._leaves(peer)
        self._expected.discard(peer.name)
        return self._given_back(peer)

    def cut(self, peer: Peer) -> list[Action]:
        """A link broke, and its edge may live: keep its leases for a while, until it announces them again."""
        if peer.gone:
            return []
        self._leaves(peer)
        self.drop([remote for remote in peer.requests.values() if remote.waits])
        actions = self._given_back(self._cut.pop(peer.name)) if peer.name in self._cut else []
        if peer.requests:
            peer.cut_until_s = self._now() + CUT_S
            self._cut[peer.name] = peer
        return actions

    def _leaves(self, peer: Peer) -> None:
        peer.gone = True
        self.peers.remove(peer)
        self._tell_members()

    def _given_back(self, peer: Peer) -> list[Action]:
        actions: list[Action] = []
        now = self._now()
        # Queued ones first: otherwise they would get the leases that come back.
        for remote in sorted(peer.requests.values(), key=lambda remote: not remote.waits):
            self.forget(remote)
            actions += self._scheduler.cancelled(remote.request.id, now=now)
        return actions

    def drop(self, remotes: Sequence[Remote]) -> None:
        """Forget requests that another decider has, or that will be announced again."""
        for remote in remotes:
            self.forget(remote)
        self._scheduler.forgotten([remote.request.id for remote in remotes], now=self._now())

    def in_use(self, endpoint: str) -> bool:
        """Returns whether any edge has a request there."""
        return any(
            remote.lease is not None and remote.endpoint == endpoint
            for peer in (*self.peers, *self._cut.values())
            for remote in peer.requests.values()
        )

    def _tell_members(self) -> None:
        names = sorted({peer.name for peer in self.peers if peer.announced})
        told = Members(names)
        for peer in self.peers:
            if peer.announced:
                peer.send(told)

    # --- announcements --------------------------------------------------------------------------------------------

    def _announces(self, peer: Peer, message: Announcement) -> list[Action]:
        if peer.announced or (peer.pieces is not None and peer.pieces.end is not None):
            raise LinkError("an announcement where facts are due")
        if peer.pieces is None:
            if not isinstance(message, Announcing):
                raise LinkError("a link begins with an announcement")
            if message.bands:
                peer.bands = self.bands if list(self.bands) == message.bands else tuple(message.bands)
            peer.pieces = Pieces(
                lambda request: self._checked(peer, request), lambda band: band_here(band, peer.bands, self.bands)
            )
            return []
        peer.pieces.add(message)
        if not isinstance(message, Announced):
            return []
        peer.last_number = max(peer.pieces.requests, default=0)
        if not self.alone:
            self._expected.update(message.edges)
        if self._phase is Phase.GATHERING:
            self._begin_if_ready()
            return []
        return self._late(peer)

    def _late(self, peer: Peer) -> list[Action]:
        """Merge the announcement of an edge that is late, returns, or is new."""
        assert peer.pieces is not None
        now = self._now()
        if peer.name not in self._cut and not peer.pieces.requests and not peer.pieces.services:
            self._book([peer], now)
            return []
        self._scheduler.halted(now=now)
        self._book([peer], now)
        if not self._holds:
            self._journeys.tell(self._scheduler.begun(now=now))
            self._catch_up()
        return []

    def _book(self, peers: Sequence[Peer], now: float) -> None:
        """Adopt the requests of these edges: running ones as they were dispatched, then queued ones as they came."""
        runs: list[tuple[Peer, RunsHere]] = []
        waits: list[tuple[Peer, WaitsHere]] = []
        for peer in peers:
            before = [other for other in self.peers if other.name == peer.name and other is not peer]
            for other in before:  # its break was not noticed yet
                self._leaves(other)
            before += [self._cut.pop(peer.name)] if peer.name in self._cut else []
            for other in before:
                self._replaced(other, peer)
        for peer in peers:
            pieces, peer.pieces, peer.announced = peer.pieces, None, True
            assert pieces is not None
            for its in pieces.requests.values():
                if isinstance(its, RunsHere):
                    runs.append((peer, its))
                else:
                    waits.append((peer, its))
            if peer.name not in self._credited:
                self._credited.add(peer.name)
                self._scheduler.credited(pieces.services, now=now)
                self._scheduler.remembered(pieces.sessions, pieces.prefixes, now=now)
        for peer, run in sorted(runs, key=lambda row: -row[1].underway.running_s):
            self._take_on(peer, run, now)
        for peer, wait in sorted(waits, key=lambda row: -row[1].came_s):
            if wait.request.pinned is not None:  # it never queues, so no decision was made about it
                self._later.append((peer, Arrived(wait.number, wait.request), now))
                continue
            remote = self._joins(peer, wait.number, wait.request, now)
            self._scheduler.adopted(
                remote.request, came_s=wait.came_s, waited_s=wait.waited_s, decided=wait.decided, now=now
            )
        self._tell_members()

    def _replaced(self, before: Peer, peer: Peer) -> None:
        """An edge whose link broke has returned: what it still holds is announced again, the rest has ended."""
        assert peer.pieces is not None
        goes_on = [remote for number, remote in before.requests.items() if number in peer.pieces.requests]
        self.drop(goes_on)
        self._journeys.tell(self._given_back(before))

    def _take_on(self, peer: Peer, run: RunsHere, now: float) -> None:
        """Adopt a lease of another decider or of another link. Its edge keeps its number for it."""
        remote = self._joins(peer, run.number, run.request, now)
        its = run.underway
        remote.lease, remote.told, remote.endpoint = self._next_taken_on(), its.lease, its.endpoint
        decode_lease = None
        if its.decode_lease is not None:
            decode_lease = self._next_taken_on()
            remote.decode = decode_lease, its.decode_lease
        its = msgspec.structs.replace(its, lease=remote.lease, decode_lease=decode_lease)
        self._scheduler.adopted(remote.request, came_s=run.came_s, waited_s=run.waited_s, underway=its, now=now)

    def _next_taken_on(self) -> int:
        """Negative numbers: no lease that is granted here has one."""
        self._taken_on -= 1
        return self._taken_on

    # --- facts ----------------------------------------------------------------------------------------------------

    def take(self, peer: Peer, fact: Fact | Announcement) -> list[Action]:
        """Process one fact. The returned actions have to be carried out before the next. Raises `LinkError`."""
        if isinstance(fact, Piece):
            return self._announces(peer, fact)
        if not peer.announced and (peer.pieces is None or peer.pieces.end is None):
            raise LinkError("a fact before the end of the announcement")
        if isinstance(fact, Arrived):
            fact = self._valid(peer, fact)
        if (self._holds or self._phase is not Phase.DECIDING) and self._puts_off(peer, fact):
            if len(self._later) >= LATER_MAX:
                raise LinkError(f"more than {LATER_MAX} facts while there is no leader")
            self._later.append((peer, fact, self._now()))
            return []
        return self._take(peer, fact, self._now())

    def _puts_off(self, peer: Peer, fact: Fact) -> bool:
        """Whether to defer a fact: all while gathering; while holding, those about new requests."""
        if self._phase is not Phase.DECIDING or isinstance(fact, Arrived):
            return True
        return isinstance(fact, OfLease | OfRequest) and fact.number not in peer.requests

    def _take(self, peer: Peer, fact: Fact, came_s: float) -> list[Action]:
        now = self._now()
        if isinstance(fact, Arrived):
            return self._arrived(peer, fact, came_s, now)
        if isinstance(fact, Moved):
            return self._scheduler.moved(fact.endpoints, now=now)
        if isinstance(fact, WherePlaced):
            self._tell_places(peer, fact, now)
            return []
        remote = peer.requests.get(fact.number)
        if remote is None:
            peer.stale += 1
            return []
        if isinstance(fact, OfRequest):
            return self._about_request(remote, fact, now)
        if remote.lease is None or fact.lease != remote.told:
            return self._stale(peer, remote, fact, now)
        return self._about_lease(remote, remote.lease, fact, now)

    def _about_request(self, remote: Remote, fact: RequestFact, now: float) -> list[Action]:
        scheduler, name = self._scheduler, remote.request.id
        match fact:
            case Cancelled():
                self.forget(remote)
                return scheduler.cancelled(name, unsent=fact.queued and remote.lease is not None, now=now)
            case FoundBlocks():
                return scheduler.located(name, fact.keys, fact.block_tokens, now=now)
            case FoundCached():
                return scheduler.cached(name, fact.tokens, fact.source, now=now)

    def _about_lease(self, remote: Remote, lease: int, fact: LeaseFact, now: float) -> list[Action]:
        scheduler = self._scheduler
        match fact:
            case Finished():
                self.forget(remote)
                return scheduler.finished(lease, usage_of(fact.usage), refused=fact.refused, now=now)
            case FirstToken():
                return scheduler.first_token(lease, well=fact.well, now=now)
            case Progressed():
                return scheduler.progressed(lease, fact.output_tokens, now=now)
            case Rerouted():
                remote.endpoint = fact.endpoint
                return scheduler.rerouted(lease, fact.endpoint, now=now)
            case PassedOn():
                return scheduler.passed_on(lease, now=now)
            case Failed():
                remote.lease = None
                return scheduler.failed(
                    lease, fact.failure, answering=fact.answering, retry_after_s=fact.retry_after_s, now=now
                )
            case PromptComputed():
                remote.lease = None
                return scheduler.prefilled(lease, usage_of(fact.usage), now=now)

    def forget(self, remote: Remote) -> None:
        """Forget a request that needs no further decision."""
        del remote.peer.requests[remote.number]
        self._journeys.leave(remote.request.id)

    def _stale(self, peer: Peer, remote: Remote, fact: LeaseFact, now: float) -> list[Action]:
        """The lease was taken back while this was on its way."""
        peer.stale += 1
        if not isinstance(fact, Finished):
            return []
        self.forget(remote)  # its client has the answer, so its return to the queue or its next dispatch ends
        return self._scheduler.answered(remote.request.id, usage_of(fact.usage), refused=fact.refused, now=now)

    def _valid(self, peer: Peer, fact: Arrived) -> Arrived:
        if fact.number <= peer.last_number:
            raise LinkError(f"request {fact.number} comes after {peer.last_number}")
        peer.last_number = fact.number
        request = self._checked(peer, fact.request)
        return fact if request is fact.request else Arrived(fact.number, request)

    def _arrived(self, peer: Peer, fact: Arrived, came_s: float, now: float) -> list[Action]:
        remote = self._joins(peer, fact.number, fact.request, came_s)
        return self._scheduler.arrived(remote.request, now=now)

    def _joins(self, peer: Peer, number: int, row: WireRequest, came_s: float) -> Remote:
        """Add a request of an edge, reported at `came_s`."""
        changes: dict[str, object] = {}
        if row.deadline_s is not None:
            changes["deadline_s"] = came_s + row.deadline_s
        if self._journeys.knows(row.id):
            self._serial += 1
            changes["id"] = f"{row.id}~{peer.name}~{self._serial}"
        request = (msgspec.structs.replace(row, **changes) if changes else row).request()
        remote = peer.requests[number] = Remote(self, peer, number, request)
        self._journeys.join(request.id, remote)
        return remote

    def _checked(self, peer: Peer, request: WireRequest) -> WireRequest:
        return checked(request, bands=peer.bands, here=self.bands, levels=self._levels)

    # --- for edges, beside actions ----------------------------------------------------------------------------------

    def allowance(self, request: Request) -> Allowed | None:
        """Returns the allowance of its accounts; None: they have no rates."""
        left = self._scheduler.allowance(request.accounts, now=self._now())
        return None if left is None else Allowed(request.accounts, left)

    def _tell_places(self, peer: Peer, asked: WherePlaced, now: float) -> None:
        remotes = [remote for number in asked.numbers if (remote := peer.requests.get(number)) is not None]
        places = self._scheduler.places([remote.request.id for remote in remotes], now=now)
        rows = [
            (remote.number, (place.position, place.eta_s, place.waited_s))
            for remote in remotes
            if (place := places.get(remote.request.id)) is not None
        ]
        peer.send(Places(rows))
