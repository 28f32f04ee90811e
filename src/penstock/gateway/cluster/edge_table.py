"""All edges of this gateway's decider: their identity, their reports, and their updates.

The edges of a gateway's `Decider` are its workers and, while it decides for a group, the edges of other gateways. Both
kinds begin a link with a hello, speak the same messages, and are ended when they are silent; they differ in what a lost
link means. A worker's process dies with its link, so its leases come back at once; an edge on another machine may live
and announce them again.

Edges are sent endpoints on each change, loads four times a second, and workers also settings, issued keys, the other
workers' sums, and the decider.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
from pydantic import SecretStr

import penstock
from penstock.config.load import config_hash, shared_hash
from penstock.config.model import Settings
from penstock.config.sections.share import OWN
from penstock.gateway import settings_map
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.cluster import counts
from penstock.gateway.cluster.endpoint_feed import EndpointFeed
from penstock.gateway.cluster.link import Link, taken_over
from penstock.gateway.cluster.member import EdgeNow, Member
from penstock.gateway.cluster.operator_orders import OperatorOrders
from penstock.gateway.cluster.shared_answers import SharedAnswers
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.telemetry.edge_series import edge_levels
from penstock.gateway.telemetry.metrics import Metrics
from penstock.share.decider import Decider, Peer
from penstock.share.frames import decider_reader, why_not
from penstock.share.messages import (
    AnswerMade,
    Aside,
    Counted,
    Disowned,
    Drain,
    EdgeStanding,
    Following,
    ForScheduler,
    Frame,
    Heard,
    Hello,
    Leave,
    LoadHeader,
    NewKeys,
    NewRules,
    NewSettings,
    NotTaken,
    OperatorsSaid,
    Unreachable,
    Up,
    Welcome,
    WhoDecides,
)

logger = logging.getLogger(__name__)

EPOCH: Final = 1  # without a group: workers end with their decider, so it is the only one
LOOK_S: Final = 0.25  # between two reports of loads, and two looks for silent edges
HUNG_S: Final = 30.0  # silence of a worker, which reports once a second
READY_S: Final = 60.0  # for a worker to start: seconds if all start at once on a small machine
HELLO_S: Final = 5.0  # for the first message from another machine
SILENT_S: Final = 3.0  # silence of an edge of another gateway; then its machine or the way to it is gone
KNOWN_S: Final = 10.0  # for so long a gateway that was cut off counts among those that may follow another one
BANDS_KEPT: Final = 32  # settings that edges may still follow: two hashes for each reload
EDGES_MAX: Final = 1_000  # of other gateways: some tens of machines with tens of workers
REFUSALS_KEPT: Final = 8
NAME_CHARACTERS_MAX: Final = 160
HELLO_ONCE: Final = "a link begins with a hello, once"


class TurnedAway(msgspec.Struct, frozen=True):
    """An edge that was refused."""

    at_s: float
    where: str
    why: str


class OwnRole(Protocol):
    """This gateway's role in its group, as far as the table asks and tells it."""

    @property
    def orders(self) -> OperatorOrders: ...
    def check(self) -> None: ...
    def superseded(self, epoch: int) -> None: ...


