"""A decider's peers: edges, each with its requests, which are journeys to the driver like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.request import Request
from penstock.share.gathering import Pieces
from penstock.share.messages import Down, Told

if TYPE_CHECKING:
    from penstock.share.decider import Decider


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
