"""What stands between many edges and the one scheduler: whose request is whose, and which facts still hold.

To the driver a request of an edge is a journey like any other: it joins when it arrives, hears what is decided, and
leaves. Only that what it hears is written to its edge. So one scheduler, one driver and one timer serve requests of
this process and of all edges alike, and no decision asks where a request came from.

Facts cross with actions on their way. One about a lease that was taken back meanwhile is dropped, but for two that end
the request whatever the scheduler believes: an answer that is complete, and a client that is gone. What an edge says is
looked at before the scheduler hears it: a number twice, a band that is not there end the link, not the gateway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.request import Request
from penstock.core.values.settings import Prices
from penstock.share.edge import NAME_CHARACTERS_MAX
from penstock.share.frames import LinkError
from penstock.share.messages import (
    Allowed,
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
    Moved,
    PassedOn,
    Places,
    Progressed,
    PromptComputed,
    RequestFact,
    Told,
    WherePlaced,
)


class Journeys(Protocol):
    """The driver, as a decider knows it."""

    def join(self, request_id: str, journey: Remote, /) -> None: ...
    def leave(self, request_id: str, /) -> None: ...
    def knows(self, request_id: str, /) -> bool: ...


class Seat:
    """One edge, as long as its link holds."""

    def __init__(self, name: str, send: Callable[[Down], None], bands: Sequence[str]) -> None:
        self.name = name
        self.send = send
        self.requests: dict[int, Remote] = {}
        self.bands = bands  #: as of the settings that it follows, highest first
        self.last_number = 0
        self.stale = 0  #: facts that came too late to mean anything
        self.gone = False


class Remote:
    """A request of an edge: a journey to the driver, a number to the edge."""

    __slots__ = ("_decider", "endpoint", "lease", "number", "request", "seat")

    def __init__(self, decider: Decider, seat: Seat, number: int, request: Request) -> None:
        self._decider = decider
        self.seat = seat
        self.number = number
        self.request = request
        self.lease: int | None = None
        self.endpoint = ""  #: where it was sent last

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.lease is None

    @property
    def band(self) -> str:
        return self._decider.bands[self.request.band]

    def dispatched(self, action: Dispatch, /) -> None:
        self._decider.before_dispatch(self.seat, action.endpoint)
        self.lease, self.endpoint = action.lease, action.endpoint
        self._tell(action)

    def decoding(self, action: Decode, /) -> None:
        self.lease, self.endpoint = action.lease, action.endpoint
        self._tell(action)

    def requeued(self, action: Requeue, /) -> None:
        self.lease = None
        self.seat.send(Told(self.number, action))

    def ended(self, action: Reject | Evict | Fail, /) -> None:
        self._decider.forget(self)
        self._tell(action)

    def aborted(self, action: Abort, /) -> None:
        self.seat.send(Told(self.number, action))

    def _tell(self, action: Action) -> None:
        allowance = self._decider.allowance(self.request)
        if allowance is not None:
            self.seat.send(allowance)
        self.seat.send(Told(self.number, action))


class Decider:
    """Tells the scheduler what edges say, each fact with the time of now."""

    def __init__(
        self,
        scheduler: Scheduler,
        journeys: Journeys,
        *,
        now: Callable[[], float],
        bands: Sequence[str],
        levels: int,
        before_dispatch: Callable[[Seat, str], None] = lambda _seat, _endpoint: None,
    ) -> None:
        self._scheduler = scheduler
        self._journeys = journeys
        self._now = now
        self.bands = bands  #: as of the settings in force, highest first
        self._levels = levels
        self.before_dispatch = before_dispatch  #: the edge has to know the endpoint before it is sent there
        self.seats: list[Seat] = []
        self._serial = 0

    # --- edges come and go ----------------------------------------------------------------------------------------

    def opened(self, seat: Seat) -> None:
        """An edge's link holds."""
        self.seats.append(seat)

    def lost(self, seat: Seat) -> list[Action]:
        """An edge is gone, and with it its clients: its leases come back, what waited there is dropped."""
        seat.gone = True
        self.seats.remove(seat)
        actions: list[Action] = []
        now = self._now()
        # Those that wait first: else leases that come back would be given to them.
        for remote in sorted(seat.requests.values(), key=lambda remote: not remote.waits):
            self.forget(remote)
            actions += self._scheduler.cancelled(remote.request.id, now=now)
        return actions

    def in_use(self, endpoint: str) -> bool:
        """Whether any edge has a request there."""
        return any(
            remote.lease is not None and remote.endpoint == endpoint
            for seat in self.seats
            for remote in seat.requests.values()
        )

    # --- facts ----------------------------------------------------------------------------------------------------

    def take(self, seat: Seat, fact: Fact) -> list[Action]:
        """Tell the scheduler one fact. What it returns has to be carried out before the next. `LinkError`: nonsense."""
        now = self._now()
        match fact:
            case Arrived():
                return self._arrived(seat, fact, now)
            case Moved():
                return self._scheduler.moved(fact.endpoints, now=now)
            case WherePlaced():
                self._tell_places(seat, fact, now)
                return []
        remote = seat.requests.get(fact.number)
        if remote is None:
            seat.stale += 1
            return []
        if isinstance(fact, Cancelled | FoundBlocks | FoundCached):
            return self._about_request(remote, fact, now)
        if fact.lease != remote.lease:
            return self._stale(seat, remote, fact, now)
        return self._about_lease(remote, fact, now)

    def _about_request(self, remote: Remote, fact: RequestFact, now: float) -> list[Action]:
        scheduler, name = self._scheduler, remote.request.id
        match fact:
            case Cancelled():
                self.forget(remote)
                return scheduler.cancelled(name, now=now)
            case FoundBlocks():
                return scheduler.located(name, fact.keys, fact.block_tokens, now=now)
            case FoundCached():
                return scheduler.cached(name, fact.tokens, fact.source, now=now)

    def _about_lease(self, remote: Remote, fact: LeaseFact, now: float) -> list[Action]:
        scheduler, lease = self._scheduler, fact.lease
        match fact:
            case Progressed():
                return scheduler.progressed(lease, fact.output_tokens, now=now)
            case FirstToken():
                return scheduler.first_token(lease, well=fact.well, now=now)
            case PassedOn():
                return scheduler.passed_on(lease, now=now)
            case Finished():
                self.forget(remote)
                return scheduler.finished(lease, fact.usage, refused=fact.refused, now=now)
            case Failed():
                remote.lease = None
                return scheduler.failed(lease, fact.failure, answering=fact.answering, now=now)
            case PromptComputed():
                remote.lease = None
                return scheduler.prefilled(lease, fact.usage, now=now)

    def forget(self, remote: Remote) -> None:
        """Nothing more is decided about it."""
        del remote.seat.requests[remote.number]
        self._journeys.leave(remote.request.id)

    def _stale(self, seat: Seat, remote: Remote, fact: LeaseFact, now: float) -> list[Action]:
        """The lease was taken back while this was on its way."""
        seat.stale += 1
        if not isinstance(fact, Finished):
            return []
        self.forget(remote)  # its client has the answer: whatever it was about to wait for, or was sent to again, ends
        return self._scheduler.cancelled(remote.request.id, now=now)

    def _arrived(self, seat: Seat, fact: Arrived, now: float) -> list[Action]:
        request = fact.request
        if fact.number <= seat.last_number:
            raise LinkError(f"request {fact.number} comes after {seat.last_number}")
        seat.last_number = fact.number
        request = self._checked(seat, request)
        changes: dict[str, object] = {}
        if request.deadline_s is not None:
            changes["deadline_s"] = now + request.deadline_s
        if self._journeys.knows(request.id):
            self._serial += 1
            changes["id"] = f"{request.id}~{seat.name}~{self._serial}"
        if changes:
            request = msgspec.structs.replace(request, **changes)
        remote = seat.requests[fact.number] = Remote(self, seat, fact.number, request)
        self._journeys.join(request.id, remote)
        return self._scheduler.arrived(request, now=now)

    def _checked(self, seat: Seat, request: Request) -> Request:
        """What the scheduler takes on trust from a gateway of its own."""
        names = (request.id, request.model, request.tenant, request.account, *request.flow)
        if any(len(name) > NAME_CHARACTERS_MAX for name in names):
            raise LinkError("a request with a name that is too long")
        levels = len(request.flow)
        # Those without a key stand together, a level further down.
        if len(request.weights) != levels or not self._levels <= levels <= self._levels + 1:
            raise LinkError(f"a request with {levels} fairness levels, where there are {self._levels}")
        prices = request.prices or Prices()
        numbers = (request.deadline_s or 0.0, request.locate_s, prices.prompt, prices.cached_prompt, prices.completion)
        if (
            request.body_bytes < 0
            or not all(map(math.isfinite, (*request.weights, *numbers)))
            or min(request.weights) <= 0
        ):
            raise LinkError("a request with a weight, a size or a time that is none")
        if not 0 <= request.band < len(seat.bands):
            raise LinkError(f"a request in band {request.band}, where there are {len(seat.bands)}")
        if seat.bands is self.bands:
            return request
        band = self._rank(seat.bands[request.band], request.band)  # the edge has not heard of new settings yet
        return request if band == request.band else msgspec.structs.replace(request, band=band)

    def _rank(self, name: str, rank: int) -> int:
        """The rank of a band of other settings: by its name, or where it is gone, the next lower one that is there."""
        bands = list(self.bands)
        return bands.index(name) if name in bands else min(rank, len(bands) - 1)

    # --- what edges are told beside actions -------------------------------------------------------------------------

    def allowance(self, request: Request) -> Allowed | None:
        """What its account has left, where it has rates."""
        account = request.account or request.tenant
        left = self._scheduler.allowance(account, now=self._now())
        return None if left is None else Allowed(account, left)

    def _tell_places(self, seat: Seat, asked: WherePlaced, now: float) -> None:
        remotes = [remote for number in asked.numbers if (remote := seat.requests.get(number)) is not None]
        places = self._scheduler.places([remote.request.id for remote in remotes], now=now)
        rows = [
            (remote.number, (place.position, place.eta_s, place.waited_s))
            for remote in remotes
            if (place := places.get(remote.request.id)) is not None
        ]
        seat.send(Places(rows))