class Table:
    """The members, and their updates."""

    def __init__(
        self,
        settings: Settings,
        *,
        driver: Driver,
        endpoints: EndpointRegistry,
        catalog: Catalog,
        affinities: Affinities,
        metrics: Metrics,
        events: EventLog,
    ) -> None:
        share = settings.share
        self._settings = settings
        self._address = share.place if share.enabled else ""  # of this gateway, as edges know it
        self._prefix_seed = affinities.prefix_seed  # the same for each worker, restarted ones included
        self._driver = driver
        self._metrics = metrics
        self._events = events
        self._hash, self.shared_hash = config_hash(settings), shared_hash(settings)
        bands = _bands(settings)
        self._bands_of = {self._hash: bands, self.shared_hash: bands}
        self._feed = EndpointFeed(driver, endpoints, catalog, self.members)
        self.decider = Decider(
            driver.scheduler,
            driver,
            now=driver.now,
            bands=bands,
            levels=len(settings.fairness.levels),
            before_dispatch=self._before_dispatch,
            leads=not share.enabled,
        )
        prefix = f"{share.called}/" if share.enabled else ""
        self.workers = [Member(f"{prefix}w{number}") for number in range(1, settings_map.workers(settings) + 1)]
        self._by_name = {worker.name: worker for worker in self.workers}
        self.others: dict[str, Member] = {}  #: edges of other gateways that this one decides for
        self._newcomers: dict[Member, None] = {}  # of other gateways, before their hello
        self._gone: dict[str, float] = {}  # gateways that were cut off, and when each had heard this one
        self.refusals: deque[TurnedAway] = deque(maxlen=REFUSALS_KEPT)
        self.role: OwnRole | None = None  #: of this gateway; None: without a group it always decides
        self._decides = WhoDecides(None, 0) if share.enabled else WhoDecides("", EPOCH)
        self._for_workers: dict[type, NewKeys | NewRules | Leave] = {}  # the latest of each
        self._timer: asyncio.TimerHandle | None = None
        self._deciders_timer: asyncio.TimerHandle | None = None
        self.ready = asyncio.Event()  #: all workers take connections, or one could not start
        self.idle = asyncio.Event()  #: no worker has a request, while the gateway drains
        self._ending = self._refreshes = False
        self.answers = SharedAnswers(affinities.responses, self.members)
        endpoints.changed, endpoints.told, endpoints.in_use = (
            self._feed.refresh,
            self._refresh_soon,
            self.decider.in_use,
        )
        self._metrics.add_sources(edge_levels(lambda: self._status(self.workers)))  # others' are on their own pages

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look after the members from now on."""
        if self._timer is None:
            self._look()

    def drain(self, message: Drain) -> None:
        """Let nothing new in, and set `idle` when the workers' requests have ended."""
        self._ending = True
        for worker in self.workers:
            worker.say(message)
            worker.standing = None  # only its next reports count
        self._look_if_idle()

    def close(self) -> None:
        """Close all links."""
        for timer in (self._timer, self._deciders_timer):
            if timer is not None:
                timer.cancel()
        for newcomer in tuple(self._newcomers):
            _end(newcomer, "the gateway ends")
        for member in self.members():
            if member.link is not None:
                member.link.close()

    def follow(self, settings: Settings) -> None:
        """Follow other settings, and send them to the workers, each of which reports when it follows them."""
        self._settings, self._hash, self.shared_hash = settings, config_hash(settings), shared_hash(settings)
        bands = _bands(settings)
        if bands != self.decider.bands:
            self.decider.bands = bands
        self._bands_of |= {self._hash: self.decider.bands, self.shared_hash: self.decider.bands}
        while len(self._bands_of) > BANDS_KEPT:
            del self._bands_of[next(iter(self._bands_of))]
        for worker in self.workers:
            worker.say(self._new_settings())

    def tell_workers(self, message: NewKeys | NewRules | Leave) -> None:
        """Send a message to all workers, present and future."""
        self._for_workers[type(message)] = message
        for worker in self.workers:
            worker.say(message)

    def members(self) -> Iterable[Member]:
        """Returns this gateway's workers, and the edges of others that it decides for."""
        return (*self.workers, *self.others.values())

    def edges(self) -> list[EdgeNow]:
        """Returns the status of each member."""
        return self._status(self.members())

    def _status(self, members: Iterable[Member]) -> list[EdgeNow]:
        now, epoch = self._driver.now(), self._decides.epoch
        return [member.now(now, epoch) for member in members]

    @property
    def worker_names(self) -> list[str]:
        """The workers that are there."""
        return [worker.name for worker in self.workers if worker.greeted]

    # --- the decider ----------------------------------------------------------------------------------------------

    def lead(self, epoch: int, expected: Sequence[str] = (), *, silent: Sequence[str] = (), alone: int = 0) -> None:
        """Decide from now on: for all, or for the own workers, `alone` of so many gateways."""
        self._decides = WhoDecides("", epoch)
        led = self.decider.phase != "idle" and bool(self.decider.alone) == bool(alone)
        self.decider.lead(epoch, expected, silent=silent, alone=alone)
        if led:  # and goes on, in a higher epoch
            for member in self.members():
                if member.link is not None and member.peer is not None:
                    member.link.at(epoch)
            return
        for worker in self.workers:
            if worker.greeted:
                self._admit(worker)
        self._arm()

    def step_down(self) -> None:
        """Decide no longer. Edges keep their requests, and announce them to the next decider."""
        self.decider.step_down()
        for worker in self.workers:
            worker.peer = None
        others, self.others = self.others, {}
        for other in others.values():
            other.refuse(NotTaken("this gateway decides no more"))
        self.obey(None, self._decides.epoch)

    def obey(self, address: str | None, epoch: int) -> None:
        """Another gateway decides, or (None) none for now: inform the workers."""
        self._decides = WhoDecides(address, epoch)
        for worker in self.workers:
            worker.say(self._decides)

    def send_orders(self, orders: OperatorsSaid) -> None:
        """Send operators' orders to other gateways, each once."""
        for other in self.others.values():
            if other.is_gateway and other.orders != orders.number:
                other.orders = orders.number
                other.say(orders)

    def followed_s(self) -> float:
        """Since when each other gateway has certainly heard this one: the time that it echoed. Now, without others.

        Not the time of its report: a process that was stopped for a while finds old reports in its sockets.
        """
        gateways = [member for member in self.others.values() if member.is_gateway]
        return min([*(member.followed_s for member in gateways), *self._gone.values()], default=self._driver.now())

    def _admit(self, member: Member) -> None:
        """Decide for this edge; it announces its requests."""
        assert member.link is not None
        member.epoch = self.decider.epoch
        member.link.at(member.epoch)
        member.peer = Peer(member.name, member.say, self._bands_of.get(member.settings, self.decider.bands))
        if member.is_ours:
            member.say(self._decides)
        self.decider.opened(member.peer)
        self._feed.show(member)

    def _arm(self) -> None:
        """Come back at the decider's next deadline."""
        if self._deciders_timer is not None:
            self._deciders_timer.cancel()
            self._deciders_timer = None
        deadline = self.decider.next_deadline()
        if deadline is not None:
            wait_s = max(0.0, deadline - self._driver.now()) + 0.001
            self._deciders_timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self.decider.expire()
        self._arm()

    # --- links ----------------------------------------------------------------------------------------------------

    def link(self, member: Member) -> Link[Up]:
        """Returns a new link to `member`, before its hello."""
        link: Link[Up] = Link(
            decider_reader(),
            epoch=self._decides.epoch,
            heard=partial(self._frame, member),
            lost=partial(self._lost, member),
        )
        link.unsent = lambda _message: self._metrics.unsent()
        member.linked(link, self._driver.now())
        return link

    def came(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Take over a proven connection of the group, with the data received since."""
        peer = transport.get_extra_info("peername")
        member = Member("", where=f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?")
        if len(self._newcomers) + len(self.others) >= EDGES_MAX:
            logger.warning("share: edge at %s refused: there are %d already", member.where, EDGES_MAX)
            transport.abort()
            return
        self._newcomers[member] = None
        taken_over(transport, rest, self.link(member))

    def _frame(self, member: Member, frame: Frame[Up]) -> None:
        if not member.greeted and frame.messages:
            if not self._greet(member, frame.messages[0]):
                return
            frame = Frame(frame.epoch, frame.messages[1:])
        if member.greeted:
            self._heard(member, frame)

    def _greet(self, member: Member, hello: Up) -> bool:
        """Accept an edge by its first message. False: it was refused."""
        why = HELLO_ONCE
        if isinstance(hello, Hello):
            why = why_not(hello, version=penstock.__version__) or ("" if member.is_ours else self._unfit(hello))
        if why or not isinstance(hello, Hello):
            self._refuse(member, why)
            return False
        self._newcomers.pop(member, None)
        member.greeted = True
        if member.is_ours:
            self._welcome(member)
        else:
            self._join(member, hello)
        return True

    def _unfit(self, hello: Hello) -> str:
        """Why an edge of another gateway is refused; empty: it fits."""
        if hello.settings != self.shared_hash:
            return (
                f"two gateways with different settings: the edge has {hello.settings:.16}, the decider "
                f"{self.shared_hash} (they may differ in {', '.join(sorted(OWN))})"
            )
        if not 0 < len(hello.name) <= NAME_CHARACTERS_MAX or not hello.name.isprintable():
            return "an edge needs a name that people can read"
        if self.role is not None:
            self.role.check()
        if self.role is None or self.decider.phase == "idle":
            return "this gateway does not decide"
        epoch = self.decider.epoch
        if hello.epoch > epoch or (hello.epoch == epoch and hello.follows not in ("", self._address)):
            self.role.superseded(max(hello.epoch, epoch + 1))
            return f"it has followed epoch {hello.epoch}, and this decider's is {epoch}: a higher one is to be taken"
        before = self.others.get(hello.name)
        if hello.name in self.worker_names or (
            before is not None and before.pid != hello.pid and self._driver.now() - before.heard_s < SILENT_S / 2
        ):
            return f"another edge is called {hello.name}: give each gateway a `share.name` of its own"
        return ""

    def _refuse(self, member: Member, why: str) -> None:
        self._newcomers.pop(member, None)
        if member.is_ours:
            logger.error("worker %s refused: %s", member.name, why)
        else:
            logger.warning("share: edge at %s refused: %s", member.where, why)
            self._events.note("share", f"{member.where} refused: {why}")
            self.refusals.append(TurnedAway(self._driver.now(), member.where or "", why))
        member.refuse(NotTaken(why))

    def _welcome(self, worker: Member) -> None:
        """Send a worker all that it needs; from then on it follows this process."""
        worker.say(Welcome(penstock.__version__, self._hash))
        worker.say(self._new_settings())
        for message in self._for_workers.values():
            worker.say(message)
        self.answers.tell(worker.say)
        if self.decider.phase != "idle":
            self._admit(worker)
        else:
            worker.say(self._decides)
            self._feed.show(worker)
        if self._driver.draining or self._ending:
            worker.say(Drain())

    def _join(self, other: Member, hello: Hello) -> None:
        """Decide for an edge of another gateway."""
        before = self.others.get(hello.name)
        if before is not None:
            _end(before, "it has dialled again")
        other.name, other.settings, other.pid, other.ready = hello.name, hello.settings, hello.pid, True
        other.heard_s = self._driver.now()
        self._gone.pop(other.name, None)
        self.others[other.name] = other
        assert other.link is not None
        other.link.at(self.decider.epoch)
        other.say(Welcome(penstock.__version__, self.shared_hash))
        self._admit(other)
        if other.is_gateway:
            self.answers.tell(other.say)
        logger.info("share: edge %s (%s) joined", other.name, other.where)

    def _lost(self, member: Member, why: str) -> None:
        """Its link broke."""
        if member in self._newcomers:
            del self._newcomers[member]
            logger.warning("share: a link from %s closed before its greeting: %s", member.where, why)
            return
        peer, was_greeted = member.peer, member.greeted
        member.unlinked()
        if member.is_ours:
            self._lost_worker(member, peer, why, was_greeted=was_greeted)
            return
        if was_greeted and member.is_gateway:
            self._gone[member.name] = member.followed_s
        if self.others.get(member.name) is member:
            del self.others[member.name]
        if peer is not None and self.decider.phase != "idle":
            logger.warning("share: lost the link to %s (%s): %s", member.name, member.where, why)
            self._events.note("share", f"{member.name} is cut off: {why}")
            self._driver.tell(self.decider.cut(peer))
            self._arm()

    def _lost_worker(self, worker: Member, peer: Peer | None, why: str, *, was_greeted: bool) -> None:
        """Its connections are gone with it: its leases come back, and its queued requests are dropped."""
        if peer is not None:
            lost = len(peer.requests)
            self._driver.tell(self.decider.lost(peer))
            if not self._ending:
                logger.warning("lost worker %s with its connections and %d requests: %s", worker.name, lost, why)
        if was_greeted and worker.process is not None and not self._ending:
            worker.process.kill()  # it is of no use without its link

    # --- edges' reports -------------------------------------------------------------------------------------------

    def _heard(self, member: Member, frame: Frame[Up]) -> None:
        member.heard_s = self._driver.now()
        if self.role is not None:
            self.role.check()
        was = self.decider.phase
        for message in frame.messages:
            if not isinstance(message, ForScheduler):
                self._do(member, message)
            elif (peer := member.peer) is not None and frame.epoch >= member.epoch:
                self._driver.tell(self.decider.take(peer, message))
            # otherwise it was for another decider, or too early, and is announced again
        if self.decider.phase != was:
            self._arm()

    def _do(self, member: Member, message: Aside | Hello) -> None:
        match message:
            case EdgeStanding():
                self._stands(member, message)
            case Counted():
                counts.add(self._metrics, message.series)
            case AnswerMade():
                self.answers.heard(message, member)
            case Following():
                self._follows(member, message.settings)
            case OperatorsSaid() if self.role is not None:
                self.role.orders.heard(message)
            case Unreachable() | Disowned() | LoadHeader():
                self._feed.heard(message)
            case Hello():
                _end(member, HELLO_ONCE)

    def _follows(self, member: Member, settings: str) -> None:
        member.settings, member.ready = settings, True
        if member.peer is not None:
            member.peer.bands = self._bands_of.get(settings, member.peer.bands)
        if all(each.ready for each in self.workers):
            self.ready.set()

    def _stands(self, member: Member, standing: EdgeStanding) -> None:
        member.stands(standing)
        if self._ending:
            self._look_if_idle()
        beside = self.workers if member.is_ours else ()
        others = [each.standing for each in beside if each is not member and each.standing is not None]
        member.say(
            Heard(
                standing.sent_s,
                sum(other.connections for other in others),
                sum(other.bodies_bytes for other in others),
                0.0 if self.decider.phase == "holding" else self._driver.now(),
            )
        )

    def _look_if_idle(self) -> None:
        if not any(one.greeted and (one.standing is None or one.standing.requests) for one in self.workers):
            self.idle.set()

    # --- updates to edges -----------------------------------------------------------------------------------------

    def _new_settings(self) -> NewSettings:
        document = json.dumps(self._settings.model_dump(exclude_unset=True), default=_secret).encode()
        return NewSettings(self._hash, document, self._prefix_seed)

    def _before_dispatch(self, peer: Peer, endpoint: str) -> None:
        member = self.others.get(peer.name) or self._by_name[peer.name]
        if endpoint not in member.told:
            self._feed.refresh()

    def _refresh_soon(self) -> None:
        if not self._refreshes:
            self._refreshes = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        self._refreshes = False
        self._feed.refresh()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)  # first: it continues after any failure
        self._feed.refresh()
        now = self._driver.now()
        for member in tuple(self._newcomers):
            if now - member.since_s > HELLO_S:
                _end(member, f"no hello within {HELLO_S:g} s")
        for member in self.members():
            silent_s = SILENT_S if not member.is_ours else HUNG_S if member.ready else READY_S
            if now - member.heard_s > silent_s:
                _end(member, f"it has said nothing for {silent_s:g} s")
        for name, followed_s in tuple(self._gone.items()):
            if now - followed_s > KNOWN_S:
                del self._gone[name]


def _end(member: Member, why: str) -> None:
    if member.link is not None:
        member.link.end(why)


def _bands(settings: Settings) -> Sequence[str]:
    return tuple(band.name for band in settings.bands)


def _secret(value: object) -> str:
    assert isinstance(value, SecretStr), "everything else in the settings is JSON"
    return value.get_secret_value()
