"""What stands where the scheduler would, at an edge: facts go to the decider, its actions come back, later.

Everyday picture: a shop floor whose manager sits in another room. Whoever serves customers tells the same things, in
the same words, as if the manager stood beside them; what comes back comes a moment later and may cross with news.

Crossings are settled here, by two rules. *What is over is over*: a request that the edge has forgotten is named by a
number that is never used again, so an action for it is dropped; and who forgets says so, so the other side does too.
*What a client has begun to read can't be taken back*: a `Requeue` that comes after the first byte is not followed. The
answer goes on without a lease, as the foreign load that it is to the decider by then, and the edge says that nothing
more is to be decided about it. So no request is answered twice, and none is forgotten by one side alone.

*Without a link all goes on*: streams stream, leases end here, newcomers wait here. When a decider takes the edge, be it
the one of before or another, the edge says all that it holds (`announcing.py`), and from then on listens to that one
alone. So what was on its way when a link broke need not be known: what the edge says afterwards is what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from penstock.core.queueing.position import QueuePosition
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.located import Source
from penstock.core.values.request import Request, Usage
from penstock.core.values.retry import final_reason
from penstock.core.values.rows import Allowance
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
    PassedOn,
    Places,
    Progressed,
    PromptComputed,
    Told,
    Unreachable,
    WherePlaced,
)
from penstock.share.view import View

NAME_CHARACTERS_MAX = 4096  # of a model: clients may write what they like, and no engine has one of a longer name
PROGRESS_TOKENS = 64  # growth is told in such steps, unless a limit on the time per token is held against it
WAITING_MAX = 10_000  # as `queue.max_requests` is by default
RETRY_AFTER_S = 2.0  # for those who find too many waiting here: a decider is there within seconds
MOVED_INTERVAL_S = 0.1  # how often it is said which endpoints' answers go on: less than half of `liveness.CHECK_S`


class HeldRequest:
    """A request at this edge, from its arrival until nothing more is decided about it."""

    __slots__ = (
        "begun",
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

    def __init__(self, number: int, request: Request, now: float) -> None:
        self.number = number
        self.request = request
        self.since_s = now
        self.lease: int | None = None  #: the decider's, from its dispatch to the fact that ends it
        self.endpoint = ""
        self.decode: tuple[str, int] | None = None  #: of a divided request: who answers, and its lease
        self.output_tokens = self.told_tokens = 0  #: seen of its answer, and told
        self.begun = False  #: its client has some of the answer
        self.loose = False  #: its lease was taken back too late: the answer goes on, the decider has forgotten it
        self.undecided: Failure | None = None  #: how its lease ended, while the decider has not said what follows
        self.handed_over = False  #: its prompt was computed elsewhere
        self.sent_s = 0.0
        self.waited_s = 0.0  #: before it was sent last
        self.waits_s = now  #: since when, where it waits


class Edge:
    """Told of facts as a `Scheduler` is; what is decided comes out of `take`."""

    def __init__(self, *, remembers: bool = True) -> None:
        self._send: Callable[[Fact | Aside | Announcement], None] = _to_nobody
        self.is_linked = False
        self.view = View()
        self.bands: Sequence[str] = ()  #: their names, as of the settings by which requests are read
        self.waiting_max = WAITING_MAX  #: without a link, as many may wait here
        self.edges: Sequence[str] = ()  #: all there are, as last told
        self.gateways = 1  #: as last told
        self._memory = EdgeMemory() if remembers else None  # None: no other decider will ever ask
        self.requests: dict[int, HeldRequest] = {}
        self._by_id: dict[str, HeldRequest] = {}
        self._leases: dict[int, HeldRequest] = {}
        self.epoch = 0  #: the highest that was followed
        self.stale = 0  #: frames of a decider that another one has followed
        self._last_number = 0
        self._moved_s = 0.0
        self._grown: dict[int, HeldRequest] = {}  # by a step or more since it was told

    # --- deciders come and go -----------------------------------------------------------------------------------

    def follows(self, epoch: int) -> bool:
        """Whether a decider of that epoch may be followed; False: a later one was followed already."""
        return epoch >= self.epoch

    def linked(self, send: Callable[[Fact | Aside | Announcement], None], epoch: int, *, now: float) -> list[Action]:
        """A decider has taken this edge: say all through `send`, and from now on what happens.

        Feed `take` with frames of this link alone. Returns what has to be carried out.
        """
        actions = self.unlinked(now=now)
        self.epoch = max(self.epoch, epoch)
        self._send, self.is_linked = send, True
        for held in self.requests.values():
            held.loose = False
            held.told_tokens = held.output_tokens
        memory = self._memory or EdgeMemory()
        announce(
            send,
            bands=self.bands,
            requests=self.requests.values(),
            memory=memory,
            edges=self.edges,
            gateways=self.gateways,
            now=now,
        )
        return actions

    def unlinked(self, *, now: float) -> list[Action]:
        """The link is gone. What the decider had yet to answer is decided here. Returns what has to be carried out."""
        self._send, self.is_linked = _to_nobody, False
        return [self._after(held, held.undecided, now) for held in list(self.requests.values()) if held.undecided]

    def _after(self, held: HeldRequest, failure: Failure, now: float) -> Action:
        """What becomes of a request whose lease ended by `failure`, where no decider says so."""
        held.undecided = None
        if held.begun or failure is Failure.BROKEN:
            self._forget(held)
            return _broken(held)
        held.waits_s = now
        return Requeue(held.request.id, failure)

    # --- from the decider ---------------------------------------------------------------------------------------

    def take(self, frame: Frame[Down], *, now: float) -> tuple[list[Action], list[Down]]:
        """What is to be carried out, in order; and what is not about requests, for whoever runs this edge.

        What a decider says that another one has followed is not heard.
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
                    self.view.endpoints(message)
                    others.append(message)
                case Loads():
                    self.view.levels(message)
                case Allowed():
                    self.view.allowed(message)
                case Places():
                    self.view.placed(message)
                case Members():
                    self.edges, self.gateways = message.edges, message.gateways
                case _:
                    others.append(message)
        return actions, others

    def _decided(self, held: HeldRequest, action: Action, now: float) -> Action | None:
        """Book an action. None: nothing is to be done about it."""
        match action:
            case Dispatch() | Decode():
                if action.lease == held.lease:
                    return None  # it was lent with the dispatch
                if held.begun:
                    return self._too_late(held)
                if action.endpoint not in self.view.rows:
                    self._send(Failed(held.number, action.lease, Failure.CONNECT))
                    return None
                self._lend(held, action.lease, action.endpoint, now)
                held.decode, held.handed_over = None, isinstance(action, Decode)
                if isinstance(action, Dispatch):
                    held.waited_s = action.queue_s
                    if action.decode is not None and action.decode_lease is not None:
                        held.decode = action.decode, action.decode_lease
                    if self._memory is not None:
                        self._memory.sent(held.request, action.endpoint)
            case Requeue():
                if held.begun:
                    return self._too_late(held)
                self._take_back(held)
                held.undecided, held.waits_s = None, now
            case Abort():
                pass
            case _:
                self._forget(held)
        if action.request_id != held.request.id:  # the decider knows another request of that name
            action = msgspec.structs.replace(action, request_id=held.request.id)
        return action

    def _too_late(self, held: HeldRequest) -> Action | None:
        """The lease is gone, and the client reads: let it read on, and tell that nothing more is to be decided."""
        self._send(Cancelled(held.number))
        if held.lease is not None:
            held.loose = True
            return None
        self._forget(held)  # the answer broke off meanwhile: this is its end
        return _broken(held)

    # --- facts, as a scheduler is told them -----------------------------------------------------------------------

    def arrived(self, request: Request, *, now: float) -> list[Action]:
        if len(request.model) > NAME_CHARACTERS_MAX:
            return [Reject(request.id, Reason.MODEL_NOT_FOUND)]
        assert request.id not in self._by_id, "request ids are unique among those that have not ended"
        if not self.is_linked and len(self.requests) - len(self._leases) >= self.waiting_max:
            return [Reject(request.id, Reason.QUEUE_FULL, RETRY_AFTER_S)]
        self._last_number += 1
        held = HeldRequest(self._last_number, request, now)
        self.requests[held.number] = self._by_id[request.id] = held
        if request.deadline_s is not None:
            request = msgspec.structs.replace(request, deadline_s=request.deadline_s - now)
        self._send(Arrived(held.number, request))
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

    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]:  # noqa: ARG002
        held = self._leases[lease]
        held.output_tokens = output_tokens
        if held.loose:
            return []
        if self.view.paced:
            self._tell_progress(held, lease)
        elif output_tokens >= held.told_tokens + PROGRESS_TOKENS:
            self._grown[held.number] = held  # told with `moved`: the decider is not woken for it
        return []

    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]:
        held = self._leases[lease]
        self._take_back(held)
        self._send(PromptComputed(held.number, lease, usage))
        if held.decode is None or held.decode[0] not in self.view.rows:
            held.undecided = Failure.CONNECT
            return [] if self.is_linked else [self._after(held, Failure.CONNECT, now)]
        # Who answers may have begun already: the lease holds from here on, and not a round trip later.
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
        if self._memory is not None:
            self._memory.ended(held.request, usage, held.output_tokens, now)
        if not held.loose:
            if usage is None and held.output_tokens > held.told_tokens:
                self._tell_progress(held, lease)  # nothing else tells how long the answer was
            self._send(Finished(held.number, lease, usage, refused))
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
        held.undecided = failure
        self._send(Failed(held.number, lease, failure, answering, retry_after_s))
        return []

    def cancelled(self, request_id: str, *, now: float) -> list[Action]:
        held = self._by_id[request_id]
        if self._memory is not None and held.lease is not None:
            self._memory.ended(held.request, None, held.output_tokens, now)
        self._forget(held)
        if not held.loose:
            self._send(Cancelled(held.number))
        return []

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
        """A request that needs no turn found nobody there."""
        self._send(Unreachable(name, down=True))
        return []

    def moved(self, names: Iterable[str], *, now: float) -> list[Action]:
        """Answers of these endpoints have come further; whose have grown is said with it.

        Said a few times a second; ask `wants_moved` before.
        """
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
        """Whether it is time to say whose answers go on."""
        return now >= self._moved_s + MOVED_INTERVAL_S

    def expire(self, *, now: float) -> list[Action]:  # noqa: ARG002
        return []

    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]:  # noqa: ARG002
        """The decider drains, and says what becomes of each request."""
        return []

    def next_deadline(self) -> float | None:
        """Time is the decider's."""
        return None

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def paced(self) -> bool:
        return self.view.paced

    @property
    def divides(self) -> bool:
        return self.view.divides

    @property
    def watches(self) -> bool:
        """Whom it matters to, observers, are with the decider."""
        return False

    def least_loaded(self, model: str, *, but: Collection[str] = (), now: float) -> str | None:  # noqa: ARG002
        return self.view.least_loaded(model, but)

    def serving(self, model: str, *, now: float) -> list[str]:  # noqa: ARG002
        return self.view.serving(model)

    def proven(self, name: str) -> bool:
        """True if the decider takes an endpoint for an engine."""
        row = self.view.rows.get(name)
        return row is not None and row.proven

    def refuses_key(self, name: str) -> bool:
        """Whether an endpoint refuses the gateway's key, as the decider says."""
        row = self.view.rows.get(name)
        return row is not None and row.key_refused

    def knows(self, model: str, *, now: float) -> bool | None:  # noqa: ARG002
        return self.view.knows(model)

    def allowance(self, tenant: str, *, now: float) -> Allowance | None:  # noqa: ARG002
        return self.view.allowance(tenant)

    def places(self, request_ids: Iterable[str], *, now: float) -> dict[str, QueuePosition]:  # noqa: ARG002
        """Where requests stood when that was last asked for; and ask, so that the next time it is known."""
        asked = {held.number: held for name in request_ids if (held := self._by_id.get(name)) is not None}
        if not asked:
            return {}
        self._send(WherePlaced(list(asked)))
        return {
            asked[number].request.id: place
            for number, place in self.view.places(asked).items()
            if asked[number].lease is None
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
    """Without a link nobody is told: it is announced when one comes."""


def _broken(held: HeldRequest) -> Fail:
    return Fail(held.request.id, final_reason(Failure.BROKEN))
