"""A gateway's first process, before its edges: it hears what they say, says what they have to know, and starts workers.

Beside the scheduler, driver and registry of any gateway stands one `Decider`, whose edges are the workers; among
gateways that share (`gateway/share`) also those of the others, while this one decides. What an edge can't ask each time
it is told here: endpoints as soon as they change, loads four times a second, and to workers of this gateway settings
when they are reloaded, what the other workers hold, and who decides.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import penstock
from penstock.config.load import config_hash, shared_hash
from penstock.config.model import Settings
from penstock.gateway.admin.events import EventLog
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.ties import Responses
from penstock.gateway.telemetry.edges import edge_levels
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.workers import counts
from penstock.gateway.workers.answers import SharedAnswers
from penstock.gateway.workers.board import Board
from penstock.gateway.workers.handing import SOCKET, bands_of, document, private_folder
from penstock.gateway.workers.link import Link
from penstock.gateway.workers.place import EdgeNow, EdgePlace
from penstock.gateway.workers.processes import WorkerProcess
from penstock.http.server.listener import bound
from penstock.share.decider import Decider
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
    LoadHeader,
    NewKeys,
    NewSettings,
    NotTaken,
    OperatorsSaid,
    Stop,
    Unreachable,
    Up,
    Welcome,
    WhoDecides,
)
from penstock.share.seats import Seat

logger = logging.getLogger(__name__)

EPOCH: Final = 1  # where nothing is shared: workers end with their decider, so there is one only
REFRESH_S: Final = 0.25  # between two words on loads
HUNG_S: Final = 30.0  # without a word, where there is one each second
READY_S: Final = 60.0  # a worker may take to start: seconds where all start at once on a small machine
BANDS_KEPT: Final = 32  # settings that edges may still go by: two names for each reload


class Office:
    """All workers of a gateway, and while it decides for others, their edges."""

    def __init__(
        self,
        settings: Settings,
        *,
        count: int,
        driver: Driver,
        endpoints: EndpointRegistry,
        catalog: Catalog,
        metrics: Metrics,
        responses: Responses,
        events: EventLog,
        prefix_seed: int,
    ) -> None:
        share = settings.share
        self.shares = share.enabled
        self._settings = settings
        self._prefix_seed = prefix_seed  # given to each worker, and again when it is restarted
        self._driver = driver
        self._endpoints = endpoints
        self._metrics = metrics
        self._events = events
        self._hash, self.shared_hash = config_hash(settings), shared_hash(settings)
        bands = bands_of(settings)
        self._board = Board(driver, endpoints, catalog, self.places)
        self.decider = Decider(
            driver.scheduler,
            driver,
            now=driver.now,
            bands=bands,
            levels=len(settings.fairness.levels),
            before_dispatch=self._before_dispatch,
            leads=not self.shares,
        )
        self._bands_of = {self._hash: bands, self.shared_hash: bands}
        prefix = f"{share.called}/" if self.shares else ""
        self._workers = [EdgePlace(f"{prefix}w{number}") for number in range(1, count + 1)]
        self._by_name = {worker.name: worker for worker in self._workers}
        self.others: dict[str, EdgePlace] = {}  #: edges of other gateways that this one decides for
        self.awake: Callable[[], None] = lambda: None  #: called before anything is decided: may this gateway?
        self.operators_said: Callable[[OperatorsSaid], None] = lambda _: (
            None
        )  #: told what another gateway knows of that
        self._decides = WhoDecides(None, 0) if self.shares else WhoDecides("", EPOCH)
        self._keys: NewKeys | None = None  # None: none are made here, or they were not read yet
        self._listening: list[socket.socket] = []
        self._folder: Path | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deciders_timer: asyncio.TimerHandle | None = None
        self._ready, self._idle = asyncio.Event(), asyncio.Event()
        self._ending = self._refreshes = False
        self.port = 0
        endpoints.changed, endpoints.told = self._board.refresh, self._refresh_soon
        self.answers = SharedAnswers(responses, self.places)
        metrics.add_sources(edge_levels(lambda: self._stand(self._workers)))  # others' are on their own pages
        endpoints.in_use = self.decider.in_use

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def relay(self) -> str:
        """Where workers reach the paths that are answered here."""
        assert self._folder is not None
        return str(self._folder / SOCKET)

    async def bind(self, host: str, port: int, backlog: int) -> None:
        """Listen, for those who will take the connections. OSError: the address is taken."""
        self._listening = await bound(host, port)
        for one in self._listening:
            one.listen(backlog)
        self.port = int(self._listening[0].getsockname()[1])
        self._folder = private_folder(self._settings)

    async def start(self) -> None:
        """Start the workers, and wait until all take connections. OSError: one can't."""
        for worker in self._workers:
            worker.process = WorkerProcess(
                worker.name,
                self._listening,
                relay=self.relay,
                epoch=EPOCH,
                linked=partial(self._linked, worker),
                died=partial(self._died, worker),
            )
            worker.process.start()
        self._tick()
        try:
            await asyncio.wait_for(self._ready.wait(), READY_S)
        except TimeoutError:
            raise OSError(None, f"workers did not start within {READY_S:g} s") from None
        if not all(worker.ready for worker in self._workers):
            raise OSError(None, "a worker ended before it served anything; the log says why")

    def drain(self, queue_s: float | None = None) -> None:
        """Let nothing new in. With a time: who decides goes on, and what waits here is turned away after it."""
        self._ending = True
        for worker in self._workers:
            if worker.process is not None:
                worker.process.ending()
            worker.say(Drain(queue_s))
            worker.standing = None  # what it says from here on counts
        self._look_if_idle()

    async def drained(self) -> None:
        """Wait until no worker of this gateway has a request."""
        await self._idle.wait()

    def _look_if_idle(self) -> None:
        if not any(one.greeted and (one.standing is None or one.standing.requests) for one in self._workers):
            self._idle.set()

    async def close(self, timeout_s: float) -> None:
        """All is served: end the workers."""
        self.drain()
        for timer in (self._timer, self._deciders_timer):
            if timer is not None:
                timer.cancel()
        for worker in self._workers:
            worker.say(Stop())
        closing = [worker.process.close(timeout_s) for worker in self._workers if worker.process is not None]
        await asyncio.gather(*closing)
        for place in self.places():
            if place.link is not None:
                place.link.close()
        for one in self._listening:
            one.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def follow(self, settings: Settings) -> None:
        """Other settings; each worker follows them in its own turn, and says so."""
        self._settings, self._hash, self.shared_hash = settings, config_hash(settings), shared_hash(settings)
        bands = bands_of(settings)
        if bands != self.decider.bands:
            self.decider.bands = bands
        self._bands_of |= {self._hash: self.decider.bands, self.shared_hash: self.decider.bands}
        while len(self._bands_of) > BANDS_KEPT:
            del self._bands_of[next(iter(self._bands_of))]
        for worker in self._workers:
            worker.say(self._new_settings())

    def places(self) -> Iterable[EdgePlace]:
        """All edges: this gateway's workers, and those of others that it decides for."""
        return (*self._workers, *self.others.values())

    def know_keys(self, document: bytes) -> None:
        """Other keys were made, or withdrawn; `document` holds all there are."""
        self._keys = NewKeys(document)
        for worker in self._workers:
            worker.say(self._keys)

    def edges(self) -> list[EdgeNow]:
        """How each stands, those of other gateways too while this one decides for them."""
        return self._stand(self.places())

    def _stand(self, places: Iterable[EdgePlace]) -> list[EdgeNow]:
        now, epoch = self._driver.now(), self._decides.epoch
        return [place.now(now, epoch) for place in places]

    @property
    def worker_names(self) -> list[str]:
        """The workers that are there."""
        return [worker.name for worker in self._workers if worker.greeted]

    # --- who decides, among gateways that share -------------------------------------------------------------------

    def lead(self, epoch: int, expected: Sequence[str] = (), *, alone: int = 0) -> None:
        """This gateway decides from now on: for all, or for its own workers, `alone` of so many gateways."""
        self._decides = WhoDecides("", epoch, alone)
        led = self.decider.phase != "idle" and self.decider.alone is bool(alone)
        self.decider.lead(epoch, expected, alone=bool(alone))
        if led:  # and goes on, in a higher epoch
            for place in self.places():
                if place.link is not None and place.seat is not None:
                    place.link.at(epoch)
            return
        for worker in self._workers:
            if worker.greeted:
                self._seat(worker)
        self._arm()

    def step_down(self) -> None:
        """It decides no more. Requests of edges are theirs to announce to whoever decides next."""
        self.decider.step_down()
        for worker in self._workers:
            worker.seat = None
        for other in tuple(self.others.values()):
            self._leave(other, "this gateway decides no more")
        self.obey(None, self._decides.epoch)

    def obey(self, address: str | None, epoch: int) -> None:
        """Another gateway decides, or (None) nobody for now: tell the workers."""
        self._decides = WhoDecides(address, epoch)
        for worker in self._workers:
            worker.say(self._decides)

    def hold(self) -> None:
        """It is not sure that it may decide: nothing is sent until it is."""
        self.decider.hold()

    def go_on(self) -> None:
        """It is sure again."""
        self.decider.go_on()

    def take(self, other: EdgePlace) -> None:
        """An edge of another gateway, which has been greeted."""
        self.others[other.name] = other
        other.ready = True
        assert other.link is not None
        other.link.at(self.decider.epoch)
        other.say(Welcome(penstock.__version__, self.shared_hash))
        self._seat(other)
        if other.is_gateway:
            self.answers.tell(other.say)

    def tell_gateways(self, words: OperatorsSaid) -> None:
        """Tell other gateways what operators have said, each once."""
        for other in self.others.values():
            if other.is_gateway and other.words != words.number:
                other.words = words.number
                other.say(words)

    def lost(self, other: EdgePlace, why: str) -> None:
        """The link to an edge of another gateway broke. The edge may live."""
        seat = other.seat
        other.unlinked()
        if self.others.get(other.name) is other:
            del self.others[other.name]
        if seat is not None and self.decider.phase != "idle":
            logger.warning("share: the link to %s (%s) is gone: %s", other.name, other.where, why)
            self._events.note("share", f"{other.name} is cut off: {why}")
            self._driver.tell(self.decider.cut(seat))
            self._arm()

    def heard(self, place: EdgePlace, frame: Frame[Up]) -> None:
        """What an edge that was greeted says."""
        place.heard_s = self._driver.now()
        self.awake()
        was = self.decider.phase
        for message in frame.messages:
            if not isinstance(message, ForScheduler):
                self._do(place, message)
            elif (seat := place.seat) is not None and frame.epoch >= place.epoch:
                self._driver.tell(self.decider.take(seat, message))
            # else it was said to another decider, or before this one decided for the edge, and is announced again
        if self.decider.phase != was:
            self._arm()

    def _leave(self, other: EdgePlace, why: str) -> None:
        link = other.link
        other.say(NotTaken(why))
        other.seat = None
        self.others.pop(other.name, None)
        if link is not None:
            link.close()
        other.unlinked()

    def _seat(self, place: EdgePlace) -> None:
        """Decide for this edge; it announces what it has."""
        assert place.link is not None
        place.epoch = self.decider.epoch
        place.link.at(place.epoch)
        place.seat = Seat(place.name, place.say, self._bands_of.get(place.settings, self.decider.bands))
        if place.is_ours:
            place.say(self._decides)
        self.decider.opened(place.seat)
        self._board.show(place)

    def _arm(self) -> None:
        """Look again when the decider's next time comes."""
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

    # --- workers come and go --------------------------------------------------------------------------------------

    def _linked(self, worker: EdgePlace, ours: socket.socket) -> None:
        """A worker's process was started: this is its link."""
        link: Link[Up] = Link(
            decider_reader(),
            epoch=self._decides.epoch,
            heard=partial(self._heard, worker),
            lost=lambda why: self._lost(worker, why),
        )
        worker.linked(link, self._driver.now())
        loop = asyncio.get_running_loop()
        self._linking = loop.create_task(loop.create_unix_connection(lambda: link, sock=ours))

    def _lost(self, worker: EdgePlace, why: str) -> None:
        """Its connections are gone with it. Its leases come back, and what waited there is dropped."""
        seat, was_greeted = worker.seat, worker.greeted
        worker.unlinked()
        if seat is not None:
            lost = len(seat.requests)
            self._driver.tell(self.decider.lost(seat))
            if not self._ending:
                logger.warning("worker %s is lost with its connections and %d requests: %s", worker.name, lost, why)
        if was_greeted and worker.process is not None and not self._ending:
            worker.process.kill()  # without its link it is of no use

    def _died(self, worker: EdgePlace, pid: int, how: str, wait_s: float) -> None:
        if worker.link is not None:
            worker.link.end("its process ended")
        again = f"started again in {wait_s:g} s" if wait_s else "started again"
        logger.error("worker %s (process %d) %s; it is %s", worker.name, pid, how, again)
        self._events.note("worker", f"{worker.name} {how}; {again}")
        if not self._ready.is_set():
            self._ready.set()  # at the start nobody waits for what can't be

    # --- what they say --------------------------------------------------------------------------------------------

    def _heard(self, worker: EdgePlace, frame: Frame[Up]) -> None:
        if not worker.greeted and frame.messages:
            self._greet(worker, frame.messages[0])
            frame = Frame(frame.epoch, frame.messages[1:])
        if worker.greeted:
            self.heard(worker, frame)

    def _greet(self, worker: EdgePlace, message: Up) -> None:
        link = worker.link
        if link is None:
            return
        why = "a link begins with a hello, once"
        if isinstance(message, Hello) and not worker.greeted:
            why = why_not(message, version=penstock.__version__) or ""
        if why:
            logger.error("worker %s is not taken: %s", worker.name, why)
            link.say(NotTaken(why))
            link.close()  # it has the word, and ends by itself
            self._lost(worker, why)
            return
        worker.greeted = True
        worker.say(Welcome(penstock.__version__, self._hash))
        worker.say(self._new_settings())
        if self._keys is not None:
            worker.say(self._keys)
        self.answers.tell(worker.say)
        if self.decider.phase != "idle":
            self._seat(worker)
        else:
            worker.say(self._decides)
            self._board.show(worker)
        if self._driver.draining or self._ending:
            worker.say(Drain())

    def _do(self, place: EdgePlace, message: Aside | Hello) -> None:
        match message:
            case EdgeStanding():
                self._stands(place, message)
            case Counted():
                counts.add(self._metrics, message.series)
            case AnswerMade():
                self.answers.heard(message, place)
            case Following():
                self._follows(place, message.settings)
            case OperatorsSaid():
                self.operators_said(message)
            case Unreachable() | Disowned() | LoadHeader():
                self._board.heard(message)
            case Hello():
                if place.is_ours:
                    self._greet(place, message)

    def _follows(self, place: EdgePlace, settings: str) -> None:
        place.settings = settings
        if place.seat is not None:
            place.seat.bands = self._bands_of.get(settings, place.seat.bands)
        place.ready = True
        if all(each.ready for each in self._workers):
            self._ready.set()

    def _stands(self, place: EdgePlace, standing: EdgeStanding) -> None:
        place.stands(standing)
        if self._ending:
            self._look_if_idle()
        beside = self._workers if place.is_ours else ()
        others = [each.standing for each in beside if each is not place and each.standing is not None]
        place.say(
            Heard(
                standing.sent_s,
                sum(other.connections for other in others),
                sum(other.bodies_bytes for other in others),
                0.0 if self.decider.phase == "holding" else self._driver.now(),
            )
        )

    # --- what they are told ---------------------------------------------------------------------------------------

    def _new_settings(self) -> NewSettings:
        return NewSettings(self._hash, document(self._settings), self._prefix_seed)

    def _before_dispatch(self, seat: Seat, endpoint: str) -> None:
        place = self.others.get(seat.name) or self._by_name[seat.name]
        if endpoint not in place.told:
            self._board.refresh()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(REFRESH_S, self._tick)  # first: whatever fails, it goes on
        self._board.refresh()
        now = self._driver.now()
        for worker in self._workers:
            patience_s = HUNG_S if worker.ready else READY_S
            if worker.link is not None and now - worker.heard_s > patience_s:
                worker.link.end(f"it has said nothing for {patience_s:g} s")

    def _refresh_soon(self) -> None:
        if not self._refreshes:
            self._refreshes = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        self._refreshes = False
        self._board.refresh()
