"""An edge takes the place of the scheduler: facts go to the decider, and its actions come back later.

Facts and actions cross on their way. Two rules settle that. *An end is final*: the number of a forgotten request is
never used again, so an action for it is dropped, and the side that forgets reports it. *An answer that a client reads
is never retried*: a `Requeue` that comes after the first byte is not followed. The answer goes on without a lease, as
foreign load, and the edge reports that the request needs no further decision. So no request is answered twice, and none
is forgotten by one side alone.

*Without a link everything goes on*: streams continue, leases end here, new requests wait here. When a decider accepts
the edge, the same one or another, the edge announces all that it holds (`announcing.py`) and follows that decider only.
So it does not matter what was on its way when a link broke.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from penstock.core.queueing.position import QueuePosition
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.located import Source
from penstock.core.values.request import Request, Usage
from penstock.core.values.retry import final_reason
from penstock.share.announcing import EdgeMemory, announce
from penstock.share.messages import (
    Allowed,
    Announcement,
    Arrived,
    Aside,
    Cancelled,
    Down,
    Endpoints,
    Fact,
    Failed,
    Finished,
    FirstToken,
    FoundBlocks,
    FoundCached,
    Frame,
    Loads,
    Members,
    Moved,
    OfLease,
    OfRequest,
    PassedOn,
    Places,
    Progressed,
    PromptComputed,
    Rerouted,
    Told,
    Unreachable,
    WherePlaced,
    WireRequest,
)
from penstock.share.view import View

NAME_CHARACTERS_MAX = 4096  # of a model, which clients choose; no engine has a longer name
PROGRESS_TOKENS = 64  # progress is reported in such steps, unless a TPOT limit needs each token
WAITING_MAX = 10_000  # as `queue.max_requests` is by default
RETRY_AFTER_S = 2.0  # if too many wait here without a link: a decider is back within seconds
MOVED_INTERVAL_S = 0.1  # between reports of endpoints whose answers grow: under half of `liveness.CHECK_S`


class HeldRequest:
    """A request at this edge, from its arrival until it needs no further decision."""

    __slots__ = (
        "begun",
        "decided",
        "decode",
        "endpoint",
        "handed_over",
        "lease",
        "loose",
        "number",
        "output_tokens",
        "request",
        "sent_s",
        "since_s",
        "told_tokens",
        "undecided",
        "waited_s",
        "waits_s",
    )

    def __init__(self, number: int, request: Request, now: float, *, decided: bool) -> None:
        self.number = number
        self.request = request
        self.since_s = now
        self.lease: int | None = None  #: from its dispatch to the fact that ends it
        self.endpoint = ""
        self.decode: tuple[str, int] | None = None  #: of a divided request: the endpoint of the answer, and its lease
        self.output_tokens = self.told_tokens = 0  #: received of its answer, and reported
        self.begun = False  #: its client has part of the answer
        self.decided = decided  #: a decider knows it
        self.loose = False  #: its lease was taken back too late: the answer goes on without
        self.undecided: Failure | None = None  #: how its lease ended, until the decider reacts
        self.handed_over = False  #: its prompt was computed elsewhere
        self.sent_s = 0.0
        self.waited_s = 0.0  #: before its last dispatch
        self.waits_s = now  #: since when, if it waits


class Edge(View):
    """Takes facts like a `Scheduler`; decisions come out of `take`."""

    def __init__(self, *, remembers: bool = True) -> None:
        super().__init__()
        self._send: Callable[[Fact | Aside | Announcement], None] = _to_nobody
        self.is_linked = False
        self.bands: Sequence[str] = ()  #: names, by the settings in force
        self.waiting_max = WAITING_MAX  #: bound of requests that wait without a link
        self.edges: Sequence[str] = ()  #: of the decider, as last reported
        self.memory = EdgeMemory() if remembers else None  #: None: no other decider will ask
        self.requests: dict[int, HeldRequest] = {}
        self._by_id: dict[str, HeldRequest] = {}
        self._leases: dict[int, HeldRequest] = {}
        self.epoch = 0  #: the highest that was followed
        self.stale = 0  #: frames of superseded deciders
        self._last_number = 0
        self._moved_s = 0.0
        self._grown: dict[int, HeldRequest] = {}  # by a step or more since the last report

    # --- deciders come and go -----------------------------------------------------------------------------------

    def follows(self, epoch: int) -> bool:
        """Returns whether a decider of that epoch may be followed: no later one was followed."""
        return epoch >= self.epoch

    def linked(self, send: Callable[[Fact | Aside | Announcement], None], epoch: int, *, now: float) -> list[Action]:
        """A decider has accepted this edge: announce everything through `send`. Returns actions to carry out.

        From now on, feed `take` with frames of this link only.
        """
        actions = self.unlinked(now=now)
        self.epoch = max(self.epoch, epoch)
        self._send, self.is_linked = send, True
        for held in self.requests.values():
            held.loose = False
            held.told_tokens = held.output_tokens
        announce(self, send, now=now)
        return actions

    def unlinked(self, *, now: float) -> list[Action]:
        """The link is gone: decide here about failures that the decider had not answered. Returns the actions."""
        self._send, self.is_linked = _to_nobody, False
        return [self._after(held, held.undecided, now) for held in list(self.requests.values()) if held.undecided]

    def _after(self, held: HeldRequest, failure: Failure, now: float) -> Action:
        """Returns the action for a request whose lease ended by `failure`, without a decider."""
        held.undecided = None
        if held.begun or failure is Failure.BROKEN:
            self._forget(held)
            return _broken(held)
        held.waits_s = now
        return Requeue(held.request.id, failure)

    # --- from the decider ---------------------------------------------------------------------------------------

    def take(self, frame: Frame[Down], *, now: float) -> tuple[list[Action], list[Down]]:
        """Returns actions to carry out, in order, and messages that are not about requests.

        Frames of a superseded decider are dropped.
        """
        actions: list[Action] = []
        others: list[Down] = []
        if frame.epoch < self.epoch:
            self.stale += 1
            return actions, others
        self.epoch = frame.epoch
        for message in frame.messages:
            match message:
                case Told(number, action):
                    held = self.requests.get(number)
                    if held is not None and not held.loose and (done := self._decided(held, action, now)) is not None:
                        actions.append(done)
                case Endpoints():
                    self.know_endpoints(message)
                    others.append(message)
                case Loads():
                    self.know_loads(message)
                case Allowed():
                    self.know_allowance(message)
                case Places():
                    self.know_places(message)
                case Members():
                    self.edges = message.edges
                case _:
                    others.append(message)
        return actions, others

    def _decided(self, held: HeldRequest, action: Action, now: float) -> Action | None:
        """Book an action, and return it; None: there is nothing to do."""
        match action:
            case Dispatch() | Decode():
                if action.lease == held.lease:
                    return None  # it was granted with the dispatch
                if held.begun:
                    return self._too_late(held)
                if action.endpoint not in self.rows:
                    self._send(Failed(held.number, action.lease, Failure.CONNECT))
                    return None
                self._lend(held, action.lease, action.endpoint, now)
                held.decode, held.handed_over = None, isinstance(action, Decode)
                if isinstance(action, Dispatch):
                    held.waited_s = action.queue_s
                    if action.decode is not None and action.decode_lease is not None:
                        held.decode = action.decode, action.decode_lease
                    if self.memory is not None:
                        self.memory.sent(held.request, action.endpoint)
            case Requeue():
                if held.begun:
                    return self._too_late(held)
                self._take_back(held)
                held.undecided, held.waits_s = None, now
            case Abort():
                pass
            case _:
                self._forget(held)
        if action.request_id != held.request.id:  # the decider knows it by another id
            action = msgspec.structs.replace(action, request_id=held.request.id)
        return action

    def _too_late(self, held: HeldRequest) -> Action | None:
        """The lease is gone, and the client reads: let it read on, and report that no decision is needed."""
        if held.lease is not None:
            self._send(Finished(held.number, held.lease))  # its cost is not known yet: the estimate is charged
            held.loose = True
            return None
        self._send(Cancelled(held.number))
        self._forget(held)  # the answer broke off meanwhile
        return _broken(held)

    # --- facts, as a scheduler takes them ------------------------------------------------------------------------

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        if len(request.model) > NAME_CHARACTERS_MAX:
            return [Reject(request.id, Reason.MODEL_NOT_FOUND)]
        assert request.id not in self._by_id, "request ids are unique among those that have not ended"
        if not self.is_linked and len(self.requests) - len(self._leases) >= self.waiting_max:
            return [Reject(request.id, Reason.QUEUE_FULL, RETRY_AFTER_S)]
        self._last_number += 1
        held = HeldRequest(self._last_number, request, now, decided=self.is_linked)
        self.requests[held.number] = self._by_id[request.id] = held
        row = WireRequest.of(request)
        if request.deadline_s is not None:
            row = msgspec.structs.replace(row, deadline_s=request.deadline_s - now)
        self._send(Arrived(held.number, row))
        return []

    def first_token(self, lease: int, *, well: bool = True, now: float) -> list[Action]:  # noqa: ARG002
        held = self._leases[lease]
        held.begun = True
        self._send(FirstToken(held.number, lease, well))
        return []

    def passed_on(self, lease: int, *, now: float) -> list[Action]:  # noqa: ARG002
        held = self._leases[lease]
        held.begun = True
        self._send(PassedOn(held.number, lease))
        return []

    def rerouted(self, lease: int, endpoint: str, *, now: float) -> list[Action]:  # noqa: ARG002
        held = self._leases[lease]
        held.endpoint = endpoint
        if self.memory is not None:
            self.memory.sent(held.request, endpoint)
        if not held.loose:
            self._send(Rerouted(held.number, lease, endpoint))
        return []

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:  # noqa: ARG002
        held = self._leases[lease]
        held.output_tokens = output_tokens
        if held.loose:
            return []
        if self.paced:
            self._tell_progress(held, lease)
        elif output_tokens >= held.told_tokens + PROGRESS_TOKENS:
            self._grown[held.number] = held  # reported with `moved`, without waking the decider
        return []

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        held = self._leases[lease]
        self._take_back(held)
        self._send(PromptComputed(held.number, lease, None if usage is None else usage.row()))
        if held.decode is None or held.decode[0] not in self.rows:
            held.undecided = Failure.CONNECT
            return [] if self.is_linked else [self._after(held, Failure.CONNECT, now)]
        # The other engine may have begun its answer: the lease holds now, not a round trip later.
        endpoint, following = held.decode
        self._lend(held, following, endpoint, now)
        held.decode, held.handed_over = None, True
        return [Decode(held.request.id, endpoint, following)]

    def finished(
        self,
        lease: int,
        usage: Usage | None = None,
        *,
        refused: bool = False,
        now: float,
    ) -> list[Action]:
        held = self._leases[lease]
        self._forget(held)
        if self.memory is not None:
            self.memory.ended(held.request, usage, held.output_tokens, now)
        if not held.loose:
            if usage is None and held.output_tokens > held.told_tokens:
                self._tell_progress(held, lease)  # nothing else reports the length of the answer
            self._send(Finished(held.number, lease, None if usage is None else usage.row(), refused))
        return []

    def failed(
        self, lease: int, failure: Failure, *, now: float, answering: bool = False, retry_after_s: float = 0.0
    ) -> list[Action]:
        held = self._leases[lease]
        if held.loose:
            self._forget(held)
            return [_broken(held)]
        self._take_back(held)
        if not self.is_linked:
            return [self._after(held, failure, now)]
        if held.output_tokens > held.told_tokens:
            self._tell_progress(held, lease)
        held.undecided = failure
        self._send(Failed(held.number, lease, failure, answering, retry_after_s))
        return []

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        held = self._by_id[request_id]
        lease, is_queued = held.lease, held.lease is None and held.undecided is None
        if self.memory is not None and lease is not None:
            self.memory.ended(held.request, None, held.output_tokens, now)
        self._forget(held)
        if not held.loose:
            if lease is not None and held.output_tokens > held.told_tokens:
                self._tell_progress(held, lease)  # what the client has of the answer is charged
            self._send(Cancelled(held.number, is_queued))
        return []

    def unsent(self, message: object) -> list[Action]:
        """A message could not be written, so the decider has not got it: neither side may wait for the other."""
        if not isinstance(message, Arrived | OfRequest | OfLease):
            return []
        held = self.requests.get(message.number)
        if held is None:  # it is over here, and its end was not reported
            if not isinstance(message, Cancelled):
                self._send(Cancelled(message.number))
            return []
        if not isinstance(message, Arrived):
            return []  # its end will be reported
        self._forget(held)
        return [Reject(held.request.id, Reason.BAD_REQUEST)]

    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]:  # noqa: ARG002
        if (held := self._by_id.get(request_id)) is not None and held.lease is None:
            self._send(FoundBlocks(held.number, list(keys), block_tokens))
        return []

    def cached(
        self,
        request_id: str,
        tokens: Mapping[str, int],
        source: Source = Source.LMCACHE,
        *,
        now: float,  # noqa: ARG002
    ) -> list[Action]:
        if (held := self._by_id.get(request_id)) is not None and held.lease is None:
            self._send(FoundCached(held.number, dict(tokens), source))
        return []

    def endpoint_down(self, name: str, *, now: float) -> list[Action]:  # noqa: ARG002
        """A request that needs no slot found the endpoint unreachable."""
        self._send(Unreachable(name, down=True))
        return []

    def moved(self, names: Iterable[str], *, now: float) -> list[Action]:
        """Answers of these endpoints have grown: report that, and progress. Ask `wants_moved` before."""
        self._moved_s = now
        grown, self._grown = self._grown, {}
        for held in grown.values():
            grown_by = held.output_tokens - held.told_tokens
            if held.lease is not None and not held.loose and grown_by >= PROGRESS_TOKENS:
                self._tell_progress(held, held.lease)
        if named := list(names):
            self._send(Moved(named))
        return []

    def wants_moved(self, now: float) -> bool:
        """Returns whether the next report of growing answers is due."""
        return now >= self._moved_s + MOVED_INTERVAL_S

    def expire(self, *, now: float) -> list[Action]:  # noqa: ARG002
        return []

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:  # noqa: ARG002
        """The decider drains, and decides about each request."""
        return []

    def next_deadline(self) -> float | None:
        """Returns None: deadlines are the decider's."""
        return None

    def changes_driver(self, armed_s: float, *, watched: bool) -> bool:  # noqa: ARG002
        """Returns False: deadlines and observers are the decider's."""
        return False

    # --- questions ------------------------------------------------------------------------------------------------

    def places(self, request_ids: Iterable[str], *, now: float) -> dict[str, QueuePosition]:  # noqa: ARG002
        """Returns the positions known from the last question, and asks again."""
        asked = {held.number: held for name in request_ids if (held := self._by_id.get(name)) is not None}
        if not asked:
            return {}
        self._send(WherePlaced(list(asked)))
        return {
            held.request.id: place
            for number, held in asked.items()
            if held.lease is None and (place := self._places.get(number)) is not None
        }

    # --- small things ---------------------------------------------------------------------------------------------

    def _lend(self, held: HeldRequest, lease: int, endpoint: str, now: float) -> None:
        self._take_back(held)
        held.lease, held.endpoint, held.sent_s, held.undecided = lease, endpoint, now, None
        held.output_tokens = held.told_tokens = 0
        self._leases[lease] = held

    def _tell_progress(self, held: HeldRequest, lease: int) -> None:
        held.told_tokens = held.output_tokens
        self._send(Progressed(held.number, lease, held.output_tokens))

    def _take_back(self, held: HeldRequest) -> None:
        if held.lease is not None:
            del self._leases[held.lease]
            held.lease = None

    def _forget(self, held: HeldRequest) -> None:
        self._take_back(held)
        del self.requests[held.number]
        del self._by_id[held.request.id]


def _to_nobody(_fact: Fact | Aside | Announcement) -> None:
    """Without a link nothing is sent: it is announced when one comes."""


def _broken(held: HeldRequest) -> Fail:
    return Fail(held.request.id, final_reason(Failure.BROKEN))
